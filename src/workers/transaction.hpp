// One transaction of a worker's body.
// Regime: PG.
#pragma once

#include "workers/worker.hpp"

namespace tq::workers
{

// Starts a transaction with an active snapshot and makes sure that the extension stays; false (and no transaction) if it is gone.
bool begin_work(const WorkerContext &context, const char *activity);
// Commits; `asynchronous`: without waiting for the disk.
void end_work(bool asynchronous = false);

} // namespace tq::workers
