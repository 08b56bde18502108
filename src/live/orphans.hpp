// Jobs that wait for others while tq.dependency says nothing of them: its rows were deleted by hand, or not restored. Nobody would ever free
// them, so the audit says how many there are.
// Regime: PG; may ereport. Locks: AccessShareLock on what is read.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// The waiting jobs that a count has met; in `context`.
struct WaitingJobs
{
	MemoryContext context;
	JobId *ids;
	int64 n, room;
};
void note_waiting(WaitingJobs *list, JobId id);

// How many of them nobody frees. They were committed before.
int64 count_orphans(Db &db, const WaitingJobs &list);

} // namespace tq::live
