// The counts of queues by minute (core/series.hpp), in shared memory of tq.series_memory, for all databases. A clean
// shutdown saves them in a file and the next start reads it, as pg_stat_statements does. A crash loses them.
// Regime: PG. Locks: "tq series", taken alone. Raises: only request_series() and init_series().
#pragma once

#include "core/series.hpp"
#include "shmem/shared.hpp"

namespace tq
{

extern core::Series series; // series_lock()

LWLock *series_lock() noexcept;

void request_series(); // shmem_request_hook
void init_series();	   // shmem_startup_hook

} // namespace tq
