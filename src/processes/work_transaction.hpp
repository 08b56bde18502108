// One transaction of a worker's body.
// Regime: PG.
#pragma once

#include "processes/worker.hpp"

namespace tq
{

// Starts a transaction with an active snapshot and locks the extension against a drop. False (and no transaction) if
// the extension is gone.
bool begin_work(const WorkerContext &context, const char *activity);
// Commits. `asynchronous`: does not wait for the disk.
void end_work(bool asynchronous = false);

} // namespace tq
