// Names of workers, as tq_claim gives them, and what each holds.
// Regime: PG. Locks: registry lock, only for a name this backend has not used last; queue locks where it says so.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// The slot of a worker's name in this database, made if need be; kNil if the table is full (the job then runs without a name in memory).
// To be taken again after a sleep: it may have been forgotten, and given to another name.
uint32_t worker_slot(const Db &db, const char *name) noexcept;

// Begins or ends the draining of a worker; beginning makes its slot if need be. False if the table is full, or if there is nothing to
// end. `holds` receives how many jobs run in its name: once it drains, it gets no others. Locks every queue in turn.
bool set_draining(const Db &db, const char *name, bool on, int32 *holds) noexcept;

// Whether its claims return nothing.
bool is_draining(uint32_t worker) noexcept;

// It has just asked for jobs.
void worker_seen(uint32_t worker, Micros wall, Micros mono) noexcept;

// Forgets workers that have held nothing and asked for nothing for an hour of the monotonic clock, drained or not; called by the
// scheduler, every second.
void forget_workers(const Db &db) noexcept;

// Forgets one that holds nothing: it will not come back.
void forget_worker(uint32_t worker) noexcept;

} // namespace tq::live
