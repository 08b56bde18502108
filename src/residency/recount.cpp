#include "residency/recount.hpp"

#include "guc.hpp"
#include "database/attach.hpp"
#include "queues/queue_rows.hpp"
#include "residency/loader.hpp"
#include "residency/tally.hpp"
#include "segments/segments.hpp"
#include "shmem/leases.hpp"
#include "transaction/counting.hpp"
#include "pg/attempt.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

// Whether this process still loads the database. If not, the database was released during the load, and its slot has
// another one.
bool is_loader(const Db &db) noexcept { return db.loader.load() == my_proc + 1; }

// Of src/dependencies, which this folder may not include: see set_orphan_counter.
int64 (*count_orphans)(Db &db, const JobId *ids, int64 n) = nullptr;

// Takes the count's snapshot while no commit callback is half-way: callbacks hold the map lock shared. A change
// published later is added to the deltas if the snapshot does not see its transaction. If the snapshot sees it, and it
// is published after the count has ended, it changes no counter (counting_of). GetLatestSnapshot may be called here,
// because it does not allocate (after the first use below) and waits only for ProcArrayLock.
//
// Lists the segments under the same lock. Otherwise a segment finished in between would be left out, although the
// snapshot sees its jobs unfinished and their ends are in the deltas.
pg_noinline Snapshot begin_count(Db &db, const Tally &t, journal::Segment *tables, int *slots, int *n)
{
	static_cast<void>(GetLatestSnapshot());
	const TransactionId own = GetTopTransactionIdIfAny();
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	Snapshot s = GetLatestSnapshot();
	note_count_snapshot(db, s, own);
	for (int i = 0; i < db.nsegments; ++i)
		segment_at(db, i).delta.store(0);
	for (uint32 i = 0; i < engine.lane_slots(); ++i)
	{
		Lane &l = engine.lane(static_cast<uint16_t>(i));
		t.frees[i] = l.frees;
		if (l.used && engine.queue(l.queue).db == index_of(db))
		{
			l.count.delta = 0; // no commit callback writes it, because the map lock is exclusive
			l.delta_blocked = 0;
			t.changes[i] = l.delayed_changes;
			if (db.load_state.load() != static_cast<uint32>(LoadState::loaded))
			{
				l.delayed_disk = 0; // the first load counts again what was published before
				l.delayed_counted = true;
			}
		}
	}
	*n = live_segments_locked(db, tables, slots, guc::max_segments);
	db.counting = true;
	LWLockRelease(map_lock(db));
	return s;
}

// Queue lock held. Keeps running loads and searches of the queue from raising watermarks: lowers each watermark to its
// own value, which sets the limit of the load. Later loads are not affected.
void void_loads(Queue &q) noexcept
{
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
		if (engine.lane(l).loader != kNil)
			engine.lower_watermark(q, engine.lane(l), engine.lane(l).watermark, INT64_MAX);
	for (Ref r = q.group_loads > 0 ? q.groups_head : kNil; r != kNil; r = engine.group(r).next)
		if (engine.group(r).loader != kNil)
			engine.lower_group_watermark(q, r, engine.group(r).watermark, INT64_MAX);
	if (q.discovering.load())
		engine.want_discovery(q);
}

// No commit callback publishes the rows of a segment that was damaged and can be read again. A running loader may have
// listed its segments and taken its snapshot before the count, so it must not raise watermarks past jobs that the count
// takes to be on disk. Later loads see all rows.
void void_loads(const Db &db) noexcept
{
	const uint16_t d = index_of(db);
	for_queues(db, [d](uint16_t queue, Queue &q) {
		lock_queue(queue);
		if (q.state != core::QueueState::free && q.db == d)
			void_loads(q);
		unlock_queue(queue);
	});
	if (db.timer_loader.load() != 0)
		engine.lower_timer_watermark(d, engine.db(d).timer_watermark.load());
}

void compare(Tally &t, Drift::Counter counter, int where, int64 was, int64 is) noexcept
{
	// The snapshot may see commits that have not published yet. They change at most this many jobs, so a smaller
	// difference is no drift.
	if (t.first || std::abs(was - is) <= std::max<int64>(t.db->committing.load(), 0))
		return;
	if (t.result.drifted < static_cast<int64>(lengthof(t.result.drifts)))
		t.result.drifts[t.result.drifted] = Drift{counter, where, was, is};
	++t.result.drifted;
}

