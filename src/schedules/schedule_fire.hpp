// Schedules, as the scheduler fires them.
// Regime: PG. Locks: those of an enqueue, and a row of tq.schedule FOR KEY SHARE, never waited for.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// Reads the schedules that have changed, enqueues due jobs, and prunes old rows. False if the extension is gone.
// Without schedules it only compares a counter.
bool fire_schedules(const WorkerContext &context, Db &db);

// When to call fire_schedules() again at the latest, by the wall clock and by the monotonic clock.
struct FiringPlan
{
	Micros wall;
	Micros mono;
	bool now; // schedules have changed since
};
FiringPlan firing_plan(const Db &db) noexcept;

} // namespace tq
