// The end of a segment: one transaction drops both tables (R1).
// Regime: PG. Locks: AccessExclusiveLock on both tables, without queueing for it; the map lock, briefly.
#pragma once

#include "processes/worker.hpp"
#include "segments/segments.hpp"

namespace tq
{

// Drops a finished segment after its retention. Keeps it if another session has locked one of its tables, or if a live
// job is in it. Also keeps it if a job waits for one of its jobs whose end is not recorded yet. *changed: the segment
// is gone. False if the extension is gone.
bool drop_old_segment(const WorkerContext &context, Db &db, const SegmentView &s, bool *changed);

} // namespace tq
