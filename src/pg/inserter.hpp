// Inserts rows into one table through its access method and updates its indexes, partial ones included, without a plan.
// Regime: PG. Locks: the caller holds RowExclusiveLock on the table until its transaction ends. Each index that gets a
// tuple is locked RowExclusive during the call, as in the executor. The caller has an active or registered snapshot:
// since 18 the heap needs one for values out of line. Raises the errors of the access methods (unique_violation).
#pragma once

#include "pg/relation.hpp"

namespace tq::pg
{

// Opaque: EState, IndexInfo, prepared predicates, slots. The TableInfo keeps it between calls if that is safe.
struct Inserter;

// Prepares insertions into `rel`. Switches to a memory context that each flush resets; the values of rows may be
// allocated in it.
Inserter *inserter_begin(Relation rel, TableInfo *info);

// The next row, all columns null: fill tts_values and tts_isnull by attnum - 1, then call inserter_add.
TupleTableSlot *inserter_row(Inserter *inserter);

// Adds the row to the batch. True if the batch is full (by rows or by bytes): flush it before the next row.
bool inserter_add(Inserter *inserter);

// Inserts the batch (at least one row) and returns its number of rows. Writes their positions to `tids` unless it is
// null. The transaction sees the rows after its next CommandCounterIncrement().
int inserter_flush(Inserter *inserter, ItemPointerData *tids);

// Closes the indexes and restores the caller's memory context. Not needed after an error.
void inserter_end(Inserter *inserter);

} // namespace tq::pg
