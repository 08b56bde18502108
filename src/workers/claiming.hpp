// How an executor gets a job.
// Regime: PG; may raise. Locks: queue locks, held only inside.
#pragma once

#include "workers/executor.hpp"

namespace tq::workers
{

// Claims a job for a handler and journals that, in one transaction. False if there is none, or the extension is gone.
bool claim(const WorkerContext &context, Handler *h, Attempt *a);

} // namespace tq::workers