// The counts of the segment in a slot.
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
	for (uint32 i = 0; i < engine.lane_slots(); ++i)
	{
		Lane &l = engine.lane(static_cast<uint16_t>(i));
		if (!l.used || engine.queue(l.queue).db != index_of(db))
			continue;
		if (l.frees != t.frees[i])
			continue; // the pass counted a lane of another queue that was freed since
		if (t.partial && !t.first)
		{
			l.count.delta = l.delta_blocked = 0;
			continue; // the counts of the first load stay
		}
		const int64 is = t.lanes[i] + l.count.delta;
		compare(t, Drift::unfinished, static_cast<int>(i), l.count.live, is);
		l.count.live = is;
		l.count.delta = 0; // an idle lane has no delta
		const int32 waiting = static_cast<int32>(t.blocked[i]) + l.delta_blocked;
		compare(t, Drift::blocked, static_cast<int>(i), l.blocked, waiting);
		l.blocked = waiting;
		l.delta_blocked = 0;
		// The pass saw some delayed jobs before a change and others after. So its number is right only if none changed.
		// Evictions and loads change it without the map lock.
		lock_queue(l.queue);
		l.delayed_counted = t.first || l.delayed_changes == t.changes[i];
		if (!t.first && l.delayed_counted)
			l.delayed_disk = t.delayed[i];
		unlock_queue(l.queue);
	}
	for (int i = 0; i < db.nsegments; ++i)
	{
		SegmentSlot &s = segment_at(db, i);
		const SegmentTally &met = segments[i];
		if (!met.read || met.number != s.number)
			continue; // the slot has another segment now, which the pass did not read
		const int64 is = met.live + s.delta.load();
		compare(t, Drift::of_segment, s.number, s.live.load(), is);
		s.live.store(is);
		int64 unknown = 0; // the value of a segment that was not read
		if (t.first)
		{
			if (dead_known(s.dead.load())) // a verb may have reopened it
				s.dead.store(met.dead);
			// Transactions outside the snapshot may have drawn ids; without them an open segment would look empty.
			s.rows.store(std::max(met.rows, s.rows.load()));
		}
		else
			static_cast<void>(s.rows.compare_exchange_strong(unknown, met.rows));
	}
	keep_count_snapshot(db);
	db.counting = false;
	if (t.first)
	{
		if (server_crashed() && !db.new_here.load()) // no job of a new database was there at the crash
			for_queues(db, [](uint16_t, Queue &q) { q.careful.store(true); });
		db.load_state.store(static_cast<uint32>(LoadState::loaded));
		db.too_small.store(false);
		db.load_failed.store(false);
	}
	LWLockRelease(map_lock(db));
}

// Reads a segment; false if it is damaged.
bool read_segment(Tally &t, const journal::Segment &tables, Snapshot snapshot, journal::SegmentVisit visitor,
				  journal::SegmentSummary *sum)
{
	ErrorData *error = nullptr;
	const auto scan = [&] {
		*sum = journal::scan_segment(tables, snapshot, true, visitor, &t, false);
		return true;
	};
	if (attempt_read(scan, &error) != Tried::failed)
		return true;
	t.partial = true;
	mark_damaged(*t.db, t.slot, *error);
	return false;
}

void visit_nothing(const journal::Candidate &, const journal::Fold &, const journal::Values &, void *) {}

// Counts one segment. Marks a damaged one, and keeps what was read of it. Loads leave it out until it is known to be
// whole, so it is read before anything in memory follows from its jobs.
void count_segment(Tally &t, const journal::Segment &tables, Snapshot snapshot, SegmentTally *segment)
{
	SegmentSlot &s = segment_at(*t.db, t.slot);
	const int64 missing = t.result.missing;
	journal::SegmentSummary sum{};
	const bool was_damaged = s.damaged.load();
	t.segment_live = t.segment_dead = 0;
	if (was_damaged)
	{
		if (!read_segment(t, tables, snapshot, visit_nothing, &sum))
			return;
		int64 low = 0, high = 0; // unknown if its first page was damaged when it was mapped
		if (journal::segment_bounds(tables, &low, &high))
			widen_segment(*t.db, t.slot, tables, low, high);
		s.damaged.store(false);
		void_loads(*t.db);
	}
	const bool read = read_segment(t, tables, snapshot, tally_job, &sum);
	if (was_damaged)
		t.regained += t.result.missing - missing;
	if (read)
		*segment = SegmentTally{true, tables.number, sum.rows, t.segment_live, t.segment_dead};
}

