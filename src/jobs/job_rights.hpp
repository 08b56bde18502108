// Whether the current user may do something with a job: the rights on the job's queue.
// Regime: PG; may ereport. Locks: those of reading the journal.
#pragma once

#include "queues/rights.hpp"

namespace tq
{

enum class Access : uint8
{
	granted,
	denied, // may see the job, but not do this
	unseen, // has no right on its queue: to the caller the job does not exist
	absent,
};

// Whether the current user may do this to a job. Finds its queue in memory, among the jobs of this transaction, or in
// the journal. Skips that if the user has the right on all queues.
Access access_to_job(Db &db, JobId id, uint8 any_of);

// Raises TQ004 or 42501 unless access_to_job grants it; the caller handles an absent job.
void require_job(Db &db, JobId id, uint8 any_of);
[[noreturn]] void raise_job_denied(JobId id, uint8 any_of);

} // namespace tq
