// How many jobs of a lane stand where, for those who show it.
// Regime: PG; noexcept. Locks: the queue's, the caller's.
#pragma once

#include "live/shared.hpp"

namespace tq::api
{

struct Numbers
{
	int64 live, ready, delayed, blocked, running, in_memory;

	void add(const Numbers &n) noexcept
	{
		live += n.live;
		ready += n.ready;
		delayed += n.delayed;
		blocked += n.blocked;
		running += n.running;
		in_memory += n.in_memory;
	}
};

// `live` counts what was published and has not ended; what is neither running nor delayed nor blocked is ready, in memory or on disk.
inline Numbers numbers_of(const live::Lane &l) noexcept
{
	const auto count = [&l](live::State s) { return static_cast<int64>(l.counts[static_cast<int>(s)]); };
	Numbers n{};
	n.live = l.count.live;
	n.running = count(live::State::running);
	n.delayed = count(live::State::delayed) + std::max<int64>(l.delayed_disk, 0);
	n.blocked = std::max<int32>(l.blocked, 0);
	n.ready = std::max<int64>(n.live - n.running - n.delayed - n.blocked, 0);
	n.in_memory = n.running + count(live::State::delayed) + count(live::State::ready);
	return n;
}

// Calls that wait for a job of the queue.
inline int waiting_in(const live::Queue &q) noexcept
{
	int n = static_cast<int>(q.tokens);
	for (core::Ref w = q.waiters_head; w != core::kNil; w = live::engine.waiter(w).next)
		++n;
	return n;
}

} // namespace tq::api
