// Turns the operations of a transaction into live state: the steps of PRE_COMMIT, COMMIT and ABORT for one operation
// each. src/commit/README.md has the steps and the races.
// Regime: PG, but nothing here raises an error, allocates or waits (other than for a lock). Locks: takes queue locks;
// the caller of publish and publish_bulks holds the map lock (shared).
#pragma once

#include "transaction/counting.hpp"
#include "transaction/pending.hpp"

namespace tq
{

// PRE_COMMIT: gives an enqueued job an entry in state committing, so that a loader that sees the row before publish()
// skips the job (H2). If memory is full or a backlog on disk precedes it, the job stays on disk; publish() then lowers
// the watermark. Returns false if memory is full and the job must be in memory. It must if the transaction has
// rescheduled it (kOverride): a loader would read the old time or priority from its row.
bool register_enqueue(Db &db, Op &op) noexcept;

// COMMIT.
void publish(Db &db, const Op &op, Counting counting) noexcept;
// COMMIT, for all sums (transaction/bulks.hpp).
void publish_bulks(Db &db, Counting counting) noexcept;

// A superseded job that waits for another attempt ends instead. Queue lock held.
void end_superseded(Entry &e) noexcept;

// ABORT of the transaction or of a savepoint (undo.cpp).
void undo(Db &db, const Op &op) noexcept;

} // namespace tq
