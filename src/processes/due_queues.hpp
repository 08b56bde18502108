// Finds the queues of a database in which something is due.
// Regime: PG; nothing here fails. Locks: none.
#pragma once

#include "queues/policy.hpp"

namespace tq
{

inline Micros grace_of(const core::Queue &q) noexcept { return lease_grace_of(q.settings).value; }

// Whether the queue may have a lease whose heartbeats stopped.
inline bool has_lost(const core::Queue &q, Micros mono) noexcept
{
	const Micros lease = q.next_lease.load();
	return lease != core::kNever && lease + grace_of(q) <= mono;
}

// The first queue of the database from slot `from` on for which `due` is true; UINT16_MAX if there is none.
template <class Due>
uint16_t next_queue(const Db &db, uint32 from, Due &&due) noexcept
{
	const uint16_t d = index_of(db);
	for (uint32 i = from; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		const core::Queue &q = engine.queue(slot);
		if (q.state != core::QueueState::free && q.db == d && due(q))
			return slot;
	}
	return UINT16_MAX;
}

// True if timers, leases or limits are due. Long work then stops to let them run.
bool timers_due(const Db &db) noexcept;

} // namespace tq
