// Lease numbers (R14). Each is given only once, even after a crash, or on a standby or restored server that does not
// know the last numbers (H10).
// Regime: PG. Locks: a heavyweight lock on tq.lease_seq while a block is reserved. May raise.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Starts the numbers at the clock (microseconds since 2020), or above all reserved ones if these are greater.
void start_leases(Db &db);

// Reserves the next block if few numbers are left. Call it before each claim, without locks. If another session does it
// already, waits only if hardly any are left.
void ensure_leases(Db &db);

// Whether no number is left, so that a claim finds nothing.
inline bool leases_used_up(const Db &db) noexcept
{
	const core::DbCore &c = engine.db(index_of(db));
	return c.next_lease.load() >= c.lease_limit.load();
}

} // namespace tq
