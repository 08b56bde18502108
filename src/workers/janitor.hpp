// The janitor of one database, started on demand: opens, seals, moves and drops segments, cleans segment 0, recounts.
// Regime: PG. Each step fails alone, and the scheduler asks for another run after a pause.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

void run_janitor(const WorkerContext &context);

// Is there something for it to do? `urgent`: it cannot wait (a segment is full, tables were touched).
bool janitor_needed(const live::Db &db, core::Micros now, bool *urgent);

} // namespace tq::workers
