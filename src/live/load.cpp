#include "live/load.hpp"

#include "guc.hpp"
#include "live/attach.hpp"
#include "live/counting.hpp"
#include "live/leases.hpp"
#include "live/loader.hpp"
#include "live/orphans.hpp"
#include "live/publish.hpp"
#include "live/segments.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"

namespace tq::live
{

namespace
{

// What one pass over the journal adds up, in private memory.
struct Tally
{
	Db *db;
	bool first;		 // first load: entries are made
	int64 *lanes;	 // unfinished jobs by lane
	int64 *delayed;	 // of them: delayed, without an entry
	int64 *blocked;	 // of them: waiting for their parents
	uint32 *changes; // Lane::delayed_changes when the count began,
	uint32 *frees;	 // and Lane::frees
	int64 segment_live;
	int64 segment_dead;
	int slot;		 // of the segment being read
	CountResult result;
	// later counts: jobs that must be in memory and are not; context is theirs
	MemoryContext context;
	JobId *must;
	int64 nmust, must_room;
	WaitingJobs waiting;
	// the lane of the last row, since neighbours mostly share it
	int32 last_queue_id;
	char last_kind[core::kNameMax];
	bool last_has_kind;
	uint16_t queue;
	uint16_t lane;
};

void find_lane_of(Tally &t, const journal::Candidate &c)
{
	if (t.queue != kNoQueue && t.last_queue_id == c.queue_id && t.last_has_kind == c.has_kind &&
		(!c.has_kind || strcmp(t.last_kind, c.kind) == 0))
		return;
	t.queue = queue_of_id(*t.db, c.queue_id);
	t.last_queue_id = c.queue_id;
	t.last_has_kind = c.has_kind;
	strlcpy(t.last_kind, c.kind, sizeof(t.last_kind));
	if (t.queue == kNoQueue)
		return;
	t.lane = lane_for(t.queue, c.has_kind ? c.kind : nullptr);
	const Lane &l = engine.lane(t.lane);
	if (l.frees == t.frees[t.lane])
		return;
	// made since the count began, in the place of another that was freed meanwhile; all that was published of it is in its deltas
	t.lanes[t.lane] = t.delayed[t.lane] = t.blocked[t.lane] = 0;
	t.changes[t.lane] = l.delayed_changes;
	t.frees[t.lane] = l.frees;
}

// Does a watermark say that this job, which has no entry, is on disk? One that has fallen due is still the timers' until they have passed it.
bool on_disk_by_right(const Tally &t, const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	Micros due = core::kNever;
	const bool timed = state_of(c, fold, PG_INT64_MIN, &due) == State::delayed;
	lock_queue(t.queue);
	const Queue &q = engine.queue(t.queue);
	const Ref group = c.has_group ? engine.group_for(engine.queue(t.queue), c.group, false) : kNil;
	const bool yes = (timed && due >= engine.db(index_of(*t.db)).timer_watermark.load()) ||
					 !engine.vouches(q, engine.lane(t.lane), c.group_key(), group, Key{c.priority, c.id});
	unlock_queue(t.queue);
	return yes;
}

// Later counts: is an unfinished job that has no entry on disk by right? If not, either it has ended since the count's snapshot, or memory
// had lost it: the journal is asked again, and it is read in. Where many are missing (rows written by hand), or its id is not found, the
// watermark sinks under it, and the loader, which goes by lanes, brings what is there.
bool vouched_for(Tally &t, const journal::Candidate &c, const journal::Fold &fold)
{
	constexpr int64 kOneByOne = 100;
	uint16_t q = 0;
	const uint16_t d = index_of(*t.db);
	if (engine.find(d, c.id, &q) != kNil || on_disk_by_right(t, c, fold) || engine.find(d, c.id, &q) != kNil)
		return true;
	if (t.result.missing < kOneByOne)
	{
		const Pinned p = pin(*t.db, c.id, false);
		const bool was_read = p.result == Pin::pinned && p.row.id == c.id;
		// rows by hand may have the id of another job; one that was moved to segment 0 since is the same
		const bool other = p.segment != t.slot && segment_at(*t.db, p.segment).number != 0;
		if (p.result != Pin::no_room && p.result != Pin::absent && !other)
			return !was_read || on_disk_by_right(t, p.row, p.fold);
	}
	Micros due = core::kNever;
	const State to = state_of(c, fold, wall_now(), &due);
	lock_queue(t.queue);
	Queue &of = engine.queue(t.queue);
	const bool there = of.state != core::QueueState::free && of.db == d && of.id == c.queue_id; // it may have been dropped meanwhile
	if (there && to == State::delayed)
		engine.sink_timer(d, due);
	else if (there)
		engine.sink_job(of, engine.lane(t.lane), c.group_key(), kNil, Key{c.priority, c.id});
	unlock_queue(t.queue);
	return !there;
}

// A delayed job that is the timers', on disk.
bool waits_on_disk(const Tally &t, const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	uint16_t q = 0;
	Micros due = core::kNever;
	const uint16_t d = index_of(*t.db);
	return state_of(c, fold, PG_INT64_MIN, &due) == State::delayed && due >= engine.db(d).timer_watermark.load() &&
		   engine.find(d, c.id, &q) == kNil;
}

// Running jobs and overrides have entries wherever the watermarks are; those of a segment that came by a restore have none yet.
void remember_must(Tally &t, JobId id)
{
	uint16_t q = 0;
	if (engine.find(index_of(*t.db), id, &q) != kNil)
		return;
	if (t.nmust == t.must_room)
	{
		t.must_room = std::max<int64>(64, t.must_room * 2);
		const Size bytes = sizeof(JobId) * static_cast<Size>(t.must_room);
		t.must = static_cast<JobId *>(t.must == nullptr ? MemoryContextAllocHuge(t.context, bytes) : repalloc_huge(t.must, bytes));
	}
	t.must[t.nmust++] = id;
}

// A job that rests in memory knows the steps of all its events: who appends one takes the step first, and marks the entry until he has
// published. So one that does not was read before its events came (a restore brings the tables one after the other), and goes. An old
// copy of a job that was moved says nothing.
void drop_outdated(Tally &t, const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	uint16_t q = 0;
	const Ref r = fold.next_step == 1 || fold.state == journal::FoldState::moved ? kNil : engine.find(index_of(*t.db), c.id, &q);
	if (r == kNil)
		return;
	lock_queue(q);
	const Entry &e = engine.entry(r);
	const bool rests = engine.is(engine.queue(q), r, c.id) && e.mark == Verb::none &&
					   (e.state == State::ready || e.state == State::delayed || e.state == State::running);
	if (rests && e.step < fold.next_step)
	{
		engine.drop(engine.queue(q), r, my_proc);
		++t.result.outdated;
	}
	unlock_queue(q);
}

void visit(const journal::Candidate &c, const journal::Fold &fold, void *arg)
{
	Tally &t = *static_cast<Tally *>(arg);
	++t.result.jobs;
	if (!t.first)
		drop_outdated(t, c, fold);
	if (fold.terminal())
	{
		t.segment_dead += fold.state == journal::FoldState::dead || fold.state == journal::FoldState::buried;
		return;
	}
	find_lane_of(t, c);
	if (t.queue == kNoQueue)
	{
		// the row of its queue may be on its way (pg_restore -j), so the segment is not done with
		++t.result.unknown;
		++t.segment_live;
		return;
	}
	const bool blocked = waits_for_parents(c, fold);
	++t.result.unfinished;
	++t.lanes[t.lane];
	t.blocked[t.lane] += blocked;
	if (blocked)
		note_waiting(&t.waiting, c.id);
	++t.segment_live;
	if (!t.first)
	{
		if (!blocked && !vouched_for(t, c, fold))
			++t.result.missing;
		t.delayed[t.lane] += waits_on_disk(t, c, fold);
		if (!blocked && (fold.state == journal::FoldState::running || fold.has_override || (fold.held && c.has_group)))
			remember_must(t, c.id);
		return;
	}
	// a running job must be in memory: others, of any lane and group, make room for it, again if somebody else was quicker to take it
	for (int tries = 0;; ++tries)
	{
		const Place placed = place_job(*t.db, c, t.slot, fold, t.queue, t.lane, kNil, Source::first_load);
		if (placed != Place::no_room && placed != Place::no_slot)
			break;
		const bool freed = placed == Place::no_slot ? free_slot() : make_room(*t.db, 8, core::kNoLane) > 0 || free_one(*t.db);
		if (tries > 1000 || !freed)
			ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
							errmsg("tq.max_live_jobs (%d) or tq.max_groups (%d) is too small for the running jobs of this database",
								   guc::max_live_jobs, guc::max_groups),
							errhint("Raise it and restart the server.")));
	}
}

