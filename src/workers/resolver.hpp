// Frees jobs whose parents have ended, or ends them too.
// Regime: PG. Locks: queue locks; rows of tq.dependency and tq.batch, for its own short transactions.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// One step of the scheduler; false if the extension is gone. One process alone writes the outcomes of parents, so of two that end at once
// the second always sees the first. What fails for jobs of its own is reported and tried again later. After an error the caller calls
// live::note_all: what was noted is lost.
bool resolve(const WorkerContext &context, live::Db &db);

// When it has something to do again (monotonic); kNever.
core::Micros next_resolve() noexcept;

} // namespace tq::workers
