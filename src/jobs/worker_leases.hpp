// Leases that belong to a worker. The worker belongs to the role whose sessions named it first.
// Regime: PG; may raise. Locks: the registry lock, held only inside.
#pragma once

#include "shmem/workers_table.hpp"

namespace tq
{

// Whether the worker belongs to the current role. A worker whose leases were found by a load belongs to the first role
// that asks and may consume all their queues.
bool owns_worker(Db &db, const char *name);

[[noreturn]] void raise_foreign_worker(const char *name);
[[noreturn]] void raise_too_many_workers(const Db &db);

// Before a claim for leases that belong to the worker in `slot`: raises unless the worker belongs to the current role.
// Counts as a heartbeat, and as long as this session lasts it vouches for the worker.
void begin_worker_claim(Db &db, const char *name, uint32_t slot);

} // namespace tq