// Takes the count's snapshot at a moment when no commit callback is half-way: they hold the map lock shared. What one publishes later is
// added to the deltas if this snapshot does not see its transaction, and is left out if it does and the count is over. GetLatestSnapshot neither allocates
// (after its first use, below) nor waits for more than ProcArrayLock, so it may be called here.
//
// The segments to be read are listed in the same moment: one that is finished between the two would take its jobs with it, though the
// snapshot sees them unfinished and their ends are in the deltas.
pg_noinline Snapshot begin_count(Db &db, const Tally &t, journal::Segment *tables, int *slots, int *n)
{
	static_cast<void>(GetLatestSnapshot());
	const TransactionId own = GetTopTransactionIdIfAny();
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	Snapshot s = GetLatestSnapshot();
	note_count_snapshot(db, s, own);
	for (int i = 0; i < db.nsegments; ++i)
		segment_at(db, i).delta.store(0);
	for (uint32 i = 0; i < engine.limits().lanes; ++i)
	{
		Lane &l = engine.lane(static_cast<uint16_t>(i));
		t.frees[i] = l.frees;
		if (l.used && engine.queue(l.queue).db == index_of(db))
		{
			l.count.delta = 0; // commit callbacks write it under the map lock, so it is ours now
			l.delta_blocked = 0;
			t.changes[i] = l.delayed_changes;
			if (db.load_state.load() != static_cast<uint32>(LoadState::loaded))
			{
				l.delayed_disk = 0; // what was published before is met again by the first load
				l.delayed_counted = true;
			}
		}
	}
	*n = live_segments_locked(db, tables, slots, guc::max_segments);
	db.counting = true;
	LWLockRelease(map_lock(db));
	return s;
}

