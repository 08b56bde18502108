// Segments that another session has locked against readers. Loaders skip them: watermarks rise as if the segments were
// empty, and lanes and timers record their position. When the lock is released, the watermarks fall to that position,
// and the skipped jobs are read in.
// Regime: PG; may ereport. Locks: queue locks, briefly.
#pragma once

#include "residency/load_batch.hpp"

namespace tq
{

// Call after a load has recorded positions in its lanes and timers: marks the segments that it skipped (`which`, null
// for none).
void note_skipped(Db &db, const LoadSegments &segments, const bool *which) noexcept;

// Reads segments whose lock has been released. Called in a transaction.
void read_skipped(Db &db);

} // namespace tq
