// Segments that were finished and are read again: by a verb, or since rows were written into them past tq.
// Regime: PG; may ereport unless noexcept. Locks: map lock; RowExclusiveLock on the event table (reopen_segment); rows of tq.segment, which
// only reopen_written waits for.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// For a verb that gives a finished job a new life: its segment is read again at the next load, from this transaction on. The
// caller's RowExclusiveLock on the event table (taken here) keeps the janitor from finishing or dropping it meanwhile. Raises 55P03 if
// another transaction is at it.
void reopen_segment(Db &db, int slot);

// For the reload triggers: this statement has written to a table of a segment past tq. If the segment was finished, the next count reads
// it; the writer's own lock on the table keeps the janitor out till his commit has asked for that count. Waits for others who open it.
void reopen_written(Oid table);

// For the janitor, which counts next: segments whose triggers were off, when rows may have come, are read, too, and those of which
// tq.segment says that they are not finished. And it follows the map: of no segment that is to be read it says that it is.
void reopen_untold(Db &db);

} // namespace tq::live
