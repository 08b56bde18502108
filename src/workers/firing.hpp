// Schedules, as the scheduler fires them.
// Regime: PG. Locks: those of an enqueue, and a row of tq.schedule FOR KEY SHARE, never waited for.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Reads the schedules if they have changed, looks for lost jobs after a count of the journal, and enqueues what is due. False if the
// extension is gone. Without schedules it costs a look at a counter.
bool fire_schedules(const WorkerContext &context, live::Db &db);

// When it is to be called again, by the wall clock and by the monotonic one; at most that late.
struct FiringPlan
{
	live::Micros wall;
	live::Micros mono;
	bool now; // schedules have changed since
};
FiringPlan firing_plan(const live::Db &db) noexcept;

} // namespace tq::workers
