// Slots in memory for groups: which group loses its slot, and which queue may take one, if all are in use.
// Regime: PG; noexcept. Locks: queue locks, one at a time; the caller holds none. Counters of queues are read without
// their locks, as hints.
#include "residency/loader.hpp"

namespace tq
{

namespace
{

// Evicts a group if all its jobs can be evicted.
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

// The same for a group with delayed jobs only, of a queue that passes `may`. The timers read these jobs in again.
template <typename May> bool evict_delayed_slot(May may) noexcept
{
	bool done = false;
	for (uint32 i = 0; i < engine.limits().queues && !done; ++i)
	{
		const auto queue = static_cast<uint16_t>(i);
		Queue &q = engine.queue(queue);
		if (q.state == core::QueueState::free || q.groups == 0 || !may(q))
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

// Frees a slot of a queue that passes `may`, starting where the last call stopped.
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

bool wants_slots(const Queue &q) noexcept
{
	return q.state != core::QueueState::free && q.paused_until == 0 && q.discover.load();
}

// The slots each queue may keep if others want some, like the share of lanes in evict_entries.
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

// A paused queue needs no slots.
uint32 share_of(const Queue &q, uint32 each) noexcept { return q.paused_until != 0 ? 0 : each; }

bool has_more(const Queue &q, uint32 each) noexcept
{
	return q.state != core::QueueState::free && q.groups > share_of(q, each);
}

} // namespace

bool evict_group_slot(const Queue *asks) noexcept
{
	const bool only_own = asks != nullptr && engine.group_slots_left(*asks) == 0;
	const auto may = [only_own, asks](const Queue &q) noexcept { return !only_own || &q == asks; };
	return evict_next_slot(may) || evict_delayed_slot(may);
}

bool may_take_group_slots(const Queue &q) noexcept
{
	const uint32 each = share_of_each();
	bool may = false;
	for (uint32 i = 0; i < engine.limits().queues && !may && q.groups < share_of(q, each); ++i)
		may = has_more(engine.queue(static_cast<uint16_t>(i)), each);
	return may;
}

bool take_group_slot(const Queue &q) noexcept
{
	const uint32 each = share_of_each();
	return q.groups < share_of(q, each) &&
		   evict_next_slot([each](const Queue &other) { return has_more(other, each); });
}

bool yields_group_search(const Queue &q) noexcept
{
	const uint32 each = share_of_each();
	// Without a scheduler no sweep would read the queue later.
	if (q.groups < share_of(q, each) || db_at(q.db).scheduler.load() == 0)
		return false;
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &other = engine.queue(static_cast<uint16_t>(i));
		if (&other != &q && other.db == q.db && wants_slots(other) && other.groups < each)
		{
			// Without this, that queue would wait for the next sweep.
			engine.queue(static_cast<uint16_t>(i)).want_refill.store(true);
			db_at(q.db).refill.store(true);
			return true;
		}
	}
	return false;
}

} // namespace tq
