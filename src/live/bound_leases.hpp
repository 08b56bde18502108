// Leases that end with the session that holds them (R14).
// Regime: PG. Locks: queue locks, held only inside.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// The timer of a lease whose session has ended. Its deadline is 0, which lease_grace (an hour at most) is not added to: the monotonic clock may
// have been running for less.
constexpr Micros kLongOver = -7200 * Micros{1000000};

// Remembers that this session holds bound leases, so that its end releases them.
void note_bound(uint16_t queue, Ref ref, JobId id, LeaseNo lease);

} // namespace tq::live