void stop_count(int, Datum arg)
{
	Db &db = *reinterpret_cast<Db *>(DatumGetPointer(arg));
	if (!is_loader(db))
		return;
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	db.counting = false;
	for (uint32 i = 0; i < engine.lane_slots(); ++i)
	{
		Lane &l = engine.lane(static_cast<uint16_t>(i));
		if (l.used && engine.queue(l.queue).db == index_of(db))
			l.count.delta = l.delta_blocked = 0;
	}
	LWLockRelease(map_lock(db));
	engine.note_on_disk(index_of(db), wall_now());
	if (db.load_state.load() != static_cast<uint32>(LoadState::loaded))
		db.load_failed.store(true);
	give_up_loader(db);
}

} // namespace

bool try_become_loader(Db &db) noexcept
{
	uint32 none = 0;
	return db.loader.compare_exchange_strong(none, my_proc + 1);
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
	t.context = CurrentMemoryContext;
	t.next_expiry = core::kNever;
	const Micros began = steady_now();
	if (t.first)
	{
		db.load_began.store(wall_now());
		db.load_read.store(0);
	}
	PG_ENSURE_ERROR_CLEANUP(stop_count, PointerGetDatum(&db));
	{
		TQ_WAIT_POINT("count-before-begin");
		const auto max = static_cast<Size>(guc::max_segments);
		t.lanes = static_cast<int64 *>(palloc0(sizeof(int64) * engine.lane_slots()));
		t.delayed = static_cast<int64 *>(palloc0(sizeof(int64) * engine.lane_slots()));
		t.blocked = static_cast<int64 *>(palloc0(sizeof(int64) * engine.lane_slots()));
		t.changes = static_cast<uint32 *>(palloc0(sizeof(uint32) * engine.lane_slots()));
		t.frees = static_cast<uint32 *>(palloc0(sizeof(uint32) * engine.lane_slots()));
		auto *tables = static_cast<journal::Segment *>(palloc(sizeof(journal::Segment) * max));
		auto *slots = static_cast<int *>(palloc(sizeof(int) * max));
		auto *segments = static_cast<SegmentTally *>(palloc0(sizeof(SegmentTally) * max));
		read_queues(db, nullptr);
		if (t.first)
			start_leases(db);
		TQ_WAIT_POINT("count-before-snapshot");
		engine.db(index_of(db)).disk_expiry.store(core::kNever); // jobs that go to disk from now on lower it
		int n = 0;
		Snapshot snapshot = RegisterSnapshot(begin_count(db, t, tables, slots, &n));
		snapshot->curcid = FirstCommandId; // own changes are counted when they commit
		TQ_WAIT_POINT("count-after-snapshot");
		if (!t.first)
			void_loads(db);
		for (int i = 0; i < n; ++i)
		{
			t.slot = slots[i];
			count_segment(t, tables[i], snapshot, &segments[t.slot]);
			if (t.first)
				db.load_read.store(i + 1);
			TQ_WAIT_POINT("load-between-segments");
		}
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("count-before-end");
		if (!is_loader(db))
			ereport(ERROR, (errcode(kErrNotLoaded), errmsg("tq was deactivated in this database during the load")));
		end_count(db, t, segments);
		for (const JobId id : t.must)
			static_cast<void>(fetch_job(db, id, false));
		// Memory may have been full for some of them.
		engine.note_on_disk(index_of(db), t.overdue > 0 ? wall_now() : t.next_expiry);
		t.result.orphans = count_orphans(db, t.waiting.begin(), t.waiting.n);
	}
	PG_END_ENSURE_ERROR_CLEANUP(stop_count, PointerGetDatum(&db));
	if (t.first)
	{
		db.loads.fetch_add(1);
		db.loaded_at.store(wall_now());
		db.load_took.store(steady_now() - began);
		ereport(LOG_SERVER_ONLY,
				(errmsg("tq: loaded %lld unfinished of %lld jobs in %lld ms",
						static_cast<long long>(t.result.unfinished), static_cast<long long>(t.result.jobs),
						static_cast<long long>(db.load_took.load() / 1000))));
	}
	else
		db.audits.fetch_add(1);
	db.drifted.fetch_add(t.result.drifted);
	db.lost_found.fetch_add(t.result.missing - t.regained);
	db.regained.fetch_add(t.regained);
	db.counted_at.store(wall_now());
	const Micros ended = steady_now();
	db.rested_at.store(ended + 10 * (ended - began)); // audits for expired jobs then take a tenth of the time
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
		appendStringInfo(&text, "%s" INT64_FORMAT " %s jobs instead of " INT64_FORMAT, i > 0 ? ", " : "", d.was, what,
						 d.is);
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

void set_orphan_counter(int64 (*count)(Db &db, const JobId *ids, int64 n)) { count_orphans = count; }

void register_loader()
{
	set_loader([](Db &db) {
		CountResult result{};
		return load_or_count(db, &result);
	});
}

} // namespace tq
