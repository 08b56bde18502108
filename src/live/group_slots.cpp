// Slots in memory for groups: who gives one up, and who may have one, if all are taken.
#include "live/loader.hpp"

namespace tq::live
{

namespace
{

// Sends a group's jobs back to disk, if it can be.
bool evict_slot(Ref g) noexcept
{
	const uint16_t queue = engine.group(g).queue;
	lock_queue(queue);
	Queue &q = engine.queue(queue);
	const uint32 waiting = engine.owns(q, g) ? engine.group(g).entries : 0;
	const bool done = engine.owns(q, g) && engine.evict_group(q, g, my_proc);
	if (done)
		db_at(q.db).evicted.fetch_add(waiting, std::memory_order_relaxed);
	unlock_queue(queue);
	return done;
}

// The same for groups that have delayed jobs alone, which the timers bring back.
bool evict_delayed_slot() noexcept
{
	bool done = false;
	for (uint32 i = 0; i < engine.limits().queues && !done; ++i)
	{
		const auto queue = static_cast<uint16_t>(i);
		Queue &q = engine.queue(queue);
		if (q.state == core::QueueState::free || q.groups == 0)
			continue;
		int evicted = 0;
		lock_queue(queue);
		if (q.state != core::QueueState::free)
		{
			done = engine.evict_delayed_group(q, my_proc, &evicted);
			db_at(q.db).evicted.fetch_add(evicted, std::memory_order_relaxed);
		}
		unlock_queue(queue);
	}
	return done;
}

// Frees the slot of one group that `may` lose it; the search goes on where the last one ended.
template <typename May> bool evict_next_slot(May may) noexcept
{
	static Ref hand = 0;
	const uint32 n = engine.limits().groups;
	for (uint32 i = 0; i < n; ++i)
	{
		hand = hand + 1 < n ? hand + 1 : 0;
		if (engine.is_group(hand) && may(engine.queue(engine.group(hand).queue)) && evict_slot(hand))
			return true;
	}
	return false;
}

bool wants_slots(const Queue &q) noexcept { return q.state != core::QueueState::free && q.paused_until == 0 && q.discover.load(); }

// What each queue may keep of the slots if others want some: as make_room has it for lanes.
uint32 share_of_each() noexcept
{
	uint32 n = 0;
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		n += q.state != core::QueueState::free && q.paused_until == 0 && (q.groups > 0 || q.discover.load());
	}
	return std::max(engine.limits().groups / 2 / std::max(n, 1U), 1U);
}

// One that is paused needs none.
uint32 share_of(const Queue &q, uint32 each) noexcept { return q.paused_until != 0 ? 0 : each; }

bool has_more(const Queue &q, uint32 each) noexcept { return q.state != core::QueueState::free && q.groups > share_of(q, each); }

} // namespace

bool free_slot() noexcept
{
	return evict_next_slot([](const Queue &) { return true; }) || evict_delayed_slot();
}

bool may_take_slots(const Queue &q) noexcept
{
	const uint32 each = share_of_each();
	bool may = false;
	for (uint32 i = 0; i < engine.limits().queues && !may && q.groups < share_of(q, each); ++i)
		may = has_more(engine.queue(static_cast<uint16_t>(i)), each);
	return may;
}

bool take_slot(const Queue &q) noexcept
{
	const uint32 each = share_of_each();
	return q.groups < share_of(q, each) && evict_next_slot([each](const Queue &other) { return has_more(other, each); });
}

bool gives_way(const Queue &q) noexcept
{
	const uint32 each = share_of_each();
	if (q.groups < share_of(q, each) || db_at(q.db).scheduler.load() == 0) // without one there are no sweeps, where its turn would come again
		return false;
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &other = engine.queue(static_cast<uint16_t>(i));
		if (&other != &q && other.db == q.db && wants_slots(other) && other.groups < each)
		{
			// it need not wait for the next sweep
			engine.queue(static_cast<uint16_t>(i)).want_refill.store(true);
			db_at(q.db).refill.store(true);
			return true;
		}
	}
	return false;
}

} // namespace tq::live
