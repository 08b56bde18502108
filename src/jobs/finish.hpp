// How an executor ends an attempt: as tq_complete, tq_fail and tq_release do, in the current transaction.
// Regime: PG; raises the same journal errors as those functions. Locks: queue locks, held only inside.
#pragma once

#include "jobs/verbs.hpp"

namespace tq
{

struct AttemptEnd
{
	JobId id;
	LeaseNo lease;
	Verb verb; // complete, fail, release
	const char *reason = nullptr;
	Jsonb *detail = nullptr; // result, or error detail
	bool fatal = false;		 // fail: do not retry
};

// Marked::ok if the attempt has ended; otherwise the reason. Checks no rights.
Marked end_attempt(Db &db, const AttemptEnd &ending);

// Completes jobs as tq_complete does, and raises its errors for the first that cannot be completed. Reads the ids,
// leases and results of a function from argument `first` on; the results may be null.
void complete_jobs(FunctionCallInfo fcinfo, int first, Db &db);

} // namespace tq
