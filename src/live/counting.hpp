// Which commits a count of the journal has seen: commit callbacks and counts come in any order, and each change is to be counted once.
// Regime: PG; nothing here raises an error or allocates. Locks: the map lock, exclusive to note and keep a snapshot, shared to ask.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// What a transaction's commit callback does with the counters of lanes and segments.
enum class Counting : uint8
{
	plain,	 // no count has to do with it
	unseen,	 // the count under way does not see it: it goes into the deltas, too
	counted, // a count that came to its end has seen it, or the first load does, although its callback comes only now: nothing
};

// The snapshot of a count that begins in the transaction `own` (invalid if it has written nothing).
void note_count_snapshot(Db &db, Snapshot snapshot, TransactionId own) noexcept;

// The count has come to its end: what its snapshot sees is in the counters.
void keep_count_snapshot(Db &db) noexcept;

// For the transaction that is being committed; an invalid id is that of one that has written nothing.
Counting counting_of(const Db &db, FullTransactionId xid) noexcept;

} // namespace tq::live
