#include "workers/evacuate.hpp"

#include "live/attach.hpp"
#include "live/dependencies.hpp"
#include "live/load.hpp"
#include "live/loader.hpp"
#include "live/retention.hpp"
#include "live/verbs.hpp"
#include "workers/old_batches.hpp"
#include "workers/refiring.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::Db;
using live::engine;
using live::Hold;
using live::Pin;

constexpr int kBatch = 200;

// Ids found by a scan, to be worked on in batches after it.
struct Ids
{
	MemoryContext context;
	int64 *ids;
	int64 n;
	int64 room;
	bool live_too;
	live::Micros young; // purged jobs from then on are passed over
	int64 dead; // of them
	int64 rows; // in the segment
};

void collect(const journal::Candidate &c, const journal::Fold &fold, void *arg)
{
	auto &out = *static_cast<Ids *>(arg);
	const bool dead = fold.state == journal::FoldState::dead || fold.state == journal::FoldState::buried;
	if (out.live_too ? fold.terminal() && !dead : !fold.terminal())
		return;
	if (fold.state == journal::FoldState::moved)
		return;
	// that it is there tells a purged job from one that was deleted by hand (schedules)
	if (fold.state == journal::FoldState::purged && c.enqueued_at >= out.young)
		return;
	if (out.n == out.room)
	{
		out.room = std::max<int64>(1024, out.room * 2);
		const Size bytes = sizeof(int64) * static_cast<Size>(out.room);
		out.ids = static_cast<int64 *>(out.ids == nullptr ? MemoryContextAllocHuge(out.context, bytes) : repalloc_huge(out.ids, bytes));
	}
	out.ids[out.n++] = c.id;
	out.dead += dead;
}

Ids scan(const journal::Segment &tables, bool live_too, live::Micros young = core::kNever)
{
	Ids out{CurrentMemoryContext, nullptr, 0, 0, live_too, young, 0, 0};
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	out.rows = journal::scan_segment(tables, snapshot, true, collect, &out, false).rows;
	UnregisterSnapshot(snapshot);
	return out;
}

// A job that has ended, of a queue that is no more: nobody can do anything about it, and nothing pins it.
bool is_orphan(const Db &db, const live::SegmentView &zero, int64 id, live::Micros now)
{
	Snapshot snapshot = live::committed_snapshot();
	journal::JobRow row;
	ItemPointerData tid;
	journal::Fold fold;
	const bool found = journal::find_job(zero.tables, id, snapshot, false, &row, &tid);
	if (found)
		journal::fold_job(zero.tables, id, snapshot, &fold);
	UnregisterSnapshot(snapshot);
	return found && live::queue_of_id(db, row.queue_id) == live::kNoQueue && fold.terminal() &&
		   fold.ended_at < now - live::retention_of_queue(live::kNoQueue).dead;
}

struct Placeholder
{
	Db *db;
	const live::Pinned *pinned;
};

void drop_pinned(int, Datum arg)
{
	const auto *p = reinterpret_cast<Placeholder *>(DatumGetPointer(arg));
	live::drop_placeholder(*p->db, p->pinned->queue, p->pinned->ref, false);
}

// Whether others wait for a job that has ended, whose placeholder is ours. It is in no list yet, so it goes here if this fails: a table may
// be locked.
bool is_awaited(Db &db, const live::Pinned &pinned, int64 id)
{
	Placeholder placeholder{&db, &pinned};
	bool awaited = false;
	PG_ENSURE_ERROR_CLEANUP(drop_pinned, PointerGetDatum(&placeholder));
	{
		awaited = live::are_awaited(db, id, id);
	}
	PG_END_ENSURE_ERROR_CLEANUP(drop_pinned, PointerGetDatum(&placeholder));
	return awaited;
}

struct Move
{
	live::Pinned pinned;
	int32 step; // of the `moved` event
	bool dead;
};

// A dead letter's time is its queue's.
bool has_had_its_time(const live::Pinned &p, live::Micros now) noexcept
{
	return p.fold.ended_at < now - live::retention_of_queue(p.queue).dead;
}