// Queue lock held. Loads and searches of the queue that are under way raise nothing; others follow.
void void_loads(Queue &q) noexcept
{
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
		if (engine.lane(l).loader != kNil)
			engine.sink(q, engine.lane(l), engine.lane(l).watermark);
	for (Ref r = 0; q.group_loads > 0 && r < engine.limits().groups; ++r)
		if (engine.owns(q, r) && engine.group(r).loader != kNil)
			engine.sink_group(q, r, engine.group(r).watermark);
	if (q.discovering.load())
		engine.want_discovery(q);
}

// Rows written past tq, or in a segment just adopted, are published by nobody. Loaders at work may have taken their segments and
// snapshots before the count's, so they do not raise watermarks past what it finds on disk by right; who begins from here on sees it all.
void void_loads(const Db &db) noexcept
{
	const uint16_t d = index_of(db);
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto queue = static_cast<uint16_t>(i);
		Queue &q = engine.queue(queue);
		if (q.state == core::QueueState::free || q.db != d)
			continue;
		lock_queue(queue);
		if (q.state != core::QueueState::free && q.db == d)
			void_loads(q);
		unlock_queue(queue);
	}
	if (db.timer_loader.load() != 0)
		engine.sink_timer(d, engine.db(d).timer_watermark.load());
}

void compare(Tally &t, Drift::Counter counter, int where, int64 was, int64 is) noexcept
{
	if (t.first || was == is)
		return;
	if (t.result.drifted < static_cast<int64>(lengthof(t.result.drifts)))
		t.result.drifts[t.result.drifted] = Drift{counter, where, was, is};
	++t.result.drifted;
}

// What the pass met in the segment that was in a slot.
struct SegmentTally
{
	bool read;
	int32 number;
	int64 rows;
	int64 live;
	int64 dead;
};

