// Calls a handler's function. When its code is read, it must be the registered function
// (docs/adr/0010-deferred-work-authorization.md).
// Regime: PG; raises the function's errors. Locks: none.
#pragma once

#include "handlers/executor.hpp"

namespace tq
{

// Installs the hook that checks a function right before its code is read. Called once.
void set_up_calling();

// Judges whether the function of the attempt's handler may be called. Records the judgment in the attempt.
bool judge_function(const WorkerContext &context, Attempt *a);

// Does the same, and raises an error if the function may not be called.
void check_function(const WorkerContext &context, Attempt *a);

// Calls the function. Returns its result in the current memory context, or null if there is none.
Jsonb *call_function(const WorkerContext &context, Attempt *a);

// Call it after the transaction of the call has ended. False if the call did not reach the function's code.
bool end_call() noexcept;

} // namespace tq
