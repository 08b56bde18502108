// The scheduler of one database: everything that must happen at a time (DESIGN section 8). It sleeps until the next timer, lease or
// claim to be journalled; nothing is polled but clocks that may jump and settings.
// Regime: PG. An error ends the process; the launcher starts another one.
#pragma once

#include "workers/worker.hpp"

namespace tq::workers
{

void run_scheduler(const WorkerContext &context);

} // namespace tq::workers
