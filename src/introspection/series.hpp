// The scheduler's part of tq_series.
// Regime: PG; noexcept. Locks: queue locks and "tq series", one at a time.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Records the counters of the database's queues once in each minute. Call it at least once a second.
void sample_series(const Db &db) noexcept;

} // namespace tq
