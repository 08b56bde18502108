// The scheduler's care for executors: has them started where handlers have jobs to run, wakes idle ones, interrupts those whose jobs are
// not to go on.
// Regime: PG. Locks: queue locks and "tq workers", held only inside.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// A step of the scheduler; false if the extension is gone.
bool staff(const WorkerContext &context, live::Db &db);

} // namespace tq::workers
