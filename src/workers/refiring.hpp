// Jobs of schedules that should be in the journal and are not: deleted by hand, or left out of a restore.
// Regime: PG. Locks: those of an enqueue.
#pragma once

#include "workers/schedule_list.hpp"

namespace tq::workers
{

// Looks at the last job of each schedule, unless it may have been dropped by now, and enqueues it again if it is gone; so many at most that
// `all` may be false. False if the extension is gone.
bool fire_lost_again(const WorkerContext &context, live::Db &db, const ScheduleList &schedules, Micros now, bool *all);

// The janitor's: before rows go with their retention, which may have become shorter since a schedule made its job, says that they are not
// gone. In the transaction that drops or deletes them; of segment 0 (jobs outlive others there) only the ids that are named.
void let_fires_of_segment_go(const live::Db &db, core::JobId first, core::JobId last);
void let_fires_go(const live::Db &db, const core::JobId *ids, int n);

} // namespace tq::workers
