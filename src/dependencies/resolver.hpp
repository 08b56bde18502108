// Frees jobs whose parents have ended, or cancels them.
// Regime: PG. Locks: queue locks; rows of tq.dependency and tq.batch, for its own short transactions.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// One step of the scheduler; false if the extension is gone. Only this process writes the outcomes of parents. So when
// two parents end at once, the second check always sees the first outcome. Failures caused by single jobs are reported
// and retried later. After an error the caller calls note_all, because the notes are lost.
bool resolve(const WorkerContext &context, Db &db);

// When the resolver has work again (monotonic), kNever if it has none.
core::Micros next_resolve() noexcept;

} // namespace tq