void end_count(Db &db, Tally &t, const SegmentTally *segments)
{
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	for (uint32 i = 0; i < engine.limits().lanes; ++i)
	{
		Lane &l = engine.lane(static_cast<uint16_t>(i));
		if (!l.used || engine.queue(l.queue).db != index_of(db))
			continue;
		if (l.frees != t.frees[i])
			continue; // what the pass met was of a queue that has been dropped since; of this one it has met nothing
		const int64 is = t.lanes[i] + l.count.delta;
		compare(t, Drift::unfinished, static_cast<int>(i), l.count.live, is);
		l.count.live = is;
		const int32 waiting = static_cast<int32>(t.blocked[i]) + l.delta_blocked;
		compare(t, Drift::blocked, static_cast<int>(i), l.blocked, waiting);
		l.blocked = waiting;
		// the pass met some before they came or went, and others after it, so its number is good only if none did
		l.delayed_counted = t.first || l.delayed_changes == t.changes[i];
		if (!t.first && l.delayed_counted)
			l.delayed_disk = t.delayed[i];
	}
	for (int i = 0; i < db.nsegments; ++i)
	{
		SegmentSlot &s = segment_at(db, i);
		const SegmentTally &met = segments[i];
		if (!met.read || met.number != s.number)
			continue; // it was dropped since, and another one is in its place, of whose jobs the pass met none
		const int64 is = met.live + s.delta.load();
		compare(t, Drift::of_segment, s.number, s.live.load(), is);
		s.live.store(is);
		int64 unknown = 0; // adopted
		if (t.first)
		{
			if (dead_known(s.dead.load())) // nobody is writing past tq
				s.dead.store(met.dead);
			s.rows.store(met.rows);
		}
		else
			static_cast<void>(s.rows.compare_exchange_strong(unknown, met.rows));
	}
	keep_count_snapshot(db);
	db.counting = false;
	if (t.first)
		db.load_state.store(static_cast<uint32>(LoadState::loaded));
	LWLockRelease(map_lock(db));
}

void stop_count(int, Datum arg)
{
	Db &db = *reinterpret_cast<Db *>(DatumGetPointer(arg));
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	db.counting = false;
	LWLockRelease(map_lock(db));
	give_up_loader(db);
}

} // namespace

bool try_become_loader(Db &db) noexcept
{
	uint32 nobody = 0;
	return db.loader.compare_exchange_strong(nobody, my_proc + 1);
}

void give_up_loader(Db &db) noexcept
{
	uint32 me = my_proc + 1;
	db.loader.compare_exchange_strong(me, 0);
}

CountResult count_journal(Db &db)
{
	Tally t{};
	t.db = &db;
	t.first = db.load_state.load() != static_cast<uint32>(LoadState::loaded);
	t.queue = kNoQueue;
	t.context = t.waiting.context = CurrentMemoryContext;
	const Micros began = steady_now();
	PG_ENSURE_ERROR_CLEANUP(stop_count, PointerGetDatum(&db));
	{
		TQ_WAIT_POINT("count-before-begin");
		const auto max = static_cast<Size>(guc::max_segments);
		t.lanes = static_cast<int64 *>(palloc0(sizeof(int64) * engine.limits().lanes));
		t.delayed = static_cast<int64 *>(palloc0(sizeof(int64) * engine.limits().lanes));
		t.blocked = static_cast<int64 *>(palloc0(sizeof(int64) * engine.limits().lanes));
		t.changes = static_cast<uint32 *>(palloc0(sizeof(uint32) * engine.limits().lanes));
		t.frees = static_cast<uint32 *>(palloc0(sizeof(uint32) * engine.limits().lanes));
		auto *tables = static_cast<journal::Segment *>(palloc(sizeof(journal::Segment) * max));
		auto *slots = static_cast<int *>(palloc(sizeof(int) * max));
		auto *segments = static_cast<SegmentTally *>(palloc0(sizeof(SegmentTally) * max));
		read_queues(db, nullptr);
		if (t.first)
			start_leases(db);
		TQ_WAIT_POINT("count-before-snapshot");
		int n = 0;
		Snapshot snapshot = RegisterSnapshot(begin_count(db, t, tables, slots, &n));
		snapshot->curcid = FirstCommandId; // own changes are counted when they commit
		TQ_WAIT_POINT("count-after-snapshot");
		if (!t.first)
			void_loads(db);
		for (int i = 0; i < n; ++i)
		{
			t.slot = slots[i];
			t.segment_live = t.segment_dead = 0;
			const journal::SegmentSummary sum = journal::scan_segment(tables[i], snapshot, true, visit, &t, false);
			segments[t.slot] = SegmentTally{true, tables[i].number, sum.rows, t.segment_live, t.segment_dead};
			TQ_WAIT_POINT("load-between-segments");
		}
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("count-before-end");
		end_count(db, t, segments);
		for (int64 i = 0; i < t.nmust; ++i)
			static_cast<void>(pin(db, t.must[i], false));
		t.result.orphans = count_orphans(db, t.waiting);
	}
	PG_END_ENSURE_ERROR_CLEANUP(stop_count, PointerGetDatum(&db));
	if (t.first)
	{
		db.loads.fetch_add(1);
		db.loaded_at.store(wall_now());
		db.load_took.store(steady_now() - began);
	}
	else
		db.audits.fetch_add(1);
	db.drifted.fetch_add(t.result.drifted);
	db.outdated.fetch_add(t.result.outdated);
	db.lost_found.fetch_add(t.result.missing);
	db.counted_at.store(wall_now());
	db.rows_unknown.store(t.result.unknown);
	db.orphans.store(t.result.orphans);
	return t.result;
}

