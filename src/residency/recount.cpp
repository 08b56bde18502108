#include "residency/recount.hpp"

#include "guc.hpp"
#include "database/attach.hpp"
#include "queues/lanes.hpp"
#include "queues/queue_names.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"
#include "shmem/leases.hpp"
#include "transaction/counting.hpp"
#include "pg/array.hpp"
#include "pg/attempt.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

// Of src/dependencies, which this folder may not include: see set_orphan_counter.
int64 (*count_orphans)(Db &db, const JobId *ids, int64 n) = nullptr;

// The counts of one pass over the journal, in private memory.
struct Tally
{
	Db *db;
	bool first;		 // first load: entries are made
	int64 *lanes;	 // unfinished jobs by lane
	int64 *delayed;	 // of them: delayed, without an entry
	int64 *blocked;	 // of them: waiting for their parents
	uint32 *changes; // Lane::delayed_changes when the count began
	uint32 *frees;	 // Lane::frees when the count began
	int64 segment_live;
	int64 segment_dead;
	int slot;		 // of the segment being read
	bool partial;	 // a segment could not be read
	int64 regained;	 // jobs missing in memory, of segments that can be read again
	int naps;		 // that waited for commit callbacks
	CountResult result;
	// Later counts: jobs that must be in memory but are not, allocated in `context`.
	MemoryContext context;
	pg::Array<JobId> must;
	int overdue;		// of them: have expired on disk
	Micros next_expiry; // of the jobs that stay on disk
	pg::Array<JobId> waiting;
	// The lane of the last row, which neighbours mostly share.
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
	t.lane = lane_for(t.queue, c.has_kind ? c.kind : nullptr, Make::must);
	const Lane &l = engine.lane(t.lane);
	if (l.frees == t.frees[t.lane])
		return;
	// The lane is newer than the count and has the slot of a freed lane. Its deltas include all its jobs.
	t.lanes[t.lane] = t.delayed[t.lane] = t.blocked[t.lane] = 0;
	t.changes[t.lane] = l.delayed_changes;
	t.frees[t.lane] = l.frees;
}

// Whether this job without an entry may be on disk by a watermark. A job that is due belongs to the timers until their
// watermark has passed it, so it counts as delayed here.
bool on_disk_by_right(const Tally &t, const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	Micros due = core::kNever;
	const bool timed = state_of(c, fold, PG_INT64_MIN, &due) == State::delayed;
	lock_queue(t.queue);
	const Queue &q = engine.queue(t.queue);
	const Ref group = c.has_group ? engine.group_for(engine.queue(t.queue), c.group, false) : kNil;
	const core::DbCore &db = engine.db(index_of(*t.db));
	const bool yes = (timed && due >= std::min(db.timer_watermark.load(), db.timer_skipped.load())) ||
					 !engine.covered_by_watermark(q, engine.lane(t.lane), c.group_key(), group, Key{c.priority, c.id});
	unlock_queue(t.queue);
	return yes;
}

// A count waits for commit callbacks at most so often, 10 s.
constexpr int kMostNaps = 200;

// For later counts: whether an unfinished job without an entry is rightly on disk. If not, it ended since the count's
// snapshot, or memory lost it: fetch_job() asks the journal again and reads the job in. If many are missing (rows
// written by hand), or the id is not found, lowers the watermark to the job instead, and the loader reads its lane.
bool vouched_for(Tally &t, const journal::Candidate &c, const journal::Fold &fold)
{
	constexpr int64 kOneByOne = 100;
	const uint16_t d = index_of(*t.db);
	// The count may see a job before the commit callback has published it. A callback may be delayed for long.
	for (;; ++t.naps)
	{
		uint16_t q = 0;
		const bool committing = t.db->committing.load() > 0;
		if (engine.find(d, c.id, &q) != kNil || on_disk_by_right(t, c, fold) || engine.find(d, c.id, &q) != kNil)
			return true;
		if (!committing || t.naps >= kMostNaps)
			break;
		nap(50);
	}
	if (t.result.missing < kOneByOne)
	{
		const FetchedJob p = fetch_job(*t.db, c.id, false);
		const bool was_read = p.result == Fetch::found && p.row.id == c.id;
		// It has ended, has an entry, or is being read. If the row was read, it had no entry.
		if (p.result != Fetch::no_room && p.result != Fetch::absent)
			return !was_read || on_disk_by_right(t, p.row, p.fold);
	}
	Micros due = core::kNever;
	const State to = state_of(c, fold, wall_now(), &due);
	lock_queue(t.queue);
	Queue &of = engine.queue(t.queue);
	// The queue may have been dropped meanwhile.
	const bool there = of.state != core::QueueState::free && of.db == d && of.id == c.queue_id;
	if (there && to == State::delayed)
		engine.lower_timer_watermark(d, due);
	else if (there)
		engine.lower_job_watermark(of, engine.lane(t.lane), c.group_key(), kNil, Key{c.priority, c.id});
	unlock_queue(t.queue);
	return !there;
}

