#include "retention/evacuate.hpp"

#include "guc.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "dependencies/old_batches.hpp"
#include "jobs/verbs.hpp"
#include "processes/work_transaction.hpp"
#include "queues/queue_retention.hpp"
#include "residency/loader.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

constexpr int kBatch = 200;

// Ids found by a scan. Batches process them afterwards.
struct Ids
{
	MemoryContext context;
	pg::Array<int64> ids;
	const SegmentView *segment;
	const SegmentRules *rules;
	bool to_move; // live jobs and dead letters; else all ended jobs
	bool future;  // one of them has a time in the future
	int64 dead;	  // of them
	int64 rows;	  // in the segment
};

// Whether a job that ended `at` has been kept for `keep`. Notes a time in the future.
bool is_past(Ids &in, TimestampTz at, Micros keep) noexcept
{
	in.future = in.future || is_future(at, *in.rules);
	return age_of(*in.segment, at, *in.rules) > keep;
}

void collect(const journal::Candidate &c, const journal::Fold &fold, const journal::Values &, void *arg)
{
	auto &out = *static_cast<Ids *>(arg);
	const bool dead = fold.dead();
	const bool wanted = out.to_move ? !fold.terminal() || dead : fold.terminal();
	if (!wanted || fold.state == journal::FoldState::moved)
		return;
	out.ids.append(out.context, c.id);
	out.dead += dead;
}

Ids scan(const SegmentView &segment, const SegmentRules &rules, bool to_move)
{
	Ids out{CurrentMemoryContext, {}, &segment, &rules, to_move, false, 0, 0};
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	out.rows = journal::scan_segment(segment.tables, snapshot, true, collect, &out, false).rows;
	UnregisterSnapshot(snapshot);
	return out;
}

// An ended job of a queue that no longer exists. No session can change it, so it needs no placeholder.
bool is_orphan(const Db &db, Ids &in, int64 id)
{
	const SegmentView &zero = *in.segment;
	Snapshot snapshot = committed_snapshot();
	journal::JobRow row;
	ItemPointerData tid;
	journal::Fold fold;
	const bool found = journal::find_job(zero.tables, id, snapshot, false, &row, &tid);
	if (found)
		journal::fold_job(zero.tables, id, snapshot, &fold);
	UnregisterSnapshot(snapshot);
	return found && queue_of_id(db, row.queue_id) == kNoQueue && fold.terminal() &&
		   is_past(in, fold.ended_at, retention_of_queue(kNoQueue).dead);
}

// The retention of a dead letter is that of its queue.
bool retention_passed(const FetchedJob &p, Micros now) noexcept
{
	return p.fold.ended_at < now - retention_of_queue(p.queue).dead;
}

// Dead letters that evacuate() has not moved and that do not wait for it.
struct Unmoved
{
	int64 over;	   // their retention has passed
	int64 orphans; // their queue is gone, so the segment keeps them
};

// Moves one job. False if it stays for now: it is running, marked or being read, it has ended meanwhile, or memory is
// full. True if it is moved, or counted in `unmoved`, or gone.
bool move_one(Db &db, const SegmentView &from, const SegmentView &zero, int64 id, Micros now, Unmoved *unmoved)
{
	FetchedJob p = fetch_job(db, id, true);
	if (p.result != Fetch::found && p.result != Fetch::terminal)
	{
		unmoved->orphans += p.result == Fetch::absent;
		return p.result == Fetch::absent;
	}
	int32 step = 0; // of the `moved` event
	core::Entry entry{};
	if (p.result == Fetch::terminal)
	{
		const bool dead = p.fold.dead();
		if (p.segment != from.slot || !dead || retention_passed(p, now))
		{
			unmoved->over += p.segment == from.slot && dead;
			drop_placeholder(db, p.queue, p.ref, false);
			return true; // nothing to save
		}
		step = p.fold.next_step;
		mark_record(p, Verb::move, zero.slot);
	}
	else
	{
		Op op;
		State found{};
		op.to = State::ready;
		const MarkTerms terms{.id = id,
							  .verb = Verb::move,
							  .states = bit_of(State::ready) | bit_of(State::delayed) | bit_of(State::blocked)};
		if (mark_job(p, terms, &op, &entry, &found) != Marked::ok)
			return false;
		Op &noted = last_op();
		noted.new_segment = static_cast<uint16_t>(zero.slot);
		noted.to = entry.state;
		set_pending(noted);
		step = entry.step;
		if (entry.segment != from.slot)
		{
			// it is in segment 0 already, and stays where it is
			noted.new_segment = entry.segment;
			ItemPointerSet(&noted.tid, entry.block, entry.offset);
			return true;
		}
	}
	Op &noted = last_op();
	// a new snapshot, now that no session can add to its history
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (!journal::copy_job(from.tables, zero.tables, id, snapshot, &noted.tid))
		ereport(ERROR, (errmsg("row of job %lld is gone", static_cast<long long>(id))));
	UnregisterSnapshot(snapshot);
	TQ_WAIT_POINT("move-after-copy");
	journal::EventRow moved;
	moved.job_id = id;
	moved.at = wall_now();
	moved.step = step;
	moved.type = journal::EventType::moved;
	journal::append_events(from.tables, &moved, 1);
	return true;
}

bool find_zero(const Db &db, SegmentView *zero)
{
	pg::Array<SegmentView> segments = view_segments(db);
	const bool found = segments.n > 0 && segments[0].tables.number == 0;
	if (found)
		*zero = segments[0];
	segments.free();
	return found;
}

} // namespace

