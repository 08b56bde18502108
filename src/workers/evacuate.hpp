// Moving what must outlive its segment to segment 0, and cleaning segment 0 (R3).
// Regime: PG; each function runs transactions of its own. Locks: queue locks, briefly; never waits for a user's transaction.
#pragma once

#include "live/segments.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Copies the jobs of a segment that still live or are dead letters younger than `dead_before`, with their history, to segment 0. Jobs that
// run or are being changed by somebody are skipped: the segment stays until they end. Returns how many are left, -1 if the extension is gone.
int64 evacuate(const WorkerContext &context, live::Db &db, const live::SegmentView &segment, TimestampTz dead_before);

// Deletes finished jobs of segment 0 whose last event is older than their retention; false if the extension is gone.
bool clean_zero(const WorkerContext &context, live::Db &db, const live::SegmentView &zero, TimestampTz before, TimestampTz dead_before);

} // namespace tq::workers