const char *describe_drifts(const CountResult &result)
{
	StringInfoData text;
	initStringInfo(&text);
	for (int64 i = 0; i < std::min<int64>(result.drifted, lengthof(result.drifts)); ++i)
	{
		const Drift &d = result.drifts[i];
		const char *what = d.counter == Drift::blocked ? "blocked" : "unfinished";
		appendStringInfo(&text, "%s" INT64_FORMAT " %s jobs instead of " INT64_FORMAT, i > 0 ? ", " : "", d.was, what, d.is);
		if (d.counter == Drift::of_segment)
			appendStringInfo(&text, " of segment %d", d.where);
		else
			appendStringInfo(&text, " of kind \"%s\" in queue \"%s\"", engine.lane(static_cast<uint16_t>(d.where)).kind,
							 engine.queue(engine.lane(static_cast<uint16_t>(d.where)).queue).name);
	}
	return text.len > 0 ? text.data : nullptr;
}

bool load_or_count(Db &db, CountResult *result)
{
	if (!try_become_loader(db))
		return false;
	*result = count_journal(db);
	give_up_loader(db);
	return true;
}

void ensure_loaded(Db &db)
{
	const Micros until = steady_now() + guc::load_timeout * Micros{1000};
	while (db.load_state.load() != static_cast<uint32>(LoadState::loaded))
	{
		CountResult result{};
		if (db.scheduler.load() == 0 && load_or_count(db, &result))
			return;
		if (steady_now() >= until)
			ereport(ERROR, (errcode(kErrNotLoaded), errmsg("the queues of this database are not loaded yet"),
							errdetail("After a restart the live state is read from the journal; until then jobs can be enqueued only."),
							errhint("Try again in a moment, or see tq_health().")));
		static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 5, PG_WAIT_EXTENSION));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void request_reload(Db &db) noexcept
{
	db.outside_changed_at.store(wall_now());
	db.outside_changes.fetch_add(1);
	db.reload.store(true);
	wake_scheduler(db);
}

void request_reload() noexcept
{
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
			request_reload(db_at(i));
}

bool copy_is_coming(const Db &db) noexcept
{
	return db.dormant.load() && db.outside_changes.load() != 0 && restore_may_be_under_way(db);
}

bool restore_may_be_under_way(const Db &db) noexcept
{
	constexpr Micros kRestore = 600 * Micros{1000000}; // after the last sign of one
	const Micros since = db.outside_changed_at.load();
	const Micros now = wall_now();
	return db.outside_changes.load() != db.outside_adopted.load() || (since <= now && now < since + kRestore);
}

} // namespace tq::live
