// Tells which commits a count of the journal has seen. Commit callbacks and counts run in any order, and each change
// must be counted once.
// Regime: PG; nothing here raises an error or allocates. Locks: the map lock, exclusive to note and keep a snapshot,
// shared to ask.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The effect of a commit callback on the counters of lanes and segments.
enum class Counting : uint8
{
	plain,	 // no count matters to this transaction: change the counters only
	unseen,	 // the running count does not see it: change the counters and the deltas
	counted, // a finished count has seen it, or the first load sees it: change nothing
};

// Keeps the snapshot of a count that begins in transaction `own` (invalid if it has written nothing).
void note_count_snapshot(Db &db, Snapshot snapshot, TransactionId own) noexcept;

// The count has finished: the counters include what its snapshot sees.
void keep_count_snapshot(Db &db) noexcept;

// For the transaction that is committing; its id is invalid if it has written nothing.
Counting counting_of(const Db &db, FullTransactionId xid) noexcept;

} // namespace tq
