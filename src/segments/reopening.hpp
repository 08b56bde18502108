// Reopens finished segments, because a verb needs them or because rows were written into them outside tq.
// Regime: PG; may ereport unless noexcept. Locks: map lock; RowExclusiveLock on the event table (reopen_segment); rows
// of tq.segment, for which only reopen_written waits.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// For a verb that gives an ended job a new life: from this transaction on, the next load reads its segment again. Takes
// RowExclusiveLock on the event table, which keeps the janitor from finishing or dropping the segment. Raises 55P03 if
// another transaction is reopening it.
void reopen_segment(Db &db, int slot);

// For the reload triggers: this statement has written to a table of a segment outside tq. If the segment was finished,
// the next count reads it. The writer's table lock blocks the janitor until its commit has requested that count. Waits
// for other transactions that reopen the segment.
void reopen_written(Oid table);

// For the janitor, before a count: reopens segments whose triggers were off, because rows may have been added, and
// segments that tq.segment does not record as finished. Then clears `finished_at` in tq.segment for every segment that
// the map has unfinished.
void reopen_untold(Db &db);

} // namespace tq
