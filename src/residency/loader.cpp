#include "residency/loader.hpp"

#include "guc.hpp"
#include "queues/lanes.hpp"
#include "residency/load_batch.hpp"
#include "residency/skipped.hpp"
#include "segments/segments.hpp"

namespace tq
{

namespace
{

// A job moved to segment 0 is found twice while its old segment exists. Keeps the row of segment 0, and returns true if
// `c` is the second row found. Items are in (priority, id) order, so the two are neighbours.
bool merge_copy(const LoadSegments &segments, LoadItem *items, int n, const journal::Candidate &c)
{
	if (n == 0 || items[n - 1].c.id != c.id)
		return false;
	if (segments.tables[c.segment].number == 0)
		items[n - 1].c = c;
	return true;
}

// Leaves a due job on disk to its lane when memory is full. It no longer counts as delayed on disk, unless the timers
// found it at an outdated time. Not inlined: g++ would warn that a longjmp to refill_timers might clobber its locals.
pg_noinline void leave_to_lane(const LoadSegments &segments, const LoadItem &it)
{
	journal::Fold fold;
	Snapshot snapshot = committed_snapshot();
	journal::fold_seen_jobs(segments.tables[it.c.segment], &it.c.id, 1, snapshot, &fold);
	UnregisterSnapshot(snapshot);
	Micros due = core::kNever;
	if (!fold.terminal() && waits_for_parents(it.c, fold))
		return;
	const bool its_own = !fold.terminal() && state_of(it.c, fold, 0, &due) == State::delayed && due == it.c.due;
	lock_queue(it.queue);
	Lane &l = engine.lane(it.lane);
	engine.lower_job_watermark(engine.queue(it.queue), l, it.c.group_key(), kNil, Key{it.c.priority, it.c.id});
	if (its_own && l.delayed_disk > 0)
		l.count_delayed(-1);
	unlock_queue(it.queue);
}

} // namespace

Snapshot committed_snapshot()
{
	Snapshot s = RegisterSnapshot(GetLatestSnapshot());
	s->curcid = FirstCommandId; // hides own changes; this copy of the snapshot may be modified
	return s;
}

namespace
{

// Inserts a placeholder for the next job of a lane. If memory is full, evicts later jobs of the same lane, which cannot
// be claimed before this one. If nothing can be evicted, a lane without a ready job may use half of the reserve for one
// job (`first`: this load has made no placeholder yet).
Ref into_memory(Db &db, Queue &q, uint16_t lane, const journal::Candidate &c, bool first, Ref *existing) noexcept
{
	Lane &l = engine.lane(lane);
	Ref ref = engine.insert(q,
		{.lane = lane, .id = c.id, .priority = c.priority, .state = State::placeholder}, my_proc, existing);
	while (ref == kNil && *existing == kNil && engine.evict_ready(q, l, Key{c.priority, c.id}, my_proc))
	{
		db.evicted.fetch_add(1, std::memory_order_relaxed);
		ref = engine.insert(q,
			{.lane = lane, .id = c.id, .priority = c.priority, .state = State::placeholder}, my_proc, existing);
	}
	if (ref == kNil && *existing == kNil && first && !l.in_startable && engine.free_entries() > engine.reserve() / 2)
		ref = engine.insert(q,
			{.lane = lane, .id = c.id, .priority = c.priority,
			 .state = State::placeholder, .reserve = true}, my_proc, existing);
	return ref;
}

} // namespace

int refill_lane(Db &db, uint16_t queue, uint16_t lane, int want)
{
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	Lane &l = engine.lane(lane);
	if (!l.used || l.queue != queue || l.loader != kNil || l.watermark == core::kMaxKey)
	{
		unlock_queue(queue);
		return 0;
	}
	l.loader = my_proc;
	l.limit = core::kMaxKey;
	const Key from = l.watermark, resume = l.resume;
	journal::Passed passed{l.floor, resume.priority, resume.id, nullptr};
	char kind[core::kNameMax];
	const bool has_kind = l.has_kind;
	strlcpy(kind, l.kind, sizeof(kind));
	const int32 queue_id = q.id;
	unlock_queue(queue);

	int made = 0;
	LoadGuard guard{&db, nullptr, 0, queue, lane, kNil};
	PG_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	{
		guard.items = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * static_cast<Size>(want)));
		const LoadSegments segments = segments_to_load(db);
		Snapshot snapshot = committed_snapshot();
		auto *last = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(std::max(segments.n, 1))));
		last_ids(db, segments.tables, segments.slots, segments.n, last);
		passed.last_ids = last;
		journal::LaneCursor *cursor = journal::lane_cursor_open({.segments = segments.tables,
																 .nsegments = segments.n,
																 .queue_id = queue_id,
																 .name = has_kind ? kind : nullptr,
																 .from_priority = from.priority,
																 .from_id = from.id,
																 .passed = from < resume ? &passed : nullptr},
																snapshot);
		int n = 0;
		bool more = false;
		journal::Candidate c;
		while ((more = journal::lane_cursor_next(cursor, &c)))
		{
			if (merge_copy(segments, guard.items, n, c))
				continue;
			if (n == want)
				break;
			guard.items[n++] = LoadItem{c, queue, lane, kNil};
		}
		pfree(last);
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("refill-after-snapshot");

		lock_queue(queue);
		int taken = 0;
		bool first = true;
		for (; still_loads(l) && taken < n; ++taken)
		{
			LoadItem &it = guard.items[taken];
			Ref existing = kNil;
			it.ref = into_memory(db, q, lane, it.c, first, &existing);
			if (it.ref == kNil && existing == kNil)
				break; // memory is full
			first = first && it.ref == kNil;
		}
		unlock_queue(queue);
		const bool exhausted = !more && taken == n;
		// The end of the range read; a job without memory stays on disk.
		const Key reached = exhausted	 ? core::kMaxKey
							: taken < n	 ? Key{guard.items[taken].c.priority, guard.items[taken].c.id}
							: n > 0		 ? Key{guard.items[n - 1].c.priority, guard.items[n - 1].c.id + 1}
										 : from;
		guard.n = taken;
		TQ_WAIT_POINT("refill-before-install");
		made = finish_load_batch(db, segments, guard.items, taken, Source::lane);
		guard.n = 0;
		TQ_WAIT_POINT("refill-before-raise");
		const bool *skipped = journal::lane_cursor_skipped(cursor);
		lock_queue(queue);
		if (still_loads(l))
		{
			if (skipped != nullptr)
				engine.skip(l, from);
			engine.raise_watermark(q, l, reached);
			l.tail = exhausted && l.watermark != core::kMaxKey; // all was read, but a new job has set the limit
			l.loader = kNil;
			if (engine.runs_dry(q, l))
				q.want_refill.store(true);
		}
		unlock_queue(queue);
		guard.lane = core::kNoLane;
		note_skipped(db, segments, skipped);
		journal::lane_cursor_close(cursor);
		pfree(guard.items);
		pfree(segments.tables);
		pfree(segments.slots);
	}
	PG_END_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	db.refilled.fetch_add(made, std::memory_order_relaxed);
	return made;
}

