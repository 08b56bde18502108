// The janitor of one database, started on demand: opens, seals, moves and drops segments, cleans segment 0, recounts.
// Regime: PG. Each step fails alone, and the scheduler requests another run after a pause.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

void run_janitor(const WorkerContext &context);

// Does the janitor have work to do? `urgent`: it cannot wait (a segment is to be opened, a recount is requested, jobs
// on disk have expired).
bool janitor_needed(const Db &db, core::Micros now, bool *urgent);

} // namespace tq
