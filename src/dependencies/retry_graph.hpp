// Retries a job, which takes its end back. Jobs that were freed although it had failed wait for it again, unless they
// have begun. With its children, jobs that were cancelled because it or a job below it had failed are restored, too.
// All keep the results of parents that have succeeded.
// Regime: PG; may ereport. Locks: as tq_retry for each job; rows of tq.dependency that it inserts.
#pragma once

#include "jobs/job_control.hpp"

namespace tq
{

constexpr int kMostBelow = 10000; // jobs below that one call looks at

// As change() for Verb::retry. A job that has ended before its parents were done waits for them again
// (State::blocked), and so does a job of which a parent has begun again. A parent that has failed meanwhile does not
// keep it from starting, unless `with_children`. Blocks the jobs that were freed by its end; `with_children` leaves
// that to retry_children. Raises 55P03 or 53400 if one of these cannot be changed.
JobResult retry(Db &db, const JobRequest &r, bool with_children);

// The outcomes of its parents that an ended job was given, or would have been given: only of those that have succeeded.
// Null if there are none.
Jsonb *outcomes_given(Db &db, core::JobId id);

// Restores the jobs below `roots`, which this transaction has retried. Raises 42501, 54000, and what tq_retry raises;
// then nothing is changed. Returns the JobResult::begun of all.
int64 retry_children(Db &db, const core::JobId *roots, int64 n);

// A NOTICE about the jobs that have begun, for the end of a call that retries jobs.
void tell_begun(int64 n);

} // namespace tq
