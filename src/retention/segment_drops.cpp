#include "retention/segment_drops.hpp"

#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "dependencies/old_batches.hpp"
#include "processes/work_transaction.hpp"

namespace tq
{

namespace
{

struct Drop
{
	Db *db;
	const SegmentView *segment;
};

// Called with both tables locked. No other session writes to them, and earlier writers have published (callbacks run
// before locks are released).
bool nothing_lives(void *arg)
{
	const auto &d = *static_cast<Drop *>(arg);
	TQ_WAIT_POINT("drop-after-lock");
	const SegmentSlot &s = segment_at(*d.db, d.segment->slot);
	// the segment may have been reopened since the last check, and its jobs may have ended again
	if (s.state != SegmentState::finished || s.live.load() != 0 || are_awaited(*d.db, s.first_id, s.last_id))
		return false;
	delete_edges_of_segment(*d.db, d.segment->tables, s.first_id, s.last_id);
	return true;
}

} // namespace

bool drop_old_segment(const WorkerContext &context, Db &db, const SegmentView &s, bool *changed)
{
	if (!begin_work(context, "tq: dropping a segment"))
		return false;
	TQ_WAIT_POINT("drop-before-lock");
	Drop drop{&db, &s};
	const journal::DropResult result = journal::drop_segment(s.tables, nothing_lives, &drop);
	const bool gone = result == journal::DropResult::dropped || result == journal::DropResult::gone;
	// from here on no verb reads it; the commit below cannot fail because of tq
	if (gone)
		change_segment(db, s.slot, SegmentState::finished, SegmentState::dropping, 0);
	TQ_WAIT_POINT("drop-before-commit");
	end_work();
	if (gone)
	{
		TQ_WAIT_POINT_NOFAIL("drop-before-map");
		remove_segment(db, s.slot);
		delete_batches_of_range(context, db, s.first_id, s.last_id);
		*changed = true;
	}
	return true;
}

} // namespace tq
