#include "live/loader.hpp"

#include "guc.hpp"
#include "live/attach.hpp"
#include "live/loading.hpp"
#include "live/segments.hpp"

namespace tq::live
{

namespace
{

// A job that was moved to segment 0 is met twice while its old segment lives; only the copy counts. Items come in (priority, id)
// order, so copies are neighbours.
bool merge_copy(const LoadSegments &segments, LoadItem *items, int n, const journal::Candidate &c)
{
	if (n == 0 || items[n - 1].c.id != c.id)
		return false;
	if (segments.tables[c.segment].number == 0)
		items[n - 1].c = c;
	return true;
}

// A job that is due but finds no room is its lane's now, on disk: no longer one of the delayed ones there, unless it was found at a time
// that is not its own any more.
void leave_to_lane(const LoadSegments &segments, const LoadItem &it)
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
	engine.sink_job(engine.queue(it.queue), l, it.c.group_key(), kNil, Key{it.c.priority, it.c.id});
	if (its_own && l.delayed_disk > 0)
		l.count_delayed(-1);
	unlock_queue(it.queue);
}

} // namespace

Snapshot committed_snapshot()
{
	Snapshot s = RegisterSnapshot(GetLatestSnapshot());
	s->curcid = FirstCommandId; // the copy is ours
	return s;
}

namespace
{

// A placeholder for the next job of a lane. Memory may be full of younger jobs of this very lane, which nobody can claim before this
// one; and if it is full of what must stay there, a lane that has nothing to give may use half of what is kept
// for pins.
Ref into_memory(Queue &q, uint16_t lane, const journal::Candidate &c, bool first, Ref *existing) noexcept
{
	Lane &l = engine.lane(lane);
	Ref ref = kNil;
	do
		ref = engine.insert(q, lane, c.id, c.priority, State::placeholder, my_proc, false, existing);
	while (ref == kNil && *existing == kNil && engine.evict_ready(q, l, Key{c.priority, c.id}, my_proc));
	if (ref == kNil && *existing == kNil && first && !l.in_startable && engine.free_entries() > engine.reserve() / 2)
		ref = engine.insert(q, lane, c.id, c.priority, State::placeholder, my_proc, true, existing);
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
	const Key from = l.watermark;
	char kind[core::kNameMax];
	const bool has_kind = l.has_kind;
	strlcpy(kind, l.kind, sizeof(kind));
	const int32 queue_id = q.id;
	unlock_queue(queue);

	int made = 0;
	const Size room = static_cast<Size>(want) + 1;
	LoadGuard guard{&db, nullptr, 0, queue, lane, kNil};
	PG_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	{
		guard.items = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * room));
		const LoadSegments segments = segments_to_load(db);
		Snapshot snapshot = committed_snapshot();
		journal::LaneCursor *cursor = journal::lane_cursor_open(segments.tables, segments.n, queue_id,
																has_kind ? kind : nullptr, from.priority, from.id, snapshot);
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
		journal::lane_cursor_close(cursor);
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("refill-after-snapshot");

		lock_queue(queue);
		int taken = 0;
		bool first = true;
		for (; taken < n; ++taken)
		{
			LoadItem &it = guard.items[taken];
			Ref existing = kNil;
			it.ref = into_memory(q, lane, it.c, first, &existing);
			if (it.ref == kNil && existing == kNil)
				break; // no room
			first = first && it.ref == kNil;
		}
		unlock_queue(queue);
		const bool exhausted = !more && taken == n;
		// up to where it looked; a key that found no room stays on disk
		const Key reached = exhausted	 ? core::kMaxKey
							: taken < n	 ? Key{guard.items[taken].c.priority, guard.items[taken].c.id}
							: n > 0		 ? Key{guard.items[n - 1].c.priority, guard.items[n - 1].c.id + 1}
										 : from;
		guard.n = taken;
		TQ_WAIT_POINT("refill-before-settle");
		made = settle_load(db, segments, guard.items, taken, Source::lane);
		guard.n = 0;
		TQ_WAIT_POINT("refill-before-raise");
		lock_queue(queue);
		engine.raise(q, l, reached);
		l.tail = exhausted && l.watermark != core::kMaxKey;
		l.loader = kNil;
		if (engine.runs_dry(q, l))
			q.want_refill.store(true);
		unlock_queue(queue);
		guard.lane = core::kNoLane;
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

// Where the last pass over a queue's dry lanes ended, if there were more of them than it takes. This process's own.
struct LastLane
{
	uint32 generation;
	uint16_t queue;
	uint16_t lane;
};
LastLane last_lanes[64];

// The lanes that run dry, at most `most`: first those after where the last pass ended, so that none waits for ever. Queue lock held.
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
		if (q.want_refill.load()) // whoever asks again does not ring
			db.refill.store(true);
	}
	unlock_queue(queue);
}

