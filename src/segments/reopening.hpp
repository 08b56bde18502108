// Reopens finished segments, because a verb needs them.
// Regime: PG; may ereport. Locks: map lock; RowExclusiveLock on the event table; rows of tq.segment, without waiting.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// For a verb that gives an ended job a new life: from this transaction on, the next load reads its segment again. Takes
// RowExclusiveLock on the event table, which keeps the janitor from finishing or dropping the segment. Raises 55P03 if
// another transaction is reopening it.
void reopen_segment(Db &db, int slot);

} // namespace tq
