// Restores jobs of schedules that are missing in the journal: deleted by hand, or left out of a restore.
// Regime: PG. Locks: those of an enqueue.
#pragma once

#include "schedules/schedule_list.hpp"

namespace tq
{

// Checks the last job of a schedule, unless it may have been dropped by now, and enqueues it again if it is gone. Needs
// an open transaction. False if the journal cannot be read now. `say`: log that; *locked: because another session holds
// a lock.
bool replace_lost(Db &db, const Planned &p, Micros now, bool say, bool *locked);

// For the janitor, which calls these in the transaction that drops or deletes rows. They record that the jobs are not
// lost, because retention may have become shorter since a schedule made its job. They apply to all ids of a range;
// in segment 0, where jobs outlive others, only to the given ids.
void let_fires_of_range_go(const Db &db, core::JobId first, core::JobId last);
void let_fires_go(const Db &db, const core::JobId *ids, int n);

} // namespace tq
