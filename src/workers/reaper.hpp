// The scheduler's work on the entries of jobs: timers that are due, lost leases, expiry, claims to journal.
// Regime: PG. Each returns false if the extension is gone. Locks: queue locks.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// Delayed jobs that are due become ready. Jobs whose claims were always rolled back are journalled dead (H15).
bool fire_timers(const WorkerContext &context, Db &db);

// Does the same for jobs that only become ready. Needs no transaction, so it may run inside another one. In a queue it
// stops at the first job that fire_timers() has to end.
void fire_simple_timers(Db &db) noexcept;

// Ends leases and attempts past their deadline. Their end is journalled and flushed; then each job is offered again,
// buried or dead, as its queue's settings say (R14, H10).
bool reap(const WorkerContext &context, Db &db);

// When reap() next ends leases that were revoked (monotonic); kNever: none were.
core::Micros next_revocation(const Db &db) noexcept;

// Jobs that have not started by their expires_at end as expired.
bool expire_jobs(const WorkerContext &context, Db &db);

// Open claims older than tq.claim_log_delay get their event, committed asynchronously (R15).
bool journal_claims(const WorkerContext &context, Db &db);

// Lowers *wall and *mono to the first time at which a queue has work for one of these functions.
void plan_due_work(const Db &db, uint16_t slot, core::Micros *wall, core::Micros *mono) noexcept;

} // namespace tq
