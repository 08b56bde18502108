// Starts workers: registers them with the postmaster when they are due, no DDL is under way and a slot is free.
//
// Regime: PG. Locks: "tq workers" inside slots.hpp; ddl_lock_tag(database) in ExclusiveLock, only tested and released
// at once. Raises: if memory is short; the launcher survives it.
#include "workers/starting.hpp"

#include "shmem/shared.hpp"
#include "workers/exit_handling.hpp"
#include "pg/prelude.hpp"

extern "C"
{
#include "replication/logicallauncher.h"
}

namespace tq
{

namespace
{

// Schedulers are started one at a time. A scheduler that cannot connect (DDL on its database) delays the others for
// this long at most.
constexpr int kStartPatienceMs = 5000;
// The time after which the launcher checks whether a start has begun.
constexpr int kStartLookMs = 1000;

// For how long a start waits for a free background worker, and a scheduler runs, before the scheduler must exit.
constexpr core::Micros kTurn = 5 * core::kSecond;

// The kinds that were logged. A start that succeeds clears all of them if no scheduler or janitor waits. Each kind is
// logged once, so another kind does not hide a missing scheduler: without it, its database is not served.
bool exhausted_logged[kKinds + 1] = {};

// A start that has found no free background worker.
struct Waiting
{
	Known *known;
	Kind kind;
	int slot;
	core::Micros since;
};

bool may_run(const Known *known) noexcept
{
	return known != nullptr && known->eligible && known->status != DbStatus::absent;
}

// The start that has waited for the longest time; `known` is null if none waits. Without `schedulers`, only starts of
// janitors count.
Waiting longest_waiting(bool schedulers) noexcept
{
	Waiting longest = {};

	for (int i = 0; i < slot_count(); i++)
	{
		DatabaseView v = view(i);
		Known *known = OidIsValid(v.database) ? find_known(v.database) : nullptr;

		for (Kind kind : {Kind::scheduler, Kind::janitor})
		{
			const WorkerView &worker = v.workers[static_cast<int>(kind)];

			if (may_run(known) && worker.waits_since != 0 && worker.stage == Stage::none &&
				(schedulers || kind != Kind::scheduler) &&
				(longest.known == nullptr || worker.waits_since < longest.since))
				longest = {known, kind, i, worker.waits_since};
		}
	}
	return longest;
}

bool register_worker(const Known *known, WorkerJob &job, const Assignment &assignment)
{
	BackgroundWorker worker;
	MemoryContext old;
	bool ok;

	memset(static_cast<void *>(&worker), 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
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
					  errmsg("out of background worker slots, could not start tq %s for database \"%s\"",
							 kind_name(kind), known->name),
					  errhint("Consider increasing the configuration parameter \"max_worker_processes\".")));
	exhausted_logged[static_cast<int>(kind)] = true;
}

// Starts a worker. False if that is not possible now; then the job's due time says when to try again.
bool launch(Known *known, Kind kind, int number = 0, Oid role = InvalidOid)
{
	WorkerJob &job = job_of(known, kind, number);
	int slot = acquire_slot(known->database);
	uint32 generation = slot < 0 ? 0 : begin_start(slot, known->database, kind, number);
	bool waited = kind != Kind::executor && slot >= 0 && view(slot).workers[static_cast<int>(kind)].waits_since != 0;
	Assignment assignment = {known->database, generation, slot, kind, number, role, waited};

	job.tried = steady_now();

	if (generation == 0)
	{
		job.due = in_ms(retry_ms());
		return false;
	}

	// Tested after the entry says `starting`; see lock_out_launcher() in lifecycle_hooks.cpp.
	if (ddl_under_way(known->database))
	{
		if (kind != Kind::executor)
			note_waiting(slot, kind, false);
		(void)abandon_start(slot, kind, generation, number,
							kind == Kind::executor ? ExitOutcome::stopped : ExitOutcome::none);
		if (kind != Kind::executor)
			postpone(known, kind);
		return false;
	}

	if (kind == Kind::scheduler)
	{
		known->check = false;
		known->status = DbStatus::open;
	}
	job.generation = generation;
	TQ_WAIT_POINT("start-before-register");
	if (!register_worker(known, job, assignment))
	{
		(void)abandon_start(slot, kind, generation, number,
							kind == Kind::executor ? ExitOutcome::no_worker_slot : ExitOutcome::none);
		if (kind != Kind::executor)
			note_waiting(slot, kind, true);
		job.due = in_ms(retry_ms());
		report_exhausted(known, kind);
		return false;
	}
	if (kind != Kind::executor)
		note_waiting(slot, kind, false);
	if (longest_waiting(true).known == nullptr)
		for (bool &logged : exhausted_logged)
			logged = false;
	return true;
}

bool is_young(const WorkerView &worker, core::Micros now) noexcept
{
	return (worker.stage == Stage::starting || worker.stage == Stage::connecting) &&
		   now - worker.since < kStartPatienceMs * core::Micros{1000};
}

// The due database whose scheduler start was tried least recently, so that requests for one do not delay the others. It
// only picks: a transaction must not begin or end during a scan of the hash table.
Known *pick_next(Overview *overview)
{
	core::Micros now = steady_now();
	Known *next = nullptr;

	for_each_known([&](Known *known) {
		const WorkerJob &job = job_of(known, Kind::scheduler);

		if (!may_run(known) || worker_present(known->database, Kind::scheduler))
			return;
		if (job.due > now)
			overview->next = Min(overview->next, job.due);
		else if (next == nullptr || job.tried < job_of(next, Kind::scheduler).tried)
			next = known;
	});
	return next;
}

// One at a time: a starting scheduler wakes the launcher when it is ready or gone.
void start_schedulers(Overview *overview)
{
	Known *known = pick_next(overview);

	while (known != nullptr && !overview->start_under_way)
	{
		if (launch(known, Kind::scheduler))
			overview->start_under_way = true;
		else
			known = pick_next(overview); // the due time of this one has moved
	}
}

// The request is cleared before the start: a later one means another run.
bool launch_janitor(Known *known, int slot)
{
	(void)exchange_janitor_wanted(slot, false);
	if (launch(known, Kind::janitor))
		return true;
	(void)exchange_janitor_wanted(slot, true);
	return false;
}

void start_janitors(Overview *overview)
{
	core::Micros now = steady_now();

	for (int i = 0; i < slot_count(); i++)
	{
		DatabaseView v = view(i);
		Known *known = OidIsValid(v.database) ? find_known(v.database) : nullptr;

		if (!may_run(known) || !v.installed || !v.janitor_wanted ||
			v.workers[static_cast<int>(Kind::janitor)].stage != Stage::none)
			continue;

		WorkerJob &job = known->jobs[static_cast<int>(Kind::janitor)];

		if (job.due > now || !launch_janitor(known, i))
			overview->next = Min(overview->next, job.due);
	}
}

// Starts those that wait, in the order in which they began to wait, up to the first that still finds no free background
// worker.
void start_waiting(Overview *overview)
{
	for (;;)
	{
		Waiting w = longest_waiting(!overview->start_under_way);

		if (w.known == nullptr)
			return;
		if (w.kind == Kind::janitor ? launch_janitor(w.known, w.slot) : launch(w.known, w.kind))
			overview->start_under_way = overview->start_under_way || w.kind == Kind::scheduler;
		else if (view(w.slot).workers[static_cast<int>(w.kind)].waits_since != 0)
			return;
	}
}

// If all background workers are used, schedulers and janitors take turns. After a start has waited for a turn, the
// scheduler that has run for the longest time exits. start_waiting() then starts the worker that has waited longest.
void take_turns(Overview *overview)
{
	const Waiting waiting = longest_waiting(true);
	core::Micros oldest = core::kNever;
	int slot = -1;

	if (waiting.known == nullptr)
		return;
	for (int i = 0; i < slot_count(); i++)
	{
		const WorkerView scheduler = view(i).workers[static_cast<int>(Kind::scheduler)];

		if (scheduler.stage == Stage::none)
			continue;
		if (scheduler.stage != Stage::ready || scheduler.stopping)
			return; // the background workers are being handed over
		if (scheduler.since < oldest)
		{
			oldest = scheduler.since;
			slot = i;
		}
	}
	if (slot < 0)
		return;
	const core::Micros due = Max(waiting.since, oldest) + kTurn;

	if (due <= steady_now())
		pass_turn(slot, view(slot).database);
	else
		overview->next = Min(overview->next, due);
}

// How many executors may run on this server. The slots that its other permanent workers need stay free: those of the
// launcher, of one scheduler per database, of a janitor, and of core's logical replication launcher.
int executors_allowed() noexcept
{
	int standing = 2 + (max_logical_replication_workers > 0 ? 1 : 0);

	for (int i = 0; i < slot_count(); i++)
		standing += view(i).installed ? 1 : 0;
	return max_worker_processes - standing;
}

// Starts the executors that schedulers have requested.
void start_executors()
{
	int allowed = executors_allowed();
	int present = 0;

	for (int i = 0; i < slot_count(); i++)
		for (int n = 0; n < executor_entries(); n++)
		{
			Stage stage = executor_view(i, n).worker.stage;

			present += stage != Stage::none && stage != Stage::wanted;
		}
	for (int i = 0; i < slot_count(); i++)
	{
		DatabaseView v = view(i);
		Known *known = OidIsValid(v.database) ? find_known(v.database) : nullptr;

		for (int n = 0; known != nullptr && n < executor_entries(); n++)
		{
			ExecutorView e = executor_view(i, n);

			if (e.worker.stage != Stage::wanted)
				continue;
			if (present < allowed && may_run(known) && v.installed)
				present += launch(known, Kind::executor, n, e.role);
			else if (uint32 generation = begin_start(i, v.database, Kind::executor, n))
			{
				if (present >= allowed)
					report_exhausted(known, Kind::executor);
				(void)abandon_start(i, Kind::executor, generation, n,
									present >= allowed ? ExitOutcome::no_worker_slot : ExitOutcome::stopped);
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
	core::Micros now = steady_now();

	for (int i = 0; i < slot_count(); i++)
		overview->start_under_way =
			overview->start_under_way || is_young(view(i).workers[static_cast<int>(Kind::scheduler)], now);
	if (guc::workers)
	{
		start_waiting(overview);
		start_schedulers(overview);
		start_janitors(overview);
		start_executors();
		take_turns(overview);
	}
	if (overview->start_under_way)
		overview->next = Min(overview->next, in_ms(kStartLookMs));
}

} // namespace tq
