// Reads in jobs of groups, each by its own index and watermark. Finds groups with jobs on disk and no slot.
// Regime: PG; may ereport. Locks: queue locks, briefly.
#include "queues/lanes.hpp"
#include "residency/load_batch.hpp"
#include "segments/segments.hpp"

namespace tq
{

namespace
{

struct GroupRead
{
	uint16_t queue;
	const char *key;
	Key from;
	JobId floor = 0;
	int want;
	bool locked = false;
};

// Reads at most `want` jobs of a group that have not ended by the snapshot, from `from` on, and moves that to the key
// up to which it saw all. Returns how many. Ended and blocked jobs need no second check: a transaction that revives or
// frees one gives it an entry or lowers the watermark. A locked segment may have earlier jobs, and a group keeps its
// order, so in that case it reads nothing and sets `locked`.
int read_group(const Db &db, const LoadSegments &segments, GroupRead *read, LoadItem *items)
{
	constexpr int kAtOnce = 256;
	constexpr int kMost = 16 * kAtOnce; // then other groups follow
	Snapshot snapshot = committed_snapshot();
	auto *last = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(std::max(segments.n, 1))));
	last_ids(db, segments.tables, segments.slots, segments.n, last);
	const journal::Passed passed{read->floor, core::kMaxKey.priority, core::kMaxKey.id, last};
	journal::LaneCursor *cursor = journal::lane_cursor_open({.segments = segments.tables,
															 .nsegments = segments.n,
															 .queue_id = engine.queue(read->queue).id,
															 .name = read->key,
															 .of_group = true,
															 .from_priority = read->from.priority,
															 .from_id = read->from.id,
															 .passed = &passed},
															snapshot);
	pfree(last);
	auto *batch = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * kAtOnce));
	int n = 0;
	bool more = true;
	Key reached = read->from;
	for (int seen = 0; more && n < read->want && seen < kMost;)
	{
		int k = 0;
		while (k < kAtOnce && (more = journal::lane_cursor_next(cursor, &batch[k].c)))
			batch[k++].ref = 0; // any value except kNil makes ask_journal read it
		seen += k;
		if (k == 0)
			break;
		journal::Fold *folds = ask_journal(segments, batch, k, snapshot);
		int i = 0;
		for (; i < k && n < read->want; ++i)
			if (!folds[i].terminal() && !waits_for_parents(batch[i].c, folds[i]))
				items[n++] = LoadItem{batch[i].c, read->queue, core::kNoLane, kNil};
		reached = i < k ? Key{batch[i].c.priority, batch[i].c.id} : Key{batch[k - 1].c.priority, batch[k - 1].c.id + 1};
		more = more || i < k;
		pfree(folds);
	}
	if (!more)
		reached = core::kMaxKey;
	read->locked = journal::lane_cursor_skipped(cursor) != nullptr;
	if (read->locked)
		n = 0;
	else
		read->from = reached;
	pfree(batch);
	journal::lane_cursor_close(cursor);
	UnregisterSnapshot(snapshot);
	for (int i = 0; i < n; ++i)
		items[i].lane = lane_for(read->queue, items[i].c.has_kind ? items[i].c.kind : nullptr, Make::must);
	return n;
}

