// Leases that end with the session that claimed them, and workers that must show life after the
// session's end (R14).
// Regime: PG. Locks: queue locks, held only inside.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Records that this session holds bound leases, which end with it.
void note_bound(uint16_t queue, Ref ref, JobId id, LeaseNo lease);

// Records that this session claims in the name of a worker. When the session ends, the worker must show life within
// tq.worker_grace, or its own leases end.
void note_worker(uint32_t worker);

} // namespace tq
