// Names of workers, as tq_claim gives them, and what each holds.
// Regime: PG. Locks: registry lock, only for a name this backend has not used last.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// The slot of a worker's name in this database, made if need be; kNil if the table is full (the job then runs without a name in memory).
uint32_t worker_slot(const Db &db, const char *name) noexcept;

// Forgets workers that hold nothing and have not been seen since `before`; called by the scheduler.
void forget_workers(const Db &db, Micros before) noexcept;

} // namespace tq::live
