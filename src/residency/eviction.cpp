// Frees memory by evicting jobs: first from the queue with most jobs in memory, within it from its biggest lane, timers
// or groups. So every queue can have as many jobs in memory as any other.
#include "residency/loader.hpp"

namespace tq
{

namespace
{

constexpr int kAtOnce = 256; // evictions per hold of a queue's lock

// The number of evictable jobs, by the queue's counters; a hint without its lock.
uint32 evictable(const Queue &q) noexcept { return q.entries > q.pinned ? q.entries - q.pinned : 0; }

constexpr int64 kAny = -1; // evict from any holder that has a job

// Whether a holder of this many jobs gives some to one with `own`: only if it has more than 1.5 times as many. This
// keeps jobs from being evicted and read in again by turns.
bool gives(uint32 has, int64 own) noexcept { return has > own + std::max<int64>(own / 2, 1); }

void count_evicted(const Queue &q, int n) noexcept { db_at(q.db).evicted.fetch_add(n, std::memory_order_relaxed); }

// How far to empty groups, in this order: to their cap, to their first jobs, completely.
enum class Depth : uint8
{
	surplus,
	backlog,
	whole,
};

// Evicts a job of a group, or all of them; returns how many.
int evict_of_group(Queue &q, Ref g, Depth depth) noexcept
{
	const core::Group &x = engine.group(g);
	if ((depth != Depth::surplus || x.ready.size > engine.group_cap()) &&
		engine.evict_from_group(q, g, core::kMinKey, my_proc))
		return 1;
	if (depth == Depth::surplus)
		return 0;
	if (engine.evict_head(q, g, my_proc))
		return 1;
	const uint32 has = x.ready.size + (x.head != kNil);
	return depth == Depth::whole && has > 0 && engine.evict_group(q, g, my_proc) ? static_cast<int>(has) : 0;
}

// Evicts waiting jobs of a queue's groups, starting where the last call stopped.
int evict_of_groups(uint16_t queue, int want, Depth deepest) noexcept
{
	static Ref hand = 0;
	Queue &q = engine.queue(queue);
	int freed = 0;
	lock_queue(queue);
	for (const Depth depth : {Depth::surplus, Depth::backlog, Depth::whole})
		for (uint32 left = q.groups;
			 left > 0 && depth <= deepest && freed < want && (freed == 0 || depth == Depth::surplus); --left)
		{
			const Ref g = engine.owns(q, hand) ? hand : q.groups_head;
			if (g == kNil)
				break;
			hand = engine.group(g).next != kNil ? engine.group(g).next : q.groups_head;
			for (int one = 1; one > 0 && freed < want && engine.owns(q, g); freed += one)
				one = evict_of_group(q, g, depth);
			if (left % kAtOnce == 0) // other processes may take the lock in between
			{
				unlock_queue(queue);
				lock_queue(queue);
			}
		}
	unlock_queue(queue);
	return freed;
}

// The structure that holds waiting jobs of a queue in memory, and their number.
enum class Holder : uint8
{
	none,
	lane,
	timers,
	groups,
};
struct Biggest
{
	Holder holder;
	uint16_t lane;
	uint32 has;
	uint32 in_groups; // of all groups
};

// Queue lock held. The biggest holder, except the lane `spare` and the holders in `empty` (bits by Holder).
Biggest biggest_of(const Queue &q, uint16_t spare, uint32 empty) noexcept
{
	Biggest b{Holder::none, core::kNoLane, 0, 0};
	const auto offer = [&b, empty](Holder h, uint16_t lane, uint32 has) noexcept {
		if (has > b.has && (empty >> static_cast<int>(h) & 1) == 0)
			b = Biggest{h, lane, has, 0};
	};
	uint32 loose = q.due.size;
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
	{
		loose += engine.lane(l).ready.size;
		if (l != spare && engine.lane(l).evictable != core::kMinKey)
			offer(Holder::lane, l, engine.lane(l).ready.size);
	}
	offer(Holder::timers, core::kNoLane, q.due.size);
	b.in_groups = evictable(q) > loose ? evictable(q) - loose : 0;
	offer(Holder::groups, core::kNoLane, b.in_groups);
	return b;
}

// Evicts up to `want` jobs of a queue, for one of its lanes (`spare`), for one of its groups, or for other queues. A
// holder of the same queue gives only if it has half as many more than the asking lane or group. The asker's jobs
// include the `promised` ones, already evicted for it. All groups count as one holder, and give a group only jobs above
// their caps. No holder gives more than half of its lead.
int evict_of_queue(uint16_t queue, int want, const Asker &asker, int promised) noexcept
{
	Queue &q = engine.queue(queue);
	const bool own = asker.queue == queue;
	int freed = 0;
	uint32 empty = 0;
	for (int tries = 0; tries < 8 && freed < want; ++tries)
	{
		lock_queue(queue);
		const Biggest b = q.state != core::QueueState::free ? biggest_of(q, own ? asker.lane : core::kNoLane, empty)
															: Biggest{Holder::none, core::kNoLane, 0, 0};
		const bool among_groups = own && asker.for_group && b.holder == Holder::groups;
		const int64 held = asker.for_group ? b.in_groups : own ? engine.lane(asker.lane).ready.size : 0;
		const int64 has = !own || among_groups ? kAny : held + promised + freed;
		const bool some = b.holder != Holder::none && gives(b.has, has);
		const int64 most = some ? std::min<int64>({(b.has - has) / 2, want - freed, kAtOnce}) : 0;
		int n = 0;
		for (bool more = some && b.holder != Holder::groups; more && n < most; n += more)
			more = b.holder == Holder::lane ? engine.evict_ready(q, engine.lane(b.lane), core::kMinKey, my_proc)
											: engine.evict_delayed(q, my_proc);
		unlock_queue(queue);
		if (most == 0)
			break;
		if (b.holder == Holder::groups)
			n = evict_of_groups(queue, static_cast<int>(most), among_groups ? Depth::surplus : Depth::whole);
		if (n == 0 && b.holder != Holder::lane) // `evictable` excludes a lane without jobs to give
			empty |= 1U << static_cast<int>(b.holder);
		freed += n;
	}
	count_evicted(q, freed);
	return freed;
}

} // namespace

int evict_entries(int want, const Asker &asker) noexcept
{
	const bool asks = asker.queue != kNoQueueAsks;
	int freed = 0;
	// Skips the queues that had nothing to give, and bigger ones.
	uint64 below = UINT64_MAX;
	while (freed < want)
	{
		const int64 own = asks ? int64{evictable(engine.queue(asker.queue))} + freed : kAny;
		uint64 most = 0;
		for (uint32 i = 0; i < engine.limits().queues; ++i)
		{
			const Queue &q = engine.queue(static_cast<uint16_t>(i));
			const uint64 has = uint64{evictable(q)} << 16 | i;
			if (q.state != core::QueueState::free && has < below && evictable(q) > 0 &&
				(i == asker.queue || gives(evictable(q), own)))
				most = std::max(most, has);
		}
		if (most == 0)
			break;
		const auto queue = static_cast<uint16_t>(most);
		const int64 surplus = static_cast<int64>(most >> 16) - own;
		const int share =
			queue == asker.queue || !asks ? want : static_cast<int>(std::clamp<int64>(surplus / 2, 1, want));
		const int n = evict_of_queue(queue, std::min({want - freed, share, kAtOnce}), asker, freed);
		if (n == 0)
			below = most;
		freed += n;
	}
	return freed;
}

int free_entries_for(int want, const Asker &asker) noexcept
{
	const int64 free = engine.free_entries() - engine.reserve();
	if (free < want)
		evict_entries(want - static_cast<int>(std::max<int64>(free, 0)), asker);
	return static_cast<int>(std::clamp<int64>(engine.free_entries() - engine.reserve(), 0, want));
}

bool may_stay_in_memory(const Db &db, JobId id) noexcept
{
	uint16_t queue = 0;
	for (;;)
	{
		// A job without an entry needs one more.
		const bool has = engine.find(index_of(db), id, &queue) != kNil;
		if (engine.free_entries() >= engine.reserve() + !has)
			return true;
		if (evict_entries(1) == 0)
			return false;
	}
}

} // namespace tq
