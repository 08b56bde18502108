// This process's own entry, if it is a worker: attaches, marks it ready, detaches, and records an executor's job; see
// slots.hpp.
//
// Regime: PG; nothing here raises. Locks: "tq workers", held only inside.
#include "pg/prelude.hpp"

#include "processes/slot_table.hpp"
#include "shmem/shared.hpp"

namespace tq
{

namespace
{

struct Own
{
	WorkerEntry *worker = nullptr;
	Slot *slot = nullptr;
	uint32 generation = 0;
	Kind kind = Kind::scheduler;
	ExitOutcome outcome = ExitOutcome::failed;
};
Own own;

} // namespace

bool worker_attach(const Assignment &assignment) noexcept
{
	if (shared == nullptr || assignment.slot < 0 || assignment.slot >= shared->nslots)
		return false;
	return with_lock(LW_EXCLUSIVE, [&] {
		WorkerEntry &worker = entry(assignment.slot, assignment.kind, assignment.number);

		if (worker.stage != Stage::starting || worker.generation != assignment.generation ||
			shared->slots[assignment.slot].database.load() != assignment.database)
			return false;
		worker.stage = Stage::connecting;
		worker.pid = MyProcPid;
		worker.proc = my_proc_ref();
		worker.since = steady_now();
		worker.healthy_ms = 0;
		own.slot = &shared->slots[assignment.slot];
		own.worker = &worker;
		own.generation = assignment.generation;
		own.kind = assignment.kind;
		return true;
	});
}

void worker_ready() noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		own.slot->installed = true;
		own.worker->stage = Stage::ready;
		own.worker->since = steady_now();
		if (own.kind == Kind::scheduler)
			own.slot->scheduler.store(own.worker->proc);
	});
}

void worker_set_outcome(ExitOutcome outcome) noexcept { own.outcome = outcome; }

void worker_detach() noexcept
{
	if (own.worker == nullptr)
		return;
	TQ_WAIT_POINT_NOFAIL("worker-leaving");
	with_lock(LW_EXCLUSIVE, [&] {
		if (own.worker->pid == MyProcPid && own.worker->generation == own.generation)
		{
			bool stopped = own.worker->stop.load() != 0;

			if (own.worker->stage == Stage::ready)
				own.worker->healthy_ms = (steady_now() - own.worker->since) / 1000;
			if (own.kind == Kind::scheduler)
				own.slot->scheduler.store(0);
			else if (own.kind == Kind::executor)
			{
				Executor &me = *static_cast<Executor *>(own.worker);

				me.handler = 0;
				me.job = me.lease = 0;
				wake(own.slot->scheduler.load());
			}
			clear(*own.worker, stopped ? ExitOutcome::stopped : own.outcome);
		}
	});
	own.worker = nullptr;
	ConditionVariableBroadcast(&shared->gone);
	wake_launcher();
}

bool stop_requested() noexcept { return own.worker != nullptr && own.worker->stop.load() != 0; }

bool executor_engage(uint64 handler, int max, int queue_max, int allowed, const uint64 *runnable, int n) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		int slot = static_cast<int>(own.slot - shared->slots);
		int engaged = 0;
		int by_queue = 0;
		int busy = 0;

		for (int i = 0; i < shared->nexecutors; i++)
		{
			engaged += executor(slot, i).handler == handler;
			by_queue += executor(slot, i).handler >> 32 == handler >> 32;
			busy += executor(slot, i).handler != 0;
		}
		auto runs = [slot](uint64 other) noexcept {
			for (int i = 0; i < shared->nexecutors; i++)
				if (executor(slot, i).handler == other)
					return true;
			return false;
		};
		if (leaves_last_executor(handler, engaged, allowed - busy, runnable, n, runs))
			return false;
		if (engaged >= max || by_queue >= queue_max)
			return false;
		static_cast<Executor *>(own.worker)->handler = handler;
		return true;
	});
}

bool executor_runs(int64 job, int64 lease) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		Executor &me = *static_cast<Executor *>(own.worker);

		me.job = job;
		me.lease = lease;
		return me.stop.load() == kStopNow;
	});
}

void executor_disengage(bool wakes_scheduler) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		Executor &me = *static_cast<Executor *>(own.worker);

		me.handler = 0;
		me.job = 0;
		if (wakes_scheduler)
			wake(own.slot->scheduler.load());
	});
}

} // namespace tq
