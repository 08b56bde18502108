// Starts workers: registers them with the postmaster when they are due, no DDL is under way and a slot is free.
//
// Regime: PG. Locks: "tq workers" inside slots.hpp; ddl_lock_tag(database) in ExclusiveLock, only tested and let go at once.
// Raises: on lack of memory; the launcher survives it.
#include "pg/prelude.hpp"

#include "live/shared.hpp"
#include "workers/outcomes.hpp"
#include "workers/starting.hpp"

extern "C"
{
#include "replication/logicallauncher.h"
}

namespace tq::workers
{

namespace
{

// Schedulers are started one at a time, but one that cannot connect (DDL on its database) does not keep the
// others waiting for longer.
constexpr int kStartPatienceMs = 5000;
// How long it is given before somebody looks whether it has begun.
constexpr int kStartLookMs = 1000;

// Since a worker could last be started: of each kind it is said once, since it is the scheduler without which nothing is looked after.
bool exhausted_logged[kKinds + 1] = {};

bool register_worker(const Known *known, Job &job, const Assignment &assignment)
{
	BackgroundWorker worker;
	MemoryContext old;
	bool ok;

	memset(static_cast<void *>(&worker), 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
#ifdef BGWORKER_INTERRUPTIBLE
	worker.bgw_flags |= BGWORKER_INTERRUPTIBLE;
#endif
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), "tq");
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name), "tq_worker_main");
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "tq %s", kind_name(assignment.kind));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "tq %s %s", kind_name(assignment.kind), known->name);
	static_assert(sizeof(assignment) <= BGW_EXTRALEN);
	memcpy(worker.bgw_extra, &assignment, sizeof(assignment));

	drop_handle(job);
	old = MemoryContextSwitchTo(launcher_context);
	ok = RegisterDynamicBackgroundWorker(&worker, &job.handle);
	MemoryContextSwitchTo(old);
	return ok;
}

void report_exhausted(const Known *known, Kind kind)
{
	if (!exhausted_logged[static_cast<int>(kind)])
		ereport(LOG, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					  errmsg("out of background worker slots, could not start tq %s for database \"%s\"", kind_name(kind),
							 known->name),
					  errhint("Consider increasing the configuration parameter \"max_worker_processes\".")));
	exhausted_logged[static_cast<int>(kind)] = true;
}

// Start a worker. False if that was not possible now; then the job's due time says when to try again.
bool launch(Known *known, Kind kind, int number = 0, Oid role = InvalidOid)
{
	Job &job = job_of(known, kind, number);
	int slot = acquire_slot(known->database);
	uint32 generation = slot < 0 ? 0 : begin_start(slot, known->database, kind, number);
	Assignment assignment = {known->database, generation, slot, kind, number, role};

	if (generation == 0)
	{
		job.due = in_ms(retry_ms());
		return false;
	}

	// After the entry says `starting`; see hold() in lifecycle_hooks.cpp.
	if (ddl_under_way(known->database))
	{
		(void)abandon_start(slot, kind, generation, number, kind == Kind::executor ? Outcome::stopped : Outcome::none);
		if (kind != Kind::executor)
			postpone(known, kind);
		return false;
	}

	if (kind == Kind::scheduler)
		known->check = false;
	job.generation = generation;
	TQ_WAIT_POINT("start-before-register");
	if (!register_worker(known, job, assignment))
	{
		(void)abandon_start(slot, kind, generation, number, kind == Kind::executor ? Outcome::no_room : Outcome::none);
		job.due = in_ms(retry_ms());
		report_exhausted(known, kind);
		return false;
	}
	for (bool &logged : exhausted_logged)
		logged = false;
	return true;
}

bool is_young(const WorkerView &worker, core::Micros now) noexcept
{
	return (worker.stage == Stage::starting || worker.stage == Stage::connecting) &&
		   now - worker.since < kStartPatienceMs * core::Micros{1000};
}

