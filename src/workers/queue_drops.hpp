// The end of tq_drop_queue: removes a closing queue when it has no more references (H12).
// Regime: PG. Locks: queue locks and the registry lock, briefly.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// Removes the row and the slot of every closing queue without live jobs and open enqueues. False if the extension is
// gone. Without such a queue it only checks the slots.
bool finish_drops(const WorkerContext &context, Db &db);

} // namespace tq
