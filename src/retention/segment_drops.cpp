#include "retention/segment_drops.hpp"

#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "dependencies/old_batches.hpp"
#include "processes/work_transaction.hpp"
#include "schedules/schedule_repair.hpp"

namespace tq
{

namespace
{

struct Drop
{
	Db *db;
	const SegmentView *segment;
	bool alone;				// no other segment's range overlaps this one
	MemoryContext context;	// outlives the transaction
	core::JobId *callbacks; // of batches, if not alone
	int ncallbacks;
};

// Called with both tables locked. No other session writes to them, and earlier writers have published (callbacks run
// before locks are released).
bool nothing_lives(void *arg)
{
	auto &d = *static_cast<Drop *>(arg);
	TQ_WAIT_POINT("drop-after-lock");
	const SegmentSlot &s = segment_at(*d.db, d.segment->slot);
	const journal::Segment *within = d.alone ? nullptr : &d.segment->tables;
	// the segment may have been reopened since the last check, and its jobs may have ended again
	if (s.state != SegmentState::finished || s.live.load() != 0 || are_awaited(*d.db, s.first_id, s.last_id, within))
		return false;
	let_edges_of_segment_go(*d.db, d.segment->tables, s.first_id, s.last_id);
	if (!d.alone)
	{
		let_fires_of_segment_go(*d.db, d.segment->tables);
		const MemoryContext old = MemoryContextSwitchTo(d.context);
		d.ncallbacks = batches_of_segment(*d.db, d.segment->tables, &d.callbacks);
		MemoryContextSwitchTo(old);
	}
	return true;
}

} // namespace

bool drop_old_segment(const WorkerContext &context, Db &db, const SegmentView &s, bool *changed)
{
	const MemoryContext outside = CurrentMemoryContext;
	if (!begin_work(context, "tq: dropping a segment"))
		return false;
	const MemoryContext keep = AllocSetContextCreate(outside, "tq drop", ALLOCSET_SMALL_SIZES);
	// The ids that only this segment can have had, with or without rows. For ids that other segments may have had, too,
	// the rows decide (nothing_lives).
	IdRange own[kMostSlots];
	const int nown = ids_of_its_own(db, s.slot, own);
	for (int i = 0; i < nown; ++i)
		let_fires_of_range_go(db, own[i].first, own[i].last);
	TQ_WAIT_POINT("drop-before-lock");
	Drop drop{&db, &s, nown == 1 && own[0].first == s.first_id && own[0].last == s.last_id, keep, nullptr, 0};
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
		for (int i = 0; i < nown; ++i)
			let_batches_of_range_go(context, db, own[i].first, own[i].last);
		if (drop.ncallbacks > 0)
			let_batches_go(context, db, drop.callbacks, drop.ncallbacks);
		*changed = true;
	}
	MemoryContextDelete(keep);
	return true;
}

} // namespace tq
