// Making room in memory by sending jobs back to disk.
#include "live/loader.hpp"

namespace tq::live
{

namespace
{

// Jobs that wait behind others of their groups, of whichever group has more of them than its share; the search goes on where the last one
// ended.
int make_room_of_groups(int want) noexcept
{
	static Ref hand = 0;
	int freed = 0;
	const uint32 n = engine.limits().groups;
	for (uint32 i = 0; i < n && freed < want; ++i)
	{
		hand = hand + 1 < n ? hand + 1 : 0;
		const core::Group &g = engine.group(hand);
		if (!engine.is_group(hand) || g.ready.size <= engine.group_cap())
			continue;
		const uint16_t queue = g.queue;
		lock_queue(queue);
		Queue &q = engine.queue(queue);
		while (freed < want && engine.owns(q, hand) && g.ready.size > engine.group_cap() &&
			   engine.evict_from_group(q, hand, core::kMinKey, my_proc))
		{
			++freed;
			db_at(q.db).evicted.fetch_add(1, std::memory_order_relaxed);
		}
		unlock_queue(queue);
	}
	return freed;
}

// Who holds how many entries, in the order of that: a lane its ready jobs, a queue its delayed ones.
uint64_t holder(uint32_t size, bool lane, uint32_t slot) noexcept
{
	return uint64_t{size} << 17 | uint64_t{lane} << 16 | slot;
}
bool is_lane(uint64_t holder) noexcept { return (holder >> 16 & 1) != 0; }
uint16_t slot_of(uint64_t holder) noexcept { return static_cast<uint16_t>(holder); }

// For a lane that has none: of what groups have beyond half of the memory, also what they keep to go on with, down to their heads, and heads
// that wait for that lane's jobs. Else lanes and groups could wait for each other.
int make_room_of_heads(int want) noexcept
{
	static Ref hand = 0;
	const uint32 n = engine.limits().groups;
	int64 held = 0;
	for (uint32 i = 0; i < n; ++i)
		if (engine.is_group(i))
			held += engine.group(i).ready.size + (engine.group(i).head != kNil);
	const int64 most = std::min<int64>(held - engine.limits().entries / 2, want);
	int freed = 0;
	for (uint32 i = 0; i < n && freed < most; ++i)
	{
		hand = hand + 1 < n ? hand + 1 : 0;
		if (!engine.is_group(hand))
			continue;
		const uint16_t queue = engine.group(hand).queue;
		lock_queue(queue);
		Queue &q = engine.queue(queue);
		while (freed < most && engine.owns(q, hand) &&
			   (engine.evict_from_group(q, hand, core::kMinKey, my_proc) || engine.evict_head(q, hand, my_proc)))
		{
			++freed;
			db_at(q.db).evicted.fetch_add(1, std::memory_order_relaxed);
		}
		unlock_queue(queue);
	}
	return freed;
}

} // namespace

int make_room(Db &db, int want, uint16_t spare) noexcept
{
	static_cast<void>(db);
	uint32_t used = 0;
	for (uint32_t i = 0; i < engine.limits().lanes; ++i)
		used += engine.lane(static_cast<uint16_t>(i)).used;
	const uint32_t share = engine.limits().entries / 2 / std::max<uint32_t>(used, 1);
	int freed = make_room_of_groups(want);
	// One that has nothing to give, since all of it is to stay, is passed over, as are those above it.
	uint64_t below = UINT64_MAX;
	while (freed < want)
	{
		uint64_t most = 0;
		for (uint32_t i = 0; i < engine.limits().lanes; ++i)
		{
			const Lane &l = engine.lane(static_cast<uint16_t>(i));
			const uint64_t r = holder(l.ready.size, true, i);
			if (l.used && i != spare && l.ready.size > share && r < below)
				most = std::max(most, r);
		}
		for (uint32_t i = 0; i < engine.limits().queues; ++i)
		{
			const Queue &q = engine.queue(static_cast<uint16_t>(i));
			const uint64_t r = holder(q.due.size, false, i);
			if (q.state != core::QueueState::free && q.due.size > share && r < below)
				most = std::max(most, r);
		}
		if (most == 0)
			break;
		const bool from_lane = is_lane(most);
		const uint16_t biggest = slot_of(most);
		const uint16_t queue = from_lane ? engine.lane(biggest).queue : biggest;
		const int before = freed;
		lock_queue(queue);
		Queue &q = engine.queue(queue);
		for (int i = 0; i < 256 && freed < want; ++i)
		{
			const bool done = from_lane ? engine.lane(biggest).queue == queue && engine.lane(biggest).used &&
											  engine.lane(biggest).ready.size > share &&
											  engine.evict_ready(q, engine.lane(biggest), core::kMinKey, my_proc)
										: q.due.size > share && engine.evict_delayed(q, my_proc);
			if (!done)
				break;
			++freed;
			db_at(q.db).evicted.fetch_add(1, std::memory_order_relaxed);
		}
		unlock_queue(queue);
		if (freed == before)
			below = most;
	}
	if (spare != core::kNoLane && freed < want)
		freed += make_room_of_heads(want - freed);
	return freed;
}

bool free_one(Db &db) noexcept
{
	const uint16_t d = index_of(db);
	bool done = false;
	for (uint32 i = 0; i < engine.limits().queues && !done; ++i)
	{
		const auto queue = static_cast<uint16_t>(i);
		Queue &q = engine.queue(queue);
		lock_queue(queue);
		if (q.state != core::QueueState::free && q.db == d)
		{
			for (uint16_t l = q.lanes; l != core::kNoLane && !done; l = engine.lane(l).next)
				done = engine.evict_ready(q, engine.lane(l), core::kMinKey, my_proc);
			done = done || engine.evict_delayed(q, my_proc);
			for (Ref g = 0; g < engine.limits().groups && !done; ++g)
				done = engine.owns(q, g) && engine.evict_from_group(q, g, core::kMinKey, my_proc);
		}
		unlock_queue(queue);
	}
	db.evicted.fetch_add(done, std::memory_order_relaxed);
	return done;
}

bool room_to_stay(Db &db, JobId id) noexcept
{
	uint16_t queue = 0;
	for (;;)
	{
		// one that has no entry yet takes another
		const bool has = engine.find(index_of(db), id, &queue) != kNil;
		if (engine.free_entries() >= engine.reserve() + !has)
			return true;
		// of any database, where that is cheap
		if (make_room(db, 1, core::kNoLane) == 0 && !free_one(db))
			return false;
	}
}

} // namespace tq::live