// The four steps of R12 for a group, with its own index and watermark. `guard` records what to undo.
// Not inlined: newer compilers would warn that a longjmp to its caller might clobber its variables.
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
	char key[core::kGroupMax];
	strlcpy(key, g.key, sizeof(key));
	const uint32 waiting = g.ready.size + (g.head != kNil), most = engine.group_cap();
	GroupRead read{.queue = queue,
				   .key = key,
				   .from = engine.start_group_load(q, r, my_proc),
				   .floor = g.floor,
				   .want = static_cast<int>(std::clamp<uint32>(most > waiting ? most - waiting : 1, 1, kLoadBatch))};
	unlock_queue(queue);

	guard.items = static_cast<LoadItem *>(palloc(sizeof(LoadItem) * static_cast<Size>(read.want)));
	const LoadSegments segments = segments_to_load(db);
	const int n = read_group(db, segments, &read, guard.items);
	TQ_WAIT_POINT("group-refill-after-snapshot");

	free_entries_for(n, Asker{queue, core::kNoLane, true});
	lock_queue(queue);
	const bool ours = still_loads(r, queue);
	int taken = 0;
	for (; ours && taken < n; ++taken)
	{
		LoadItem &it = guard.items[taken];
		const Key at{it.c.priority, it.c.id};
		Ref existing = kNil;
		// Memory may hold later jobs of this group, which cannot be claimed before this one.
		do
			it.ref = engine.insert(q,
				{.lane = it.lane, .id = it.c.id, .priority = it.c.priority,
				 .state = State::placeholder, .group = r}, my_proc, &existing);
		while (it.ref == kNil && existing == kNil && engine.evict_from_group(q, r, at, my_proc));
		// A group without a job to offer may use the reserve for pins.
		const bool starved = taken == 0 && engine.offers_nothing(g) && engine.free_entries() > engine.reserve() / 2 &&
							 !core::Engine::holds_back(q, engine.lane(it.lane), at);
		if (it.ref == kNil && existing == kNil && starved)
			it.ref = engine.insert(q,
				{.lane = it.lane, .id = it.c.id, .priority = it.c.priority,
				 .state = State::placeholder, .reserve = true, .group = r}, my_proc, &existing);
		if (it.ref == kNil && existing == kNil)
			break; // memory is full
	}
	unlock_queue(queue);
	if (taken < n)
		read.from = Key{guard.items[taken].c.priority, guard.items[taken].c.id};
	guard.n = taken;
	TQ_WAIT_POINT("group-refill-before-install");
	const int made = finish_load_batch(db, segments, guard.items, taken, Source::lane);
	guard.n = 0;
	TQ_WAIT_POINT("group-refill-before-raise");
	lock_queue(queue);
	if (still_loads(r, queue))
	{
		engine.raise_group(q, r, read.from);
		engine.end_group_load(q, r, taken == n && !read.locked);
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

// By queue, the last group that a search handled before it ran out of slots. The next search starts after it, so that
// each group gets a slot in turn. Local to the scheduler.
struct Discovery
{
	char key[core::kGroupMax];
	uint32 generation;
};

Discovery &discovery_of(uint16_t queue)
{
	static Discovery *discoveries = nullptr;
	if (discoveries == nullptr)
		discoveries = static_cast<Discovery *>(
			MemoryContextAllocZero(TopMemoryContext, sizeof(Discovery) * engine.limits().queues));
	return discoveries[queue];
}

bool has_unfinished(const Db &db, const LoadSegments &segments, uint16_t queue, const char *key)
{
	LoadItem first;
	GroupRead read{.queue = queue, .key = key, .from = core::kMinKey, .want = 1};
	while (read.from != core::kMaxKey)
		if (read_group(db, segments, &read, &first) > 0 || read.locked)
			return true;
	return false;
}

// Gives slots to groups that have jobs on disk and no slot, by key; false if no slots are left. While it runs, groups
// that get a slot elsewhere count as incomplete.
bool find_groups(Db &db, uint16_t queue, Between between)
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
	bool complete = true, wrapped = begin[0] == '\0';
	for (const char *after = wrapped ? nullptr : key; complete; after = key)
	{
		if (between != nullptr)
			between(db);
		CHECK_FOR_INTERRUPTS();
		Snapshot snapshot = committed_snapshot();
		journal::NextGroup next = journal::next_group(segments.tables, segments.n, q.id, after, snapshot);
		if (!next.found && !wrapped && !next.locked) // continue with the keys up to where it began
		{
			wrapped = true;
			next = journal::next_group(segments.tables, segments.n, q.id, nullptr, snapshot);
		}
		UnregisterSnapshot(snapshot);
		strlcpy(key, next.key, sizeof(key));
		if (next.locked)
			complete = false;
		if (next.locked || !next.found || (wrapped && begin[0] != '\0' && strcmp(key, begin) > 0))
			break;
		lock_queue(queue);
		const bool known = engine.group_for(q, key, false) != kNil;
		unlock_queue(queue);
		if (known || !has_unfinished(db, segments, queue, key))
		{
			strlcpy(done, key, sizeof(done));
			continue;
		}
		lock_queue(queue);
		Ref g = engine.group_for(q, key, true);
		if (g == kNil)
		{
			unlock_queue(queue);
			const bool taken = take_group_slot(q);
			lock_queue(queue);
			g = taken ? engine.group_for(q, key, true, true) : kNil;
		}
		complete = g != kNil;
		if (complete)
		{
			engine.lower_group_watermark(q, g, core::kMinKey);
			strlcpy(done, key, sizeof(done));
		}
		unlock_queue(queue);
	}
	TQ_WAIT_POINT("groups-before-found");
	if (!complete)
	{
		strlcpy(last.key, done, sizeof(last.key));
		last.generation = q.generation;
	}
	pfree(segments.tables);
	pfree(segments.slots);
	return complete;
}

void discover_groups(Db &db, uint16_t queue, Between between)
{
	Queue &q = engine.queue(queue);
	// A paused queue would only use slots that others need.
	if (!q.discover.load() || q.paused_until != 0 || yields_group_search(q) ||
		(!engine.has_free_group(q) && !may_take_group_slots(q)) || q.discovering.exchange(true))
		return;
	q.discover.store(false);
	bool all = false;
	PG_ENSURE_ERROR_CLEANUP(stop_discovery, UInt16GetDatum(queue));
	all = find_groups(db, queue, between);
	PG_END_ENSURE_ERROR_CLEANUP(stop_discovery, UInt16GetDatum(queue));
	lock_queue(queue); // a group that gets its slot from now on sees both flags
	if (!all)
		q.discover.store(true); // the next sweep tries again
	q.discovering.store(false);
	unlock_queue(queue);
}

} // namespace

int refill_groups(Db &db, uint16_t queue, Between between)
{
	Queue &q = engine.queue(queue);
	int made = 0;
	discover_groups(db, queue, between);
	bool full = false;
	for (int n = 0; n < 1000; ++n)
	{
		lock_queue(queue);
		const Ref r = q.state != core::QueueState::free ? engine.take_wanted(q) : kNil;
		const bool exchanges = r != kNil && engine.has_later(engine.group(r)),
				   empty = r != kNil && engine.offers_nothing(engine.group(r));
		unlock_queue(queue);
		if (r == kNil)
			return made;
		full = !memory_available() && (full || free_entries_for(1, Asker{queue, core::kNoLane, true}) == 0);
		// The sweep requests the remaining groups again.
		if (!full || exchanges || (empty && engine.free_entries() > engine.reserve() / 2))
			made += refill_group(db, queue, r);
		if (between != nullptr)
			between(db);
		CHECK_FOR_INTERRUPTS();
	}
	q.want_refill.store(true); // other queues come first
	db.refill.store(true);
	return made;
}

} // namespace tq
