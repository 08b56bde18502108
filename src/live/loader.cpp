#include "live/loader.hpp"

#include "guc.hpp"
#include "live/attach.hpp"
#include "live/segments.hpp"

namespace tq::live
{

namespace
{

constexpr int kBatch = 2000;

struct Item
{
	journal::Candidate c;
	uint16_t queue;
	uint16_t lane;
	Ref ref;
};

// What a loader must take back if it is stopped by an error or by the end of its process.
struct Guard
{
	Db *db;
	Item *items;
	int n;
	uint16_t queue; // of the lane or group below
	uint16_t lane;	// kNoLane if none
	Ref group = kNil;
};

// Queue lock held. The queue may have been dropped meanwhile.
bool still_loads(Ref group, uint16_t queue) noexcept
{
	const core::Group &g = engine.group(group);
	return engine.owns(engine.queue(queue), group) && g.loader == my_proc;
}

void clean_up(int, Datum arg)
{
	auto *g = reinterpret_cast<Guard *>(DatumGetPointer(arg));
	for (int i = 0; i < g->n; ++i)
		if (g->items[i].ref != kNil)
			drop_placeholder(*g->db, g->items[i].queue, g->items[i].ref, true);
	if (g->lane != core::kNoLane)
	{
		lock_queue(g->queue);
		engine.lane(g->lane).loader = kNil;
		unlock_queue(g->queue);
	}
	if (g->group != kNil)
	{
		lock_queue(g->queue);
		if (still_loads(g->group, g->queue))
			engine.end_group_load(engine.queue(g->queue), g->group, true);
		unlock_queue(g->queue);
	}
}

struct Segments
{
	journal::Segment *tables;
	int *slots;
	int n;
};

Segments segments_now(const Db &db)
{
	Segments s{};
	const auto max = static_cast<Size>(guc::max_segments);
	s.tables = static_cast<journal::Segment *>(palloc(sizeof(journal::Segment) * max));
	s.slots = static_cast<int *>(palloc(sizeof(int) * max));
	s.n = live_segments(db, s.tables, s.slots, guc::max_segments);
	return s;
}

// A job that was moved to segment 0 is met twice while its old segment lives; only the copy counts. Items come in (priority, id)
// order, so copies are neighbours.
bool merge_copy(const Segments &segments, Item *items, int n, const journal::Candidate &c)
{
	if (n == 0 || items[n - 1].c.id != c.id)
		return false;
	if (segments.tables[c.segment].number == 0)
		items[n - 1].c = c;
	return true;
}

// Step 3 for a batch, segment by segment: folds[i] for each item that has a placeholder.
journal::Fold *ask_journal(const Segments &segments, const Item *items, int n, Snapshot snapshot)
{
	auto *folds = static_cast<journal::Fold *>(palloc(sizeof(journal::Fold) * static_cast<Size>(n)));
	auto *ids = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(n)));
	auto *some = static_cast<journal::Fold *>(palloc(sizeof(journal::Fold) * static_cast<Size>(n)));
	auto *from = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(n)));
	for (int s = 0; s < segments.n; ++s)
	{
		int k = 0;
		for (int i = 0; i < n; ++i)
			if (items[i].ref != kNil && items[i].c.segment == s)
			{
				ids[k] = items[i].c.id;
				from[k++] = i;
			}
		if (k > 0)
			journal::fold_jobs(segments.tables[s], ids, k, snapshot, some);
		while (k-- > 0)
			folds[from[k]] = some[k];
	}
	pfree(from);
	pfree(some);
	pfree(ids);
	return folds;
}

// Steps 3 and 4 for a batch: ask the journal with a new snapshot, then make entries.
int settle(Db &db, const Segments &segments, Item *items, int n, Source source)
{
	if (n == 0)
		return 0;
	int made = 0;
	Snapshot snapshot = committed_snapshot();
	journal::Fold *folds = ask_journal(segments, items, n, snapshot);
	UnregisterSnapshot(snapshot);
	for (int i = 0; i < n; ++i)
	{
		Item &it = items[i];
		if (it.ref == kNil)
			continue;
		const journal::Fold &fold = folds[i];
		const Ref ref = it.ref;
		it.ref = kNil; // from here on it cannot fail
		if (fold.terminal())
			drop_placeholder(db, it.queue, ref, false);
		else if (source == Source::timer)
		{
			Micros due = core::kNever;
			const State to = state_of(it.c, fold, 0, &due);
			// an index entry that is not the job's time any more: it goes where the journal says it is
			const bool stale = to == State::running || due != it.c.due;
			made += place_job(db, it.c, segments.slots[it.c.segment], fold, it.queue, it.lane, ref,
							  stale ? Source::stale_timer : source) == Place::in_memory;
		}
		else
			made += place_job(db, it.c, segments.slots[it.c.segment], fold, it.queue, it.lane, ref, source) ==
					Place::in_memory;
		if ((i & 255) == 0)
			CHECK_FOR_INTERRUPTS();
	}
	pfree(folds);
	return made;
}

