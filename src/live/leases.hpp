// The numbers of leases (R14): none is given twice, not after a crash, nor by a standby or a restored server that knows nothing of
// those that were given last (H10).
// Regime: PG. Locks: a heavyweight one on tq.lease_seq, for as long as a block is reserved. May raise.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// Numbers start at what the clock says, microseconds since 2020, or above those that were reserved before.
void start_leases(Db &db);

// Reserves the next block if few numbers are left. To be called before each claim, with no lock held.
void ensure_leases(Db &db);

// Is there no number left? Then a claim found nothing for want of one.
inline bool leases_used_up(const Db &db) noexcept
{
	const core::DbCore &c = engine.db(index_of(db));
	return c.next_lease.load() >= c.lease_limit.load();
}

} // namespace tq::live
