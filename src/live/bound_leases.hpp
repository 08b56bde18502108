// Leases that end with the session that holds them (R14).
// Regime: PG. Locks: queue locks, held only inside.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// Remembers that this session holds bound leases, so that its end releases them.
void note_bound(uint16_t queue, Ref ref, JobId id, LeaseNo lease);

} // namespace tq::live