namespace
{

// The last lane handled, if a queue had too many dry lanes for one pass. Local to this process.
struct LastLane
{
	uint32 generation;
	uint16_t queue;
	uint16_t lane;
};
LastLane last_lanes[64];

// Queue lock held. Lists at most `most` dry lanes (Engine::runs_dry): first those after the lane where the last pass
// stopped, then those up to it, so that each gets a turn.
int dry_lanes(const Queue &q, uint16_t queue, uint16_t *lanes, int most) noexcept
{
	LastLane &last = last_lanes[queue % lengthof(last_lanes)];
	const bool goes_on = last.queue == queue && last.generation == q.generation;
	const uint16_t after = goes_on ? last.lane : core::kNoLane;
	int n = 0;
	bool all = true;
	for (const bool behind : {true, false})
	{
		bool passed = after == core::kNoLane;
		for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
		{
			if (passed == behind && engine.runs_dry(q, engine.lane(l)))
			{
				all = n < most;
				if (!all)
					break;
				lanes[n++] = l;
			}
			passed = passed || l == after;
		}
		if (!all)
			break;
	}
	last = LastLane{q.generation, queue, all ? core::kNoLane : lanes[n - 1]};
	return n;
}

} // namespace

void ask_again(Db &db, uint16_t queue) noexcept
{
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	if (q.state != core::QueueState::free && q.db == index_of(db))
	{
		for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
			if (engine.runs_dry(q, engine.lane(l)))
			{
				q.want_refill.store(true);
				db.refill.store(true);
			}
		engine.want_groups_again(q);
		if (q.want_refill.load()) // if it was already set, no call above sets db.refill
			db.refill.store(true);
	}
	unlock_queue(queue);
}

bool memory_available() noexcept { return engine.free_entries() > engine.reserve(); }

int refill(Db &db, bool *starved, Between between)
{
	int made = 0;
	const uint16_t d = index_of(db);
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto queue = static_cast<uint16_t>(i);
		Queue &q = engine.queue(queue);
		if (q.state == core::QueueState::free || q.db != d || !q.want_refill.exchange(false))
			continue;
		uint16_t lanes[256];
		lock_queue(queue);
		const int n = dry_lanes(q, queue, lanes, static_cast<int>(lengthof(lanes)));
		unlock_queue(queue);
		made += refill_groups(db, queue, between);
		for (int k = 0; k < n; ++k)
		{
			const int most = std::clamp(static_cast<int>(engine.limits().entries / 8), 2, kLoadBatch);
			const int fits = free_entries_for(most, Asker{queue, lanes[k], false});
			const Lane &l = engine.lane(lanes[k]);
			lock_queue(queue);
			const bool empty = !l.in_startable, exchanges = engine.has_later(l);
			unlock_queue(queue);
			const bool may_use_reserve = empty && engine.free_entries() > engine.reserve() / 2;
			// A lane that has later jobs in memory evicts them for earlier ones.
			const int want = exchanges ? most : fits == 0 && may_use_reserve ? 1 : fits;
			const int got = want > 0 ? refill_lane(db, queue, lanes[k], want) : 0;
			made += got;
			if (between != nullptr)
				between(db);
			// An empty lane that got no job waits for memory.
			if (starved != nullptr && got == 0 && empty && !memory_available())
				*starved = true;
			if (got > 0 && !db.refill.load())
			{
				lock_queue(queue);
				if (q.state != core::QueueState::free && engine.runs_dry(q, engine.lane(lanes[k])))
				{
					q.want_refill.store(true);
					db.refill.store(true);
				}
				unlock_queue(queue);
			}
		}
	}
	return made;
}

