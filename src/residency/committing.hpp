// The entry of a job that the open transaction has enqueued.
// Regime: PG, but nothing here raises an error, allocates or waits. Locks: the caller holds the queue's lock.
#pragma once

#include "transaction/pending.hpp"

namespace tq
{

// Gives the job of an enqueue an entry in state committing, and notes it in op.ref; kNil if memory is full. `must`: it
// may use the entries kept for pins, and evict any other job.
void make_committing(Db &db, Op &op, bool must, bool delayed) noexcept;

} // namespace tq