// Copies one job. False: it is running, marked, being read in, or has ended otherwise; it stays. `over` counts dead letters that have had
// their time.
bool move_one(Db &db, const live::SegmentView &from, const live::SegmentView &zero, int64 id, live::Micros now, int64 *over)
{
	live::Pinned p = live::pin(db, id, true);
	if (p.result != Pin::pinned && p.result != Pin::terminal)
		return p.result == Pin::absent;
	Move m{p, 0, false};
	core::Entry entry{};
	if (p.result == Pin::terminal)
	{
		m.dead = p.fold.state == journal::FoldState::dead || p.fold.state == journal::FoldState::buried;
		if (p.segment != from.slot || !m.dead || has_had_its_time(p, now))
		{
			*over += p.segment == from.slot && m.dead;
			live::drop_placeholder(db, p.queue, p.ref, false);
			return true; // nothing to save
		}
		m.step = p.fold.next_step;
		live::hold_record(p, live::Verb::move, zero.slot);
	}
	else
	{
		live::Op op;
		live::State wrong{};
		op.to = live::State::ready;
		if (live::hold_job(db, p.ref, p.queue, id, live::bit_of(live::State::ready) | live::bit_of(live::State::delayed) | live::bit_of(live::State::blocked),
						   live::Verb::move, &op, &entry, &wrong) != Hold::ok)
			return false;
		live::Op &noted = live::last_op();
		noted.new_segment = static_cast<uint16_t>(zero.slot);
		noted.to = entry.state;
		live::set_pending(noted);
		m.step = entry.step;
		if (entry.segment != from.slot)
		{
			// it is in segment 0 already, and stays where it is
			noted.new_segment = entry.segment;
			ItemPointerSet(&noted.tid, entry.block, entry.offset);
			return true;
		}
	}
	live::Op &noted = live::last_op();
	journal::JobRow row;
	ItemPointerData tid;
	// a new snapshot, now that nobody can add to its history any more
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (!journal::find_job(from.tables, id, snapshot, true, &row, &tid))
		ereport(ERROR, (errmsg("row of job %lld is gone", static_cast<long long>(id))));
	journal::append_jobs(zero.tables, &row, 1, &tid);
	noted.tid = tid;
	journal::EventRow *events = nullptr;
	const int n = journal::job_events(from.tables, id, snapshot, &events);
	UnregisterSnapshot(snapshot);
	if (n > 0)
		journal::append_events(zero.tables, events, n);
	TQ_WAIT_POINT("move-after-copy");
	journal::EventRow moved;
	moved.job_id = id;
	moved.at = live::wall_now();
	moved.step = m.step;
	moved.type = journal::EventType::moved;
	journal::append_events(from.tables, &moved, 1);
	return true;
}

bool find_zero(const Db &db, live::SegmentView *zero)
{
	live::SegmentView first[1];
	if (live::view_segments(db, first, 1) == 0 || first[0].tables.number != 0)
		return false;
	*zero = first[0];
	return true;
}

} // namespace

bool nobody_writes(const journal::Segment &tables, bool keep_out)
{
	int locked = 0;
	const Oid oids[] = {tables.job, tables.event};
	while (locked < 2 && ConditionalLockRelationOid(oids[locked], ShareLock))
		++locked;
	const bool nobody = locked == 2;
	while (locked > 0 && !(nobody && keep_out))
		UnlockRelationOid(oids[--locked], ShareLock);
	return nobody;
}