bool no_session_writes(const journal::Segment &tables, bool keep_out)
{
	int locked = 0;
	const Oid oids[] = {tables.job, tables.event};
	while (locked < 2 && ConditionalLockRelationOid(oids[locked], ShareLock))
		++locked;
	const bool both = locked == 2;
	while (locked > 0 && !(both && keep_out))
		UnlockRelationOid(oids[--locked], ShareLock);
	return both;
}

namespace
{

// Jobs that could not be moved, above all running ones, may stay for long. So scans use at most a hundredth of the
// time.
void delay_next_scan(SegmentSlot &s, Micros began) noexcept
{
	const Micros now = steady_now();
	s.again_at.store(now + std::max((now - began) * 100, 60 * guc::naptime * Micros{1000}));
}

} // namespace

int64 evacuate(const WorkerContext &context, Db &db, const SegmentView &segment, const SegmentRules &rules)
{
	SegmentView zero{};
	if (!find_zero(db, &zero))
		return segment.live;
	const MemoryContext outside = CurrentMemoryContext;
	if (!begin_work(context, "tq: looking for jobs that outlive their segment"))
		return -1;
	const MemoryContext keep = AllocSetContextCreate(outside, "tq evacuation", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(keep);
	SegmentSlot &s = segment_at(db, segment.slot);
	const Micros began = steady_now();
	const uint32 dead_changes = s.dead_changes.load();
	const Ids found = scan(segment, rules, true);
	// The scan has counted the dead letters. The count is stored only if no change has come meanwhile or is about to: a
	// writer past tq is not visible before its commit, and a committed writer keeps its lock until it has published.
	if (!dead_known(s.dead.load()) && no_session_writes(segment.tables, true) &&
		s.dead_changes.load() == dead_changes)
		s.dead.store(found.dead);
	MemoryContextSwitchTo(old);
	end_work();
	int64 left = 0;
	Unmoved unmoved{};
	if (segment.rows == 0 || !dead_known(segment.dead))
	{
		s.rows.store(found.rows);
		if (segment.slot != rules.sparsest &&
			!few_outlive(found.rows, found.ids.n, segment.state == SegmentState::finished))
		{
			delay_next_scan(s, began);
			MemoryContextDelete(keep);
			return found.ids.n;
		}
	}
	for (int64 i = 0; i < found.ids.n && !stop_requested(); i += kBatch)
	{
		if (!begin_work(context, "tq: moving jobs that outlive their segment"))
			return -1;
		reserve_ops(kBatch);
		for (int64 k = i; k < std::min<int64>(found.ids.n, i + kBatch); ++k)
		{
			left += !move_one(db, segment, zero, found.ids[k], rules.now, &unmoved);
			CHECK_FOR_INTERRUPTS();
		}
		TQ_WAIT_POINT("move-before-commit");
		end_work();
		TQ_WAIT_POINT("move-after-commit");
	}
	MemoryContextDelete(keep);
	if (left == 0 && segment.state == SegmentState::finished && !stop_requested())
	{
		// Their retention has passed, so they no longer keep the segment. While orphans keep it, the next pass meets
		// them again, so they stay in the count. Not for a sealed segment: when that is read again, they are among its
		// dead letters as before.
		if (unmoved.orphans == 0)
			s.dead.fetch_sub(unmoved.over);
		s.looked_at.store(rules.now);
	}
	if (left > 0 || !dead_known(s.dead.load()))
		delay_next_scan(s, began);
	return left;
}

bool clean_zero(const WorkerContext &context, Db &db, const SegmentView &zero, const SegmentRules &rules)
{
	const MemoryContext outside = CurrentMemoryContext;
	if (!begin_work(context, "tq: looking for finished jobs in segment 0"))
		return false;
	const MemoryContext keep = AllocSetContextCreate(outside, "tq clean-up", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(keep);
	Ids found = scan(zero, rules, false);
	MemoryContextSwitchTo(old);
	end_work();
	for (int64 i = 0; i < found.ids.n && !stop_requested(); i += kBatch)
	{
		int64 ids[kBatch];
		int n = 0;
		int orphans = 0;
		if (!begin_work(context, "tq: deleting finished jobs of segment 0"))
			return false;
		reserve_ops(kBatch);
		for (int64 k = i; k < std::min<int64>(found.ids.n, i + kBatch); ++k)
		{
			FetchedJob p = fetch_job(db, found.ids[k], true);
			if (p.result == Fetch::absent && is_orphan(db, found, found.ids[k]))
			{
				ids[n++] = found.ids[k];
				++orphans;
			}
			if (p.result != Fetch::terminal)
				continue;
			const Retention keep_it = retention_of_queue(p.queue);
			const bool dead = p.fold.dead();
			// while its placeholder is there, no session can revive it
			if (p.segment != zero.slot || !is_past(found, p.fold.ended_at, dead ? keep_it.dead : keep_it.finished))
			{
				drop_placeholder(db, p.queue, p.ref, false);
				continue;
			}
			mark_record(p, Verb::erase, zero.slot);
			// A session that makes a job wait for this one sees the mark (is_being_erased), or is seen here.
			if (are_awaited(db, found.ids[k], found.ids[k]))
			{
				last_op().verb = Verb::forget; // the commit only drops the placeholder
				last_op().was_dead = false;
			}
			else
				ids[n++] = found.ids[k];
		}
		TQ_WAIT_POINT("clean-before-delete");
		if (n > 0)
		{
			delete_edges(db, ids, n);
			journal::delete_jobs(zero.tables, ids, n);
		}
		TQ_WAIT_POINT("clean-before-commit");
		end_work();
		segment_at(db, zero.slot).rows.fetch_sub(orphans);
		if (n > 0)
			delete_batches(context, db, ids, n);
	}
	MemoryContextDelete(keep);
	note_future(db, zero, found.future);
	return true;
}

} // namespace tq