// Whether a delayed job is on disk by the timers' watermark.
bool waits_on_disk(const Tally &t, const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	uint16_t q = 0;
	Micros due = core::kNever;
	const uint16_t d = index_of(*t.db);
	return state_of(c, fold, PG_INT64_MIN, &due) == State::delayed && due >= engine.db(d).timer_watermark.load() &&
		   engine.find(d, c.id, &q) == kNil;
}

// Running jobs and overrides have entries at any watermark. Those of a segment that was damaged have none yet.
void remember_must(Tally &t, JobId id)
{
	uint16_t q = 0;
	if (engine.find(index_of(*t.db), id, &q) != kNil)
		return;
	t.must.append(t.context, id);
}

// Jobs that have expired on disk are read in, for the scheduler to end. No watermark brings them while their queue is
// paused, or others come first. At most this many at a time, because they need memory.
constexpr int kMostOverdue = 10000;

void look_for_expiry(Tally &t, const journal::Candidate &c, const journal::Fold &fold)
{
	const TimestampTz expires_at = fold.expires_at(c.expires_at);
	uint16_t q = 0;
	if (fold.attempt != 0 || expires_at == journal::kNoTime || engine.find(index_of(*t.db), c.id, &q) != kNil)
		return;
	if (is_overdue(fold.attempt, expires_at, wall_now()) && t.overdue < kMostOverdue)
	{
		++t.overdue;
		t.must.append(t.context, c.id);
	}
	else
		t.next_expiry = std::min<Micros>(t.next_expiry, expires_at);
}

void visit(const journal::Candidate &c, const journal::Fold &fold, const journal::Values &, void *arg)
{
	Tally &t = *static_cast<Tally *>(arg);
	++t.result.jobs;
	if (fold.terminal())
	{
		t.segment_dead += fold.dead();
		return;
	}
	find_lane_of(t, c);
	if (t.queue == kNoQueue)
	{
		++t.result.unknown;
		++t.segment_live;
		return;
	}
	const bool blocked = waits_for_parents(c, fold);
	++t.result.unfinished;
	++t.lanes[t.lane];
	t.blocked[t.lane] += blocked;
	if (blocked)
		t.waiting.append(t.context, c.id);
	++t.segment_live;
	if (!t.first)
	{
		if (!blocked && !vouched_for(t, c, fold))
			++t.result.missing;
		t.delayed[t.lane] += waits_on_disk(t, c, fold);
		if (!blocked && (fold.state == journal::FoldState::running || fold.has_override || (fold.held && c.has_group)))
			remember_must(t, c.id);
		else if (!blocked)
			look_for_expiry(t, c, fold);
		return;
	}
	// A running job must be in memory, so evicts any lane or group. Retries if another process takes the entry.
	const JobRead job{.c = c,
					  .fold = fold,
					  .slot = t.slot,
					  .queue = t.queue,
					  .lane = t.lane,
					  .ref = kNil,
					  .source = Source::first_load};
	for (int tries = 0;; ++tries)
	{
		const Installed placed = install_job(*t.db, job);
		if (placed != Installed::no_room && placed != Installed::no_slot)
			break;
		const bool freed = placed == Installed::no_slot ? evict_group_slot() : evict_entries(8) > 0;
		if (tries > 1000 || !freed)
		{
			t.db->too_small.store(true);
			ereport(
				ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg(
					 "tq.max_live_jobs (%d) or tq.max_groups (%d) is too small for the running jobs of this database",
					 guc::max_live_jobs, guc::max_groups),
				 errhint("Raise it and restart the server.")));
		}
	}
}

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
		l.delayed_counted = t.first || l.delayed_changes == t.changes[i];
		if (!t.first && l.delayed_counted)
			l.delayed_disk = t.delayed[i];
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
	const bool read = read_segment(t, tables, snapshot, visit, &sum);
	if (was_damaged)
		t.regained += t.result.missing - missing;
	if (read)
		*segment = SegmentTally{true, tables.number, sum.rows, t.segment_live, t.segment_dead};
}

void stop_count(int, Datum arg)
{
	Db &db = *reinterpret_cast<Db *>(DatumGetPointer(arg));
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
		end_count(db, t, segments);
		for (const JobId id : t.must)
			static_cast<void>(fetch_job(db, id, false));
		engine.note_on_disk(index_of(db), t.overdue > 0 ? wall_now() : t.next_expiry); // some may not have found room
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