bool room_in_memory() noexcept { return engine.free_entries() > engine.reserve(); }

int refill(Db &db, bool *starved)
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
		made += refill_groups(db, queue);
		for (int k = 0; k < n; ++k)
		{
			const int want = std::clamp(static_cast<int>(engine.limits().entries / 8), 2, kLoadBatch);
			if (engine.free_entries() < want + want / 4)
				make_room(db, want, lanes[k]);
			const bool full = !room_in_memory();
			const int got = refill_lane(db, queue, lanes[k], want);
			made += got;
			// a lane that could take nothing waits for room
			if (starved != nullptr && got == 0 && (full || !room_in_memory()))
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

int refill_timers(Db &db, bool *starved)
{
	const uint16_t d = index_of(db);
	const Micros horizon = wall_now() + guc::timer_horizon * Micros{1000000};
	if (engine.db(d).timer_watermark.load() > horizon)
		return 0;
	// only one at a time: to begin is to forget what was sunk while another one reads
	uint32 nobody = 0;
	if (!db.timer_loader.compare_exchange_strong(nobody, my_proc + 1))
		return 0;
	const Micros from = engine.start_timer_load(d);
	int made = 0;
	LoadGuard guard{&db, nullptr, 0, 0, core::kNoLane, kNil, true};
	PG_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	{
		const int want = std::clamp(static_cast<int>(engine.limits().entries / 16), 2, kLoadBatch);
		guard.items = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * static_cast<Size>(want)));
		const LoadSegments segments = segments_to_load(db);
		Snapshot snapshot = committed_snapshot();
		journal::TimerCursor *cursor = journal::timer_cursor_open(segments.tables, segments.n, from, snapshot);
		Micros reached = from; // everything due before it is vouched for
		bool more = true, room = true;
		int seen = 0;
		// as many as are due at one time, since the next run would begin with them again
		while (more && room && (seen < 8 * kLoadBatch || reached == from))
		{
			int n = 0;
			journal::Candidate c;
			Micros last = reached;
			while (n < want && (more = journal::timer_cursor_next(cursor, &c)))
			{
				if (c.due > horizon)
				{
					last = c.due;
					break;
				}
				last = c.due;
				const uint16_t queue = queue_of_id(db, c.queue_id);
				if (queue == kNoQueue || merge_copy(segments, guard.items, n, c))
					continue;
				guard.items[n++] = LoadItem{c, queue, lane_for(queue, c.has_kind ? c.kind : nullptr), kNil};
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
				const Ref group = it.c.has_group && engine.spares_slot(q, it.c.group) ? engine.group_for(q, it.c.group, true) : kNil;
				if (!it.c.has_group || group != kNil)
					it.ref = engine.insert(q, it.lane, it.c.id, it.c.priority, State::placeholder, my_proc, false, &existing, group);
				unlock_queue(it.queue);
				if (it.ref == kNil && existing == kNil)
					break;
			}
			guard.n = taken;
			TQ_WAIT_POINT("timers-before-settle");
			made += settle_load(db, segments, guard.items, taken, Source::timer);
			guard.n = 0;
			seen += n;
			if (taken < n)
			{
				// What is due already needs no room here: its lane fetches it. The first one that does stays on disk.
				const Micros now = wall_now();
				for (; taken < n && guard.items[taken].c.due <= now; ++taken)
					leave_to_lane(segments, guard.items[taken]);
				if (taken < n)
				{
					reached = guard.items[taken].c.due;
					room = false;
				}
				else
					reached = last;
			}
			else
				reached = !more ? core::kNever : last;
			if (beyond)
				break;
		}
		journal::timer_cursor_close(cursor);
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("timers-before-raise");
		engine.raise_timer(d, from, reached); // sunk below `from` meanwhile: the next run begins there
		if (starved != nullptr)
			*starved = !room;
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

} // namespace tq::live
