// Counts of a lane's jobs by state, for the functions that show them.
// Regime: PG; noexcept. Locks: the caller holds the queue's.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

struct QueueCounts
{
	int64 live, ready, delayed, blocked, running, in_memory;

	void add(const QueueCounts &n) noexcept
	{
		live += n.live;
		ready += n.ready;
		delayed += n.delayed;
		blocked += n.blocked;
		running += n.running;
		in_memory += n.in_memory;
	}
};

// `live` counts jobs that were published and have not ended. Jobs that are not running, delayed or blocked are ready,
// in memory or on disk.
inline QueueCounts counts_of(const Lane &l) noexcept
{
	const auto count = [&l](State s) { return static_cast<int64>(l.counts[static_cast<int>(s)]); };
	QueueCounts n{};
	n.live = l.count.live;
	n.running = count(State::running);
	n.delayed = count(State::delayed) + std::max<int64>(l.delayed_disk, 0);
	n.blocked = std::max<int32>(l.blocked, 0);
	n.ready = std::max<int64>(n.live - n.running - n.delayed - n.blocked, 0);
	n.in_memory = n.running + count(State::delayed) + count(State::ready);
	return n;
}

// How many calls wait for a job of the queue.
inline int waiting_in(const Queue &q) noexcept
{
	int n = static_cast<int>(q.tokens);
	for (core::Ref w = q.waiters_head; w != core::kNil; w = engine.waiter(w).next)
		++n;
	return n + static_cast<int>(engine.watchers_of(q));
}

// How long the most overdue schedule of the queue has been due. The scheduler sets the time; no lock is needed.
inline core::Micros late_by(const Queue &q, core::Micros now) noexcept
{
	const core::Micros due = q.next_fire.load();
	return due < now ? now - due : 0;
}

} // namespace tq
