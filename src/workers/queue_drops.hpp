// The end of tq_drop_queue: a closing queue goes when nothing refers to it any more (H12).
// Regime: PG. Locks: queue locks and the registry lock, briefly.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Removes row and slot of every closing queue without live jobs and open enqueues. False if the extension is gone. Without such a queue
// it costs a look at the slots.
bool finish_drops(const WorkerContext &context, live::Db &db);

} // namespace tq::workers