int refill_timers(Db &db, bool *starved, Between between)
{
	const uint16_t d = index_of(db);
	const Micros horizon = wall_now() + guc::timer_horizon * core::kSecond;
	if (engine.db(d).timer_watermark.load() > horizon)
		return 0;
	// One process at a time: start_timer_load resets the limit, which another load would still need.
	uint32 none = 0;
	if (!db.timer_loader.compare_exchange_strong(none, my_proc + 1))
		return 0;
	const Micros from = engine.start_timer_load(d);
	int made = 0;
	LoadGuard guard{&db, nullptr, 0, 0, core::kNoLane, kNil, true};
	PG_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	{
		const int want = std::clamp(static_cast<int>(engine.limits().entries / 16), 2, kTimerBatch);
		guard.items = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * static_cast<Size>(want)));
		const LoadSegments segments = segments_to_load(db);
		Snapshot snapshot = committed_snapshot();
		journal::TimerCursor *cursor = journal::timer_cursor_open(segments.tables, segments.n, from, snapshot);
		Micros reached = from; // all jobs due before it are in memory
		bool more = true; // the cursor may have more jobs
		bool fits = true; // no job that is due later was left on disk
		int seen = 0;
		// Reads all jobs due at the first time, because the next run would start with them again.
		while (more && fits && (seen < 8 * kLoadBatch || reached == from))
		{
			int n = 0;
			journal::Candidate c;
			Micros last = reached;
			while (n < want && (more = journal::timer_cursor_next(cursor, &c)))
			{
				last = c.due;
				if (c.due > horizon)
					break;
				const uint16_t queue = queue_of_id(db, c.queue_id);
				if (queue == kNoQueue || merge_copy(segments, guard.items, n, c))
					continue;
				// The index has ended jobs, too. A kind without a lane has no others.
				if (const uint16_t lane = lane_for(queue, c.has_kind ? c.kind : nullptr, Make::never);
					lane != core::kNoLane)
					guard.items[n++] = LoadItem{c, queue, lane, kNil};
			}
			const bool beyond = more && last > horizon;
			guard.n = n;
			int taken = 0;
			for (; taken < n; ++taken)
			{
				LoadItem &it = guard.items[taken];
				Queue &q = engine.queue(it.queue);
				Ref existing = kNil;
				lock_queue(it.queue);
				if (q.state == core::QueueState::free || q.db != d || q.id != it.c.queue_id)
				{
					unlock_queue(it.queue); // the queue was dropped meanwhile
					continue;
				}
				const Ref group =
					it.c.has_group && engine.spares_slot(q, it.c.group) ? engine.group_for(q, it.c.group, true) : kNil;
				if (!it.c.has_group || group != kNil)
					it.ref = engine.insert(q,
						{.lane = it.lane, .id = it.c.id, .priority = it.c.priority,
						 .state = State::placeholder, .group = group}, my_proc, &existing);
				unlock_queue(it.queue);
				if (it.ref == kNil && existing == kNil)
					break;
			}
			guard.n = taken;
			TQ_WAIT_POINT("timers-before-install");
			made += finish_load_batch(db, segments, guard.items, taken, Source::timer);
			guard.n = 0;
			seen += n;
			// If memory is full: a job that is already due needs no entry here, because its lane reads it in. The first
			// later job stays on disk.
			const Micros now = wall_now();
			for (; taken < n && guard.items[taken].c.due <= now; ++taken)
				leave_to_lane(segments, guard.items[taken]);
			fits = taken == n;
			if (!fits)
				reached = guard.items[taken].c.due;
			else
				reached = more ? last : core::kNever;
			if (beyond)
				break;
			if (between != nullptr)
				between(db);
		}
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("timers-before-raise");
		const bool *skipped = journal::timer_cursor_skipped(cursor);
		if (skipped != nullptr)
			core::lower(engine.db(d).timer_skipped, from);
		// If the watermark fell below `from` meanwhile, the next run starts there.
		engine.raise_timer_watermark(d, from, reached);
		if (starved != nullptr)
			*starved = !fits;
		note_skipped(db, segments, skipped);
		journal::timer_cursor_close(cursor);
		guard.timers = false;
		db.timer_loader.store(0);
		pfree(guard.items);
		pfree(segments.tables);
		pfree(segments.slots);
	}
	PG_END_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	db.refilled.fetch_add(made, std::memory_order_relaxed);
	return made;
}

} // namespace tq
