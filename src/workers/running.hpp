// One attempt at a job by an executor: its handler is called, and what becomes of the attempt is written down.
// Regime: PG. Locks: queue locks and "tq workers", held only inside.
#pragma once

#include "workers/executor.hpp"

namespace tq::workers
{

// SIGTERM, the clock of attempts, their memory; once.
void set_up_running();

// False if this process has to leave.
bool run(const WorkerContext &context, Attempt *a);

// Back from an error: reported, and the transaction rolled back. A copy in attempt_context.
ErrorData *recover();

// As much of the text of an error as is kept.
char *clipped(const char *text);

} // namespace tq::workers
