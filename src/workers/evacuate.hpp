// Moving what must outlive its segment to segment 0, and cleaning segment 0 (R3).
// Regime: PG; each function runs transactions of its own, and what it allocates goes with the caller's context after an error. Locks: queue locks, briefly; never waits for a user's transaction.
#pragma once

#include "live/segments.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Whether so few of a segment's jobs outlive it that they are moved, rather than kept where they are (R3). Of a finished one a hundred dead
// letters always are: they are no reason to keep the tables of a quiet hour for days.
constexpr bool few_outlive(int64 rows, int64 jobs, bool finished) noexcept
{
	return jobs * 10 <= rows || (finished && jobs <= 100);
}

// Whether nobody writes to the tables of a segment at this moment, or, if their locks are kept, until the end of the transaction.
bool nobody_writes(const journal::Segment &tables, bool keep_out = false);

// Copies the jobs of a segment that still live or are dead letters whose retention has not passed, with their history, to segment 0. Jobs
// that run or are being changed by somebody are skipped: the segment stays until they end, and so it does if it turns out to have many. Returns how many are left, -1 if the extension is gone.
int64 evacuate(const WorkerContext &context, live::Db &db, const live::SegmentView &segment, core::Micros now);

// Deletes finished jobs of segment 0 whose last event is older than the retention of their queue, or that were purged; false if the
// extension is gone.
bool clean_zero(const WorkerContext &context, live::Db &db, const live::SegmentView &zero, core::Micros now);

} // namespace tq::workers