int64 evacuate(const WorkerContext &context, Db &db, const live::SegmentView &segment, live::Micros now)
{
	live::SegmentView zero{};
	if (!find_zero(db, &zero))
		return segment.live;
	const MemoryContext outside = CurrentMemoryContext;
	if (!begin_work(context, "tq: looking for jobs that outlive their segment"))
		return -1;
	const MemoryContext keep = AllocSetContextCreate(outside, "tq evacuation", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(keep);
	live::SegmentSlot &s = live::segment_at(db, segment.slot);
	const uint32 changes = db.outside_changes.load(), dead_changes = s.dead_changes.load();
	const Ids found = scan(segment.tables, true);
	// Now that it was read, it is known what it holds, but for what somebody has changed meanwhile, or is about to: who writes past tq is not
	// seen before his commit, and who has committed has his lock until he has published.
	if (!live::dead_known(s.dead.load()) && nobody_writes(segment.tables, true) && db.outside_changes.load() == changes &&
		s.dead_changes.load() == dead_changes)
		s.dead.store(found.dead);
	MemoryContextSwitchTo(old);
	end_work();
	int64 left = 0, over = 0;
	if (segment.rows == 0 || !live::dead_known(segment.dead))
	{
		s.rows.store(found.rows);
		if (!few_outlive(found.rows, found.n, segment.state == live::SegmentState::finished))
		{
			MemoryContextDelete(keep);
			return found.n;
		}
	}
	for (int64 i = 0; i < found.n && !stop_requested(context); i += kBatch)
	{
		if (!begin_work(context, "tq: moving jobs that outlive their segment"))
			return -1;
		live::reserve_ops(kBatch);
		for (int64 k = i; k < std::min<int64>(found.n, i + kBatch); ++k)
		{
			left += !move_one(db, segment, zero, found.ids[k], now, &over);
			CHECK_FOR_INTERRUPTS();
		}
		TQ_WAIT_POINT("move-before-commit");
		end_work();
		TQ_WAIT_POINT("move-after-commit");
	}
	MemoryContextDelete(keep);
	if (left == 0 && segment.state == live::SegmentState::finished && !stop_requested(context))
	{
		s.dead.fetch_sub(over); // nothing keeps the segment for those; a sealed one may be read again, and has them then as before
		s.looked_at.store(now);
	}
	return left;
}

bool clean_zero(const WorkerContext &context, Db &db, const live::SegmentView &zero, live::Micros now)
{
	if (live::copy_is_coming(db)) // what waits for these may be yet to come
		return true;
	const MemoryContext outside = CurrentMemoryContext;
	if (!begin_work(context, "tq: looking for finished jobs in segment 0"))
		return false;
	const MemoryContext keep = AllocSetContextCreate(outside, "tq clean-up", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(keep);
	const Ids found = scan(zero.tables, false, now - live::retention_of(db).finished);
	MemoryContextSwitchTo(old);
	end_work();
	for (int64 i = 0; i < found.n && !stop_requested(context); i += kBatch)
	{
		int64 ids[kBatch];
		int n = 0;
		int orphans = 0;
		if (!begin_work(context, "tq: deleting finished jobs of segment 0"))
			return false;
		live::reserve_ops(kBatch);
		const bool all_queues = !live::restore_may_be_under_way(db); // else the row of a queue may be on its way
		for (int64 k = i; k < std::min<int64>(found.n, i + kBatch); ++k)
		{
			live::Pinned p = live::pin(db, found.ids[k], true);
			if (all_queues && p.result == Pin::absent && is_orphan(db, zero, found.ids[k], now))
			{
				ids[n++] = found.ids[k];
				++orphans;
			}
			if (p.result != Pin::terminal)
				continue;
			const live::Retention keep_it = live::retention_of_queue(p.queue);
			const bool dead = p.fold.state == journal::FoldState::dead || p.fold.state == journal::FoldState::buried;
			const bool purged = p.fold.state == journal::FoldState::purged;
			// while its placeholder is there nobody gives it a new life
			if (p.segment != zero.slot || is_awaited(db, p, found.ids[k]) ||
				(!purged && p.fold.ended_at >= now - (dead ? keep_it.dead : keep_it.finished)))
			{
				live::drop_placeholder(db, p.queue, p.ref, false);
				continue;
			}
			live::hold_record(p, live::Verb::erase, zero.slot);
			ids[n++] = found.ids[k];
		}
		TQ_WAIT_POINT("clean-before-delete");
		if (n > 0)
		{
			let_fires_go(db, ids, n);
			journal::delete_jobs(zero.tables, ids, n);
		}
		TQ_WAIT_POINT("clean-before-commit");
		end_work();
		live::segment_at(db, zero.slot).rows.fetch_sub(orphans);
		if (n > 0)
			let_batches_go(context, db, ids, n);
	}
	MemoryContextDelete(keep);
	return true;
}

} // namespace tq::workers
