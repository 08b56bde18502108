// Reading in the jobs of groups: each by its own index and watermark; and finding groups that have jobs on disk and no slot.
// Regime: PG; may ereport. Locks: queue locks, briefly.
#include "live/attach.hpp"
#include "live/loading.hpp"

namespace tq::live
{

namespace
{

// The next jobs of a group, from a key on, that have not ended by the snapshot; at most `want`. What has ended by then, or waits for its parents, need not be asked
// again: whoever gives it a new life, or frees it, gives it an entry or sinks the watermark. Returns how many; *reached: up to where all were seen.
int read_group(const LoadSegments &segments, uint16_t queue, const char *key, Key from, int want, LoadItem *items, Key *reached)
{
	constexpr int kAtOnce = 256;
	constexpr int kMost = 16 * kAtOnce; // then others have their turn
	Snapshot snapshot = committed_snapshot();
	journal::LaneCursor *cursor = journal::group_cursor_open(segments.tables, segments.n, engine.queue(queue).id, key,
															 from.priority, from.id, snapshot);
	auto *batch = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * kAtOnce));
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
			if (!folds[i].terminal() && !waits_for_parents(batch[i].c, folds[i]))
				items[n++] = LoadItem{batch[i].c, queue, core::kNoLane, kNil};
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

// The four steps for the next jobs of a group: as refill_lane, with the group's own index and watermark. `guard` knows what to take back.
// By itself, or newer compilers take its variables for ones that a longjmp to its caller might clobber.
pg_noinline int load_group(Db &db, LoadGuard &guard)
{
	const uint16_t queue = guard.queue;
	const Ref r = guard.group;
	Queue &q = engine.queue(queue);
	const core::Group &g = engine.group(r);
	lock_queue(queue);
	if (!engine.owns(q, r) || g.loader != kNil || g.watermark == core::kMaxKey)
	{
		unlock_queue(queue);
		return 0;
	}
	const Key from = engine.start_group_load(q, r, my_proc);
	char key[core::kGroupMax];
	strlcpy(key, g.key, sizeof(key));
	const uint32 waiting = g.ready.size + (g.head != kNil), most = engine.group_cap();
	const auto want = static_cast<int>(std::clamp<uint32>(most > waiting ? most - waiting : 1, 1, kLoadBatch));
	unlock_queue(queue);

	guard.items = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * static_cast<Size>(want)));
	const LoadSegments segments = segments_to_load(db);
	Key reached = from;
	const int n = read_group(segments, queue, key, from, want, guard.items, &reached);
	TQ_WAIT_POINT("group-refill-after-snapshot");

	if (engine.free_entries() < engine.reserve() + n)
		make_room(db, n, core::kNoLane);
	lock_queue(queue);
	int taken = 0;
	for (; taken < n; ++taken)
	{
		LoadItem &it = guard.items[taken];
		const Key at{it.c.priority, it.c.id};
		Ref existing = kNil;
		// memory may be full of this group's later jobs, which nobody can claim before this one
		do
			it.ref = engine.insert(q, it.lane, it.c.id, it.c.priority, State::placeholder, my_proc, false, &existing, r);
		while (it.ref == kNil && existing == kNil && engine.evict_from_group(q, r, at, my_proc));
		// a group with nothing to give may use what is kept for pins, so that it goes on at all
		const bool starved = taken == 0 && engine.offers_nothing(g) && engine.free_entries() > engine.reserve() / 2 &&
							 !core::Engine::holds_back(q, engine.lane(it.lane), at);
		if (it.ref == kNil && existing == kNil && starved)
			it.ref = engine.insert(q, it.lane, it.c.id, it.c.priority, State::placeholder, my_proc, true, &existing, r);
		if (it.ref == kNil && existing == kNil)
			break; // no room
	}
	unlock_queue(queue);
	if (taken < n)
		reached = Key{guard.items[taken].c.priority, guard.items[taken].c.id};
	guard.n = taken;
	TQ_WAIT_POINT("group-refill-before-settle");
	const int made = settle_load(db, segments, guard.items, taken, Source::lane);
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
	return made;
}

int refill_group(Db &db, uint16_t queue, Ref r)
{
	int made = 0;
	LoadGuard guard{&db, nullptr, 0, queue, core::kNoLane, r};
	PG_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	made = load_group(db, guard);
	PG_END_ENSURE_ERROR_CLEANUP(clean_up_load, PointerGetDatum(&guard));
	db.refilled.fetch_add(made, std::memory_order_relaxed);
	return made;
}

void stop_discovery(int, Datum arg)
{
	Queue &q = engine.queue(DatumGetUInt16(arg));
	q.discover.store(true);
	q.discovering.store(false);
}

// The last group that a search for a queue's groups has dealt with before it ended for want of slots: the next search begins with the one
// after it, so that each has its turn. The scheduler's own, by queue.
struct Discovery
{
	char key[core::kGroupMax];
	uint32 generation;
};

Discovery &discovery_of(uint16_t queue)
{
	static Discovery *discoveries = nullptr;
	if (discoveries == nullptr)
		discoveries = static_cast<Discovery *>(MemoryContextAllocZero(TopMemoryContext, sizeof(Discovery) * engine.limits().queues));
	return discoveries[queue];
}

bool has_unfinished(const LoadSegments &segments, uint16_t queue, const char *key)
{
	LoadItem first;
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
	const LoadSegments segments = segments_to_load(db);
	Discovery &last = discovery_of(queue);
	char key[core::kGroupMax] = "", begin[core::kGroupMax] = "", done[core::kGroupMax] = "";
	if (last.generation == q.generation)
		strlcpy(begin, last.key, sizeof(begin));
	strlcpy(done, begin, sizeof(done));
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
		{
			strlcpy(done, key, sizeof(done));
			continue;
		}
		lock_queue(queue);
		Ref g = engine.group_for(q, key, true);
		if (g == kNil)
		{
			unlock_queue(queue);
			const bool taken = take_slot(q);
			lock_queue(queue);
			g = taken ? engine.group_for(q, key, true) : kNil;
		}
		room = g != kNil;
		if (room)
		{
			engine.sink_group(q, g, core::kMinKey);
			strlcpy(done, key, sizeof(done));
		}
		unlock_queue(queue);
		CHECK_FOR_INTERRUPTS();
	}
	TQ_WAIT_POINT("groups-before-found");
	if (!room)
	{
		strlcpy(last.key, done, sizeof(last.key));
		last.generation = q.generation;
	}
	pfree(segments.tables);
	pfree(segments.slots);
	return room;
}

void discover_groups(Db &db, uint16_t queue)
{
	Queue &q = engine.queue(queue);
	// one that is paused would only take the slots from others
	if (!q.discover.load() || q.paused_until != 0 || gives_way(q) || (!engine.has_free_group() && !may_take_slots(q)) ||
		q.discovering.exchange(true))
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

} // namespace

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

} // namespace tq::live
