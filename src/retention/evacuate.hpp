// Moves the jobs that must outlive their segment to segment 0, and cleans segment 0 (R3).
// Regime: PG; each function runs separate transactions. After an error, the caller's context frees its memory. Locks:
// queue locks, briefly; never waits for a user's transaction.
#pragma once

#include "processes/worker.hpp"
#include "retention/segment_policy.hpp"

namespace tq
{

// True if no transaction writes to the tables of a segment at this moment. With keep_out, keeps their locks until the
// transaction ends.
bool no_session_writes(const journal::Segment &tables, bool keep_out = false);

// Copies jobs of a segment, with their history, to segment 0: live jobs, and dead letters until their retention ends.
// Skips jobs that are running or that another transaction is changing; the segment stays until they end. The segment
// also stays if it turns out to have too many jobs to move. A segment that keeps some jobs is read again after 60 naps
// at the earliest, and after a hundred times the duration of this call. Returns how many jobs remain, -1 if the
// extension is gone.
int64 evacuate(const WorkerContext &context, Db &db, const SegmentView &segment, const SegmentRules &rules);

// Deletes jobs of segment 0 that ended longer ago than their queue's retention; a purged job counts as finished. Keeps
// jobs that others wait for. False if the extension is gone.
bool clean_zero(const WorkerContext &context, Db &db, const SegmentView &zero, const SegmentRules &rules);

} // namespace tq
