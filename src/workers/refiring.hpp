// Jobs of schedules that should be in the journal and are not: deleted by hand, or left out of a restore.
// Regime: PG. Locks: those of an enqueue.
#pragma once

#include "workers/schedule_list.hpp"

namespace tq::workers
{

// Looks at the last job of each schedule, unless it may have been dropped by now, and enqueues it again if it is gone; so many at most that
// `all` may be false. False if the extension is gone.
bool fire_lost_again(const WorkerContext &context, live::Db &db, const ScheduleList &schedules, Micros now, bool *all);

} // namespace tq::workers
