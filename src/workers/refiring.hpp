// Jobs of schedules that should be in the journal and are not: deleted by hand, or left out of a restore.
// Regime: PG. Locks: those of an enqueue.
#pragma once

#include "workers/schedule_list.hpp"

namespace tq::workers
{

enum class Looked : uint8
{
	at_all,
	at_some, // there is more to be made again
	failed,	 // of some the journal cannot be asked now
	refused, // the extension is gone
};

// Looks at the last job of each schedule, unless it may have been dropped by now, and enqueues it again if it is gone.
Looked fire_lost_again(const WorkerContext &context, live::Db &db, const ScheduleList &schedules, Micros now);

// The janitor's: before rows go with their retention, which may have become shorter since a schedule made its job, says that they are not
// gone. In the transaction that drops or deletes them: all ids of a range, or those that are in a segment, whose tables the caller has
// locked; of segment 0 (jobs outlive others there) only the ids that are named.
void let_fires_of_range_go(const live::Db &db, core::JobId first, core::JobId last);
void let_fires_of_segment_go(const live::Db &db, const journal::Segment &segment);
void let_fires_go(const live::Db &db, const core::JobId *ids, int n);

} // namespace tq::workers