// A job that is due but finds no room is its lane's now, on disk: no longer one of the delayed ones there, unless it was found at a time
// that is not its own any more.
void leave_to_lane(const Segments &segments, const Item &it)
{
	journal::Fold fold;
	Snapshot snapshot = committed_snapshot();
	journal::fold_job(segments.tables[it.c.segment], it.c.id, snapshot, &fold);
	UnregisterSnapshot(snapshot);
	Micros due = core::kNever;
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
	Guard guard{&db, nullptr, 0, queue, lane, kNil};
	PG_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
	{
		guard.items = static_cast<Item *>(palloc(sizeof(Item) * room));
		const Segments segments = segments_now(db);
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
			guard.items[n++] = Item{c, queue, lane, kNil};
		}
		journal::lane_cursor_close(cursor);
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("refill-after-snapshot");

		lock_queue(queue);
		int taken = 0;
		bool first = true;
		for (; taken < n; ++taken)
		{
			Item &it = guard.items[taken];
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
		made = settle(db, segments, guard.items, taken, Source::lane);
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
	PG_END_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
	db.refilled.fetch_add(made, std::memory_order_relaxed);
	return made;
}

namespace
{

// The next jobs of a group, from a key on, that have not ended by the snapshot; at most `want`. What has ended by then need not be asked
// again: whoever gives it a new life gives it an entry as well. Returns how many; *reached: up to where all were seen.
int read_group(const Segments &segments, uint16_t queue, const char *key, Key from, int want, Item *items, Key *reached)
{
	constexpr int kAtOnce = 256;
	constexpr int kMost = 16 * kAtOnce; // then others have their turn
	Snapshot snapshot = committed_snapshot();
	journal::LaneCursor *cursor = journal::group_cursor_open(segments.tables, segments.n, engine.queue(queue).id, key,
															 from.priority, from.id, snapshot);
	auto *batch = static_cast<Item *>(palloc(sizeof(Item) * kAtOnce));
	int n = 0;
	bool more = true;
	*reached = from;
	for (int seen = 0; more && n < want && seen < kMost;)
	{
		int k = 0;
		while (k < kAtOnce && (more = journal::lane_cursor_next(cursor, &batch[k].c)))
			batch[k++].ref = 0; // to be asked about
		seen += k;
		if (k == 0)
			break;
		journal::Fold *folds = ask_journal(segments, batch, k, snapshot);
		int i = 0;
		for (; i < k && n < want; ++i)
			if (!folds[i].terminal())
				items[n++] = Item{batch[i].c, queue, core::kNoLane, kNil};
		*reached = i < k ? Key{batch[i].c.priority, batch[i].c.id} : Key{batch[k - 1].c.priority, batch[k - 1].c.id + 1};
		more = more || i < k;
		pfree(folds);
	}
	if (!more)
		*reached = core::kMaxKey;
	pfree(batch);
	journal::lane_cursor_close(cursor);
	UnregisterSnapshot(snapshot);
	for (int i = 0; i < n; ++i)
		items[i].lane = lane_for(queue, items[i].c.has_kind ? items[i].c.kind : nullptr);
	return n;
}

// Reads the next jobs of a group: as refill_lane, with the group's own index and watermark.
int refill_group(Db &db, uint16_t queue, Ref r)
{
	Queue &q = engine.queue(queue);
	core::Group &g = engine.group(r);
	lock_queue(queue);
	if (!engine.owns(q, r) || g.loader != kNil || g.watermark == core::kMaxKey)
	{
		unlock_queue(queue);
		return 0;
	}
	const Key from = engine.start_group_load(q, r, my_proc);
	char key[core::kGroupMax];
	strlcpy(key, g.key, sizeof(key));
	const int want = static_cast<int>(std::clamp<uint32>(engine.group_cap(), 2, kBatch));
	unlock_queue(queue);

	int made = 0;
	Guard guard{&db, nullptr, 0, queue, core::kNoLane, r};
	PG_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
	{
		guard.items = static_cast<Item *>(palloc(sizeof(Item) * static_cast<Size>(want)));
		const Segments segments = segments_now(db);
		Key reached = from;
		const int n = read_group(segments, queue, key, from, want, guard.items, &reached);
		TQ_WAIT_POINT("group-refill-after-snapshot");

		if (engine.free_entries() < engine.reserve() + n)
			make_room(db, n, core::kNoLane);
		lock_queue(queue);
		int taken = 0;
		for (; taken < n; ++taken)
		{
			Item &it = guard.items[taken];
			Ref existing = kNil;
			// a group with nothing in memory may use what is kept for pins, so that it goes on at all
			const bool starved = taken == 0 && g.ready.size == 0 && g.head == kNil && engine.free_entries() > engine.reserve() / 2;
			it.ref = engine.insert(q, it.lane, it.c.id, it.c.priority, State::placeholder, my_proc, starved, &existing, r);
			if (it.ref == kNil && existing == kNil)
				break; // no room
		}
		unlock_queue(queue);
		if (taken < n)
			reached = Key{guard.items[taken].c.priority, guard.items[taken].c.id};
		guard.n = taken;
		TQ_WAIT_POINT("group-refill-before-settle");
		made = settle(db, segments, guard.items, taken, Source::lane);
		guard.n = 0;
		TQ_WAIT_POINT("group-refill-before-raise");
		lock_queue(queue);
		if (still_loads(r, queue))
		{
			engine.raise_group(q, r, reached);
			engine.end_group_load(q, r, taken == n);
		}
		guard.group = kNil;
		unlock_queue(queue);
		pfree(guard.items);
		pfree(segments.tables);
		pfree(segments.slots);
	}
	PG_END_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
	db.refilled.fetch_add(made, std::memory_order_relaxed);
	return made;
}

void stop_discovery(int, Datum arg)
{
	Queue &q = engine.queue(DatumGetUInt16(arg));
	q.discover.store(true);
	q.discovering.store(false);
}

// Where the last search for a queue's groups ended for want of slots. The scheduler's own.
struct Discovery
{
	char key[core::kGroupMax];
	uint32 generation;
	uint16_t queue;
};
Discovery discoveries[32];

bool has_unfinished(const Segments &segments, uint16_t queue, const char *key)
{
	Item first;
	Key from = core::kMinKey, reached;
	for (;;)
	{
		if (read_group(segments, queue, key, from, 1, &first, &reached) > 0)
			return true;
		if (reached == core::kMaxKey)
			return false;
		from = reached;
	}
}

// Gives a slot to groups that have jobs on disk and none, by their keys; false if there are no more slots. While it runs, groups that get
// one elsewhere are known to be incomplete.
bool find_groups(Db &db, uint16_t queue)
{
	Queue &q = engine.queue(queue);
	const Segments segments = segments_now(db);
	Discovery &last = discoveries[queue % lengthof(discoveries)];
	char key[core::kGroupMax] = "", begin[core::kGroupMax] = "";
	if (last.queue == queue && last.generation == q.generation)
		strlcpy(begin, last.key, sizeof(begin));
	last = Discovery{};
	strlcpy(key, begin, sizeof(key));
	bool room = true, wrapped = begin[0] == '\0';
	for (const char *after = wrapped ? nullptr : key; room; after = key)
	{
		Snapshot snapshot = committed_snapshot();
		bool found = journal::next_group(segments.tables, segments.n, q.id, after, snapshot, key);
		if (!found && !wrapped) // now those up to where it began
		{
			wrapped = true;
			found = journal::next_group(segments.tables, segments.n, q.id, nullptr, snapshot, key);
		}
		UnregisterSnapshot(snapshot);
		if (!found || (wrapped && begin[0] != '\0' && strcmp(key, begin) > 0))
			break;
		lock_queue(queue);
		const bool known = engine.group_for(q, key, false) != kNil;
		unlock_queue(queue);
		if (known || !has_unfinished(segments, queue, key))
			continue;
		lock_queue(queue);
		const Ref g = engine.group_for(q, key, true);
		room = g != kNil;
		if (room)
			engine.sink_group(q, g, core::kMinKey);
		unlock_queue(queue);
		CHECK_FOR_INTERRUPTS();
	}
	if (!room)
	{
		strlcpy(last.key, key, sizeof(last.key));
		last.queue = queue;
		last.generation = q.generation;
	}
	pfree(segments.tables);
	pfree(segments.slots);
	return room;
}

void discover_groups(Db &db, uint16_t queue)
{
	Queue &q = engine.queue(queue);
	if (!q.discover.load() || !engine.has_free_group() || q.discovering.exchange(true))
		return;
	q.discover.store(false);
	bool all = false;
	PG_ENSURE_ERROR_CLEANUP(stop_discovery, UInt16GetDatum(queue));
	all = find_groups(db, queue);
	PG_END_ENSURE_ERROR_CLEANUP(stop_discovery, UInt16GetDatum(queue));
	if (!all)
		q.discover.store(true); // the next sweep tries again
	q.discovering.store(false);
}

int refill_groups(Db &db, uint16_t queue)
{
	Queue &q = engine.queue(queue);
	int made = 0;
	discover_groups(db, queue);
	for (int n = 0; n < 1000; ++n)
	{
		lock_queue(queue);
		const Ref r = q.state != core::QueueState::free ? engine.take_wanted(q) : kNil;
		unlock_queue(queue);
		if (r == kNil)
			return made;
		made += refill_group(db, queue, r);
		CHECK_FOR_INTERRUPTS();
	}
	q.want_refill.store(true); // others' turn first
	db.refill.store(true);
	return made;
}

} // namespace

int refill(Db &db)
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
		int n = 0;
		lock_queue(queue);
		for (uint16_t l = q.lanes; l != core::kNoLane && n < static_cast<int>(lengthof(lanes)); l = engine.lane(l).next)
			if (engine.runs_dry(q, engine.lane(l)))
				lanes[n++] = l;
		unlock_queue(queue);
		made += refill_groups(db, queue);
		for (int k = 0; k < n; ++k)
		{
			const int want = std::clamp(static_cast<int>(engine.limits().entries / 8), 2, kBatch);
			if (engine.free_entries() < want + want / 4)
				make_room(db, want, lanes[k]);
			const int got = refill_lane(db, queue, lanes[k], want);
			made += got;
			// a lane that could take nothing waits for room; finishing jobs or the next cycle bring it back
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

int refill_timers(Db &db)
{
	const uint16_t d = index_of(db);
	const Micros horizon = wall_now() + guc::timer_horizon * Micros{1000000};
	if (engine.db(d).timer_watermark.load() > horizon)
		return 0;
	const Micros from = engine.start_timer_load(d);
	int made = 0;
	Guard guard{&db, nullptr, 0, 0, core::kNoLane, kNil};
	PG_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
	{
		const int want = std::clamp(static_cast<int>(engine.limits().entries / 16), 2, kBatch);
		guard.items = static_cast<Item *>(palloc(sizeof(Item) * static_cast<Size>(want)));
		const Segments segments = segments_now(db);
		Snapshot snapshot = committed_snapshot();
		journal::TimerCursor *cursor = journal::timer_cursor_open(segments.tables, segments.n, from, snapshot);
		Micros reached = from; // everything due before it is vouched for
		bool more = true, room = true;
		int seen = 0;
		// as many as are due at one time, since the next run would begin with them again
		while (more && room && (seen < 8 * kBatch || reached == from))
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
				guard.items[n++] = Item{c, queue, lane_for(queue, c.has_kind ? c.kind : nullptr), kNil};
			}
			const bool beyond = more && last > horizon;
			guard.n = n;
			int taken = 0;
			for (; taken < n; ++taken)
			{
				Item &it = guard.items[taken];
				Queue &q = engine.queue(it.queue);
				Ref existing = kNil;
				lock_queue(it.queue);
				const Ref group = it.c.has_group ? engine.group_for(q, it.c.group, true) : kNil;
				if (!it.c.has_group || group != kNil)
					it.ref = engine.insert(q, it.lane, it.c.id, it.c.priority, State::placeholder, my_proc, false, &existing, group);
				unlock_queue(it.queue);
				if (it.ref == kNil && existing == kNil)
					break;
			}
			guard.n = taken;
			made += settle(db, segments, guard.items, taken, Source::timer);
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
		pfree(guard.items);
		pfree(segments.tables);
		pfree(segments.slots);
	}
	PG_END_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
	db.refilled.fetch_add(made, std::memory_order_relaxed);
	return made;
}

} // namespace tq::live
