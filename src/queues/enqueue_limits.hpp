// Limits on producers: max_depth and enqueue_rate of a queue.
// Regime: PG. Locks: the queue's, briefly.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Admits n more jobs of this transaction to a queue, or raises TQ003. With max_depth, raises TQ009 if the load takes
// too long.
// max_depth counts live jobs and the jobs admitted for open transactions. enqueue_rate admits a call while its bucket
// is not empty, and takes n tokens. A large call overdraws the bucket; later calls are refused until it has refilled. A
// rollback returns no tokens.
// `replacing`: how many of the jobs replace a waiting job, so that the queue does not grow. `overdraw`: the caller
// cannot retry, so the jobs count but are never refused.
void charge_enqueues(uint16_t queue, int64 n, int64 replacing = 0, bool overdraw = false);

// Returns tokens for n jobs that were admitted but not enqueued.
void refund_enqueues(uint16_t queue, int64 n) noexcept;

// Queue lock held, while n jobs of this transaction are published: they now count as live jobs. -1: one of these jobs
// replaces a job that has ended.
void publish_enqueue_charges(Queue &q, uint16_t queue, int64 n) noexcept;

// Waits until charge_enqueues() can count. Call it before taking locks that others wait for. Raises TQ009.
void await_enqueue_limits(Db &db, uint16_t queue);

// Admissions end with the open transaction, or with a savepoint that is rolled back.
void end_enqueue_charges() noexcept;
void end_sub_enqueue_charges(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept;

} // namespace tq
