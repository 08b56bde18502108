// Inserts rows into one table through its access method and keeps its indexes, partial ones included, without
// a plan. Regime: PG. Locks: the caller holds RowExclusiveLock on the table to the end of its transaction;
// each index that gets a tuple is locked RowExclusive for the call, as the executor does it. Raises whatever
// the access methods raise (unique_violation).
#pragma once

#include "pg/relation.hpp"

namespace tq::pg
{

// Opaque: EState, IndexInfo, prepared predicates, slots. Kept in the TableInfo between calls where that is safe.
struct Inserter;

// Makes ready for rows of `rel` and switches to a memory context that each flush resets:
// what rows point to may be allocated there.
Inserter *inserter_begin(Relation rel, TableInfo *info);

// The next row, all columns null: fill tts_values and tts_isnull by attnum - 1, then call inserter_add.
TupleTableSlot *inserter_row(Inserter *inserter);

// Takes the row into the batch; true if the batch is full (by rows or by bytes) and must be flushed before
// the next row.
bool inserter_add(Inserter *inserter);

// Inserts the batch and returns its number of rows; tids (may be null) receives where they went.
int inserter_flush(Inserter *inserter, ItemPointerData *tids);

// Closes the indexes and goes back to the caller's memory context. After an error nothing needs to be done.
void inserter_end(Inserter *inserter);

} // namespace tq::pg
