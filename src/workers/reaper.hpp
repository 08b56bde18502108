// The scheduler's work on entries: timers that are due, leases that are lost, claims to be journalled.
// Regime: PG. Each returns false if the extension is gone. Locks: queue locks.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Delayed jobs that are due become ready; jobs whose claims were always rolled back are journalled dead (H15).
bool fire_timers(const WorkerContext &context, live::Db &db);

// Leases and attempts past their deadline: journalled and flushed, then the jobs are offered again, or buried, or dead, as their queue
// wants it (R14, H10).
bool reap(const WorkerContext &context, live::Db &db);

// Jobs that nobody has started by their expires_at end as expired.
bool expire_jobs(const WorkerContext &context, live::Db &db);

// Open claims older than tq.claim_log_delay get their event, committed asynchronously (R15).
bool journal_claims(const WorkerContext &context, live::Db &db);

core::Micros grace_of(const core::Queue &q) noexcept; // of leases, in microseconds

} // namespace tq::workers
