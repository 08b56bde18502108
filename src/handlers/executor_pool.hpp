// The scheduler's control of executors: requests them where handlers have jobs to run, wakes idle ones, and
// interrupts those whose jobs must not go on.
// Regime: PG. Locks: queue locks and "tq workers", held only inside.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// A step of the scheduler: a pass over the executors of the database, then over its handlers. False if the extension is
// gone.
bool manage_pool(const WorkerContext &context, Db &db);

} // namespace tq
