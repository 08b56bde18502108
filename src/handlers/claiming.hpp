// How an executor gets a job.
// Regime: PG; may raise. Locks: queue locks, held only inside.
#pragma once

#include "handlers/executor.hpp"

namespace tq
{

// Claims a job for a handler and journals the claim in one transaction. False if there is no job, or if the queue or
// the extension is gone.
bool claim(const WorkerContext &context, Handler *h, Attempt *a);

} // namespace tq
