// Notifications of queues for sessions that LISTEN (setting notify). They are coalesced, and never sent in the commit
// of the transaction that caused them.
// Regime: PG. Locks: queue locks; the lock that every NOTIFY takes until its commit, never waited for.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// Sends one notification for each queue with unsent events, unless it has sent one within tq.notify_interval. False if
// the extension is gone.
bool send_notifications(const WorkerContext &context, Db &db);

// When a queue's notification is due (monotonic), kNever if the queue has no unsent events.
core::Micros notification_due(uint16_t slot, const core::Queue &q) noexcept;

// Returns unsent events to their queues. A scheduler calls it before it exits.
void return_notifications() noexcept;

} // namespace tq
