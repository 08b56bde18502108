// The scheduler of one database: all work that is due at a time. It sleeps until the next work, a second at most: then
// it ends pauses, wakes clients beside startable jobs, and asks for the janitor.
// Regime: PG. An error in a step rolls back, and only that step pauses. Any other error ends the process; the launcher
// starts another one.
#pragma once

#include "processes/worker.hpp"

namespace tq
{

void run_scheduler(const WorkerContext &context);

} // namespace tq
