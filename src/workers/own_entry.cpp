// This process's own entry, if it is a worker: taken, made ready and left; and what an executor says there of its job; see slots.hpp.
//
// Regime: PG; nothing here raises. Locks: "tq workers", held only inside.
#include "pg/prelude.hpp"

#include "guc.hpp"
#include "live/shared.hpp"
#include "workers/slot_table.hpp"

namespace tq::workers
{

namespace
{

Worker *my_worker = nullptr;
Slot *my_slot = nullptr;
uint32 my_generation = 0;
Kind my_kind = Kind::scheduler;
Outcome my_outcome = Outcome::failed;

} // namespace

bool worker_attach(const Assignment &assignment) noexcept
{
	if (shared == nullptr || assignment.slot < 0 || assignment.slot >= shared->nslots)
		return false;
	return with_lock(LW_EXCLUSIVE, [&] {
		Worker &worker = entry(assignment.slot, assignment.kind, assignment.number);

		if (worker.stage != Stage::starting || worker.generation != assignment.generation ||
			shared->slots[assignment.slot].database.load() != assignment.database)
			return false;
		worker.stage = Stage::connecting;
		worker.pid = MyProcPid;
		worker.proc = my_proc_ref();
		worker.since = live::steady_now();
		worker.healthy_ms = 0;
		my_slot = &shared->slots[assignment.slot];
		my_worker = &worker;
		my_generation = assignment.generation;
		my_kind = assignment.kind;
		return true;
	});
}

bool worker_ready(Oid database) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		int others = 0;

		for (int i = 0; i < shared->nslots; i++)
			if (&shared->slots[i] != my_slot && shared->slots[i].installed)
				others++;
		if (others >= guc::max_databases)
			return false;
		my_slot->installed = true;
		my_worker->stage = Stage::ready;
		my_worker->since = live::steady_now();
		if (my_kind == Kind::scheduler)
			my_slot->scheduler.store(my_worker->proc);
		return true;
	});
}

void worker_set_outcome(Outcome outcome) noexcept { my_outcome = outcome; }

void worker_detach() noexcept
{
	if (my_worker == nullptr)
		return;
	TQ_WAIT_POINT_NOFAIL("worker-leaving");
	with_lock(LW_EXCLUSIVE, [&] {
		if (my_worker->pid == MyProcPid && my_worker->generation == my_generation)
		{
			bool stopped = my_worker->stop.load() != 0;

			if (my_worker->stage == Stage::ready)
				my_worker->healthy_ms = (live::steady_now() - my_worker->since) / 1000;
			if (my_kind == Kind::scheduler)
				my_slot->scheduler.store(0);
			else if (my_kind == Kind::executor)
			{
				Executor &me = *static_cast<Executor *>(my_worker);

				me.handler = 0;
				me.job = me.lease = 0;
				ring(my_slot->scheduler.load());
			}
			clear(*my_worker, stopped ? Outcome::stopped : my_outcome);
		}
	});
	my_worker = nullptr;
	ConditionVariableBroadcast(&shared->gone);
	wake_launcher();
}

bool worker_stop_requested() noexcept { return my_worker != nullptr && my_worker->stop.load() != 0; }

bool executor_engage(uint64 handler, int max, int queue_max) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		int slot = static_cast<int>(my_slot - shared->slots);
		int engaged = 0;
		int by_queue = 0;

		for (int i = 0; i < shared->nexecutors; i++)
		{
			engaged += executor(slot, i).handler == handler;
			by_queue += executor(slot, i).handler >> 32 == handler >> 32;
		}
		if (engaged >= max || by_queue >= queue_max)
			return false;
		static_cast<Executor *>(my_worker)->handler = handler;
		return true;
	});
}

bool executor_runs(int64 job, int64 lease) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		Executor &me = *static_cast<Executor *>(my_worker);

		me.job = job;
		me.lease = lease;
		return me.stop.load() == kStopNow;
	});
}

void executor_disengage(bool ring_scheduler) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		static_cast<Executor *>(my_worker)->handler = 0;
		if (ring_scheduler)
			ring(my_slot->scheduler.load());
	});
}

} // namespace tq::workers
