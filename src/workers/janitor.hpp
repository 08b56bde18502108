// The janitor of one database, started on demand: opens, seals, moves and drops segments, cleans segment 0, recounts.
// Regime: PG. An error ends the process; the scheduler asks for another one when there is work.
#pragma once

#include "workers/worker.hpp"

namespace tq::workers
{

void run_janitor(const WorkerContext &context);

} // namespace tq::workers
