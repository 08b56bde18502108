// The queues that the open transaction uses, and the rows of tq.queue that it has written.
// Regime: PG; use_queue and note_queue_row may allocate, the rest cannot fail. Locks: queue locks.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Counts this transaction once as a user of a queue (H12). False if the queue is closing.
bool use_queue(uint16_t queue);
bool queue_used_here(uint16_t queue) noexcept;

// Records that this transaction has written the row of a new queue. The queue has its row after a commit, and only its
// name after an abort.
void note_queue_row(uint16_t queue);

// --- for the end of a transaction or subtransaction

void leave_queues() noexcept;
void end_queue_rows(bool commit) noexcept;
void end_sub_queue_rows(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept;
bool queue_rows_pending() noexcept;
void forget_used_queues() noexcept;

} // namespace tq
