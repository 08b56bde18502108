// News of queues for those who LISTEN (setting notify): coalesced, and never in the commit of whoever caused them.
// Regime: PG. Locks: queue locks; the one that every NOTIFY takes until its commit, never waited for.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// One notification for each queue that has news and has sent none for tq.notify_interval. False if the extension is gone.
bool send_news(const WorkerContext &context, live::Db &db);

// When a queue's news are due (monotonic), kNever if it has none.
core::Micros news_due(uint16_t slot, const core::Queue &q) noexcept;

// What was taken from the queues and could not be sent goes back to them; for a scheduler that leaves.
void return_news() noexcept;

} // namespace tq::workers
