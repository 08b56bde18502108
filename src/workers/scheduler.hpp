// The scheduler of one database: all work that is due at a time. It sleeps until the next timer, lease or claim to
// journal. It polls only settings and clocks that may jump.
// Regime: PG. An error ends the process; the launcher starts another one.
#pragma once

#include "processes/worker.hpp"

namespace tq
{

void run_scheduler(const WorkerContext &context);

} // namespace tq
