// The end of a segment: both tables go at once (P8).
// Regime: PG. Locks: AccessExclusiveLock on both tables, without queueing for it; the map lock, briefly.
#pragma once

#include "live/segments.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Drops a finished segment whose time is over, unless somebody has one of its tables, something lives in it, or somebody waits for a job of
// it whose end is not recorded yet; *changed if it is gone. False if the extension is.
bool drop_old_segment(const WorkerContext &context, live::Db &db, const live::SegmentView &s, bool *changed);

} // namespace tq::workers
