// One attempt at a job by an executor: calls the handler, and records how the attempt ends.
// Regime: PG. Locks: queue locks and "tq workers", held only inside.
#pragma once

#include "handlers/executor.hpp"

namespace tq
{

// Sets up SIGTERM, the clock of attempts and their memory. Called once.
void set_up_running();

// What the process does after an attempt.
enum class AfterAttempt : uint8
{
	stay,
	leave,
};

// Runs the handler, completes the job or records how the attempt ends, and resets the session.
AfterAttempt run(const WorkerContext &context, Attempt *a);

// After an error: reports it and rolls the transaction back. Returns a copy in attempt_context.
ErrorData *recover();

// The text of an error, cut to the length that is kept.
char *clipped(const char *text);

} // namespace tq
