#include "workers/segment_drops.hpp"

#include "live/dependencies.hpp"
#include "workers/old_batches.hpp"
#include "workers/refiring.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::Db;
using live::SegmentState;
using live::SegmentView;

struct Drop
{
	Db *db;
	const SegmentView *segment;
	bool alone;				// no other segment's range has ids of this one's
	MemoryContext context;	// that outlives the transaction
	core::JobId *callbacks; // of batches, if not alone
	int ncallbacks;
};

// Called with both tables locked: nobody else writes to them, and whoever did has published (callbacks run before locks go).
bool nothing_lives(void *arg)
{
	auto &d = *static_cast<Drop *>(arg);
	TQ_WAIT_POINT("drop-after-lock");
	const live::SegmentSlot &s = live::segment_at(*d.db, d.segment->slot);
	const journal::Segment *within = d.alone ? nullptr : &d.segment->tables;
	// it may have been reopened since it was looked at, and its jobs may have ended anew
	if (s.state != SegmentState::finished || s.live.load() != 0 || live::are_awaited(*d.db, s.first_id, s.last_id, within))
		return false;
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
	// the ids that only this segment can have had, whether or not their rows are there; beside them, what rows of others' ids say
	live::IdRange own[live::kMostSlots];
	const int nown = live::ids_of_its_own(db, s.slot, own);
	for (int i = 0; i < nown; ++i)
		let_fires_of_range_go(db, own[i].first, own[i].last);
	TQ_WAIT_POINT("drop-before-lock");
	Drop drop{&db, &s, nown == 1 && own[0].first == s.first_id && own[0].last == s.last_id, keep, nullptr, 0};
	const journal::DropResult result = journal::drop_segment(s.tables, nothing_lives, &drop);
	const bool gone = result == journal::DropResult::dropped || result == journal::DropResult::gone;
	// from here on no verb looks into it; the commit below cannot fail for any reason of ours
	if (gone)
		live::change_segment(db, s.slot, SegmentState::finished, SegmentState::dropping, 0);
	TQ_WAIT_POINT("drop-before-commit");
	end_work();
	if (gone)
	{
		TQ_WAIT_POINT_NOFAIL("drop-before-map");
		live::remove_segment(db, s.slot);
		for (int i = 0; i < nown; ++i)
			let_batches_of_range_go(context, db, own[i].first, own[i].last);
		if (drop.ncallbacks > 0)
			let_batches_go(context, db, drop.callbacks, drop.ncallbacks);
		*changed = true;
	}
	MemoryContextDelete(keep);
	return true;
}

} // namespace tq::workers
