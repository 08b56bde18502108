// An executor: one process that runs jobs by the handlers of one role (DESIGN section 8).
// Regime: PG.
#pragma once

#include "workers/worker.hpp"

namespace tq::workers
{

void run_executor(const WorkerContext &context);

} // namespace tq::workers
