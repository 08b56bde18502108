// Notifies the follow-ups (enqueue/follow_up.hpp) of ended jobs. They are above this folder: an enqueue with a unique
// key may end another job.
// Regime: PG; may ereport. Locks: those of an enqueue.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Call it after the events are appended, while this transaction still marks the jobs.
void jobs_ended(Db &db, const journal::EventRow *rows, int n);

using JobsEnded = void (*)(Db &db, const journal::EventRow *rows, int n);
void on_jobs_ended(JobsEnded call) noexcept;

} // namespace tq