// The database whose scheduler is missing for the longest time. Only picks: a transaction must not begin or end
// while the hash table is being scanned.
Known *pick_next(Overview *overview)
{
	core::Micros now = live::steady_now();
	Known *next = nullptr;

	for_each_known([&](Known *known) {
		core::Micros due = known->jobs[static_cast<int>(Kind::scheduler)].due;

		if (!known->eligible || known->belief != Belief::open || worker_present(known->database, Kind::scheduler))
			return;
		if (due > now)
			overview->next = Min(overview->next, due);
		else if (next == nullptr || due < next->jobs[static_cast<int>(Kind::scheduler)].due)
			next = known;
	});
	return next;
}

// One at a time: whoever is on his way rings when he is ready or gone.
void start_schedulers(Overview *overview)
{
	Known *known = pick_next(overview);

	while (known != nullptr && !overview->start_under_way)
	{
		if (launch(known, Kind::scheduler))
			overview->start_under_way = true;
		else
			known = pick_next(overview); // this one's time has been put off
	}
}

void start_janitors(Overview *overview)
{
	core::Micros now = live::steady_now();

	for (int i = 0; i < slot_count(); i++)
	{
		DatabaseView v = view(i);
		Known *known = OidIsValid(v.database) ? find_known(v.database) : nullptr;

		if (known == nullptr || !known->eligible || known->belief != Belief::open || !v.installed ||
			!v.janitor_wanted || v.workers[static_cast<int>(Kind::janitor)].stage != Stage::none)
			continue;

		Job &job = known->jobs[static_cast<int>(Kind::janitor)];

		// Cleared before the start: a request that comes later means another run.
		if (job.due <= now)
		{
			(void)exchange_janitor_wanted(i, false);
			if (launch(known, Kind::janitor))
				continue;
			(void)exchange_janitor_wanted(i, true);
		}
		overview->next = Min(overview->next, job.due);
	}
}

// How many executors may run on this server: the slots that its other standing workers need stay free, those of tq's launcher, of a
// scheduler for each database, of a janitor, and of core's own logical replication launcher.
int executors_allowed() noexcept
{
	int standing = 2 + (max_logical_replication_workers > 0 ? 1 : 0);

	for (int i = 0; i < slot_count(); i++)
		standing += view(i).installed ? 1 : 0;
	return max_worker_processes - standing;
}

// Those that schedulers have asked for.
void start_executors()
{
	int allowed = executors_allowed();
	int present = 0;

	for (int i = 0; i < slot_count(); i++)
		for (int n = 0; n < executor_places(); n++)
		{
			Stage stage = executor_view(i, n).worker.stage;

			present += stage != Stage::none && stage != Stage::wanted;
		}
	for (int i = 0; i < slot_count(); i++)
	{
		DatabaseView v = view(i);
		Known *known = OidIsValid(v.database) ? find_known(v.database) : nullptr;

		for (int n = 0; known != nullptr && n < executor_places(); n++)
		{
			ExecutorView e = executor_view(i, n);

			if (e.worker.stage != Stage::wanted)
				continue;
			if (present < allowed && known->eligible && known->belief == Belief::open && v.installed)
				present += launch(known, Kind::executor, n, e.role);
			else if (uint32 generation = begin_start(i, v.database, Kind::executor, n))
			{
				if (present >= allowed)
					report_exhausted(known, Kind::executor);
				(void)abandon_start(i, Kind::executor, generation, n, present >= allowed ? Outcome::no_room : Outcome::stopped);
			}
		}
	}
}

} // namespace

bool ddl_under_way(Oid database)
{
	LOCKTAG tag = ddl_lock_tag(database);
	bool held;

	StartTransactionCommand();
	held = LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL;
	if (!held)
		LockRelease(&tag, ExclusiveLock, false);
	CommitTransactionCommand();
	MemoryContextSwitchTo(cycle_context);
	return held;
}

void start_workers(Overview *overview)
{
	core::Micros now = live::steady_now();

	for (int i = 0; i < slot_count(); i++)
		overview->start_under_way = overview->start_under_way || is_young(view(i).workers[static_cast<int>(Kind::scheduler)], now);
	if (guc::workers)
	{
		start_schedulers(overview);
		start_janitors(overview);
		start_executors();
	}
	if (overview->start_under_way)
		overview->next = Min(overview->next, in_ms(kStartLookMs));
}

} // namespace tq::workers
