// The launcher: finds the databases that have the extension, starts and restarts their workers. See README.md
// beside this file for the state diagrams.
//
// Regime: PG. Locks: "tq workers" inside slots.cpp; ddl_lock_tag(database) in ExclusiveLock, only tested and
// let go at once. Connected to no database, so it is in nobody's way. Raises: an ERROR in a cycle is reported
// and survived; only termination ends it, and the postmaster then starts another one.
#include "pg/prelude.hpp"

#include "guc.hpp"
#include "live/attach.hpp"
#include "workers/launcher.hpp"
#include "workers/slots.hpp"

extern "C"
{
#include "catalog/pg_database.h"
#include "replication/logicallauncher.h"
#include "utils/hsearch.h"
}

extern "C" PGDLLEXPORT void tq_launcher_main(Datum main_arg);

namespace tq::workers
{

namespace
{

// Pauses between restarts of a worker that fails; forgotten after it has been well for so long.
constexpr int kBackoffMinMs = 1000;
constexpr int kBackoffMaxMs = 60000;
constexpr int64 kHealthyMs = 60000;
// Schedulers are started one at a time, but one that cannot connect (DDL on its database) does not keep the
// others waiting for longer.
constexpr int kStartPatienceMs = 5000;
// While DDL is under way: first pause between looks at its lock, doubling to tq.naptime.
constexpr int kHoldPauseMs = 50;
// Everything rings; this is for what does not, such as an UPDATE of pg_database.
constexpr int kIdleMs = 60000;
constexpr int kErrorPauseMs = 1000;
constexpr int kRestartSeconds = 5;

enum class Belief : uint8_t
{
	open,	 // has the extension, or is not known not to: a scheduler is to run
	absent,	 // has it not; looked at again when something rings
	crowded, // has it, but tq.max_databases is reached
};

struct Job
{
	TimestampTz due;   // not to be started before
	int backoff_ms;	   // the last pause after a failure, 0 = none
	uint32 generation; // of the start that `handle` is about
	BackgroundWorkerHandle *handle;
};

struct Known
{
	Oid database; // hash key
	char name[NAMEDATALEN];
	bool seen;	   // in the current scan
	bool eligible; // takes connections, is no template
	bool check;	   // something rang since the last start
	Belief belief;
	int hold_ms; // the last pause for DDL, 0 = none
	Job jobs[kKinds];
	Job *executors; // one for each place
};

MemoryContext long_context = nullptr;
MemoryContext cycle_context = nullptr;
HTAB *known_databases = nullptr;
bool check_everything = true; // after an error requests may have been lost
bool workers_were_on = true;
bool exhausted_logged = false;
bool crowded_logged = false;

Known *find_known(Oid database) noexcept
{
	return static_cast<Known *>(hash_search(known_databases, &database, HASH_FIND, nullptr));
}

Known *enter_known(Oid database)
{
	bool found;
	auto known = static_cast<Known *>(hash_search(known_databases, &database, HASH_ENTER, &found));

	if (!found)
	{
		memset(static_cast<void *>(known), 0, sizeof(Known));
		known->database = database;
		known->belief = Belief::open;
		known->executors = static_cast<Job *>(
			MemoryContextAllocZero(long_context, sizeof(Job) * static_cast<Size>(Max(executor_places(), 1))));
	}
	return known;
}

Job &job_of(Known *known, Kind kind, int number = 0) noexcept
{
	return kind == Kind::executor ? known->executors[number] : known->jobs[static_cast<int>(kind)];
}

template <typename Body>
void for_each_known(Body body)
{
	HASH_SEQ_STATUS status;

	hash_seq_init(&status, known_databases);
	while (auto known = static_cast<Known *>(hash_seq_search(&status)))
		body(known);
}

void drop_handle(Job &job) noexcept
{
	if (job.handle != nullptr)
		pfree(job.handle);
	job.handle = nullptr;
}

TimestampTz in_ms(int ms) noexcept { return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms); }

// The pause after which something that could not be done is tried again.
int retry_ms() noexcept { return Max(guc::naptime, kHoldPauseMs); }

// Something rang for this database: what was believed may be wrong now, and nobody has to wait for a pause.
void reconsider(Known *known) noexcept
{
	known->check = true;
	known->hold_ms = 0;
	known->belief = Belief::open;
	for (Job &job : known->jobs)
		job.due = 0;
}

// Bring the list of databases up to date. Those that are gone keep seen = false.
void scan_databases()
{
	Relation relation;
	SysScanDesc scan;
	HeapTuple tuple;

	for_each_known([](Known *known) { known->seen = known->eligible = false; });

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	(void)GetTransactionSnapshot();
	relation = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(relation, InvalidOid, false, nullptr, 0, nullptr);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		auto form = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
		Known *known = enter_known(form->oid);

		known->seen = true;
		known->eligible = form->datallowconn && !form->datistemplate && !database_is_invalid_form(form);
		snprintf(known->name, NAMEDATALEN, "%s", NameStr(form->datname));
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(cycle_context);
}

struct Requests
{
	Oid databases[kCheckRequests];
	int count;
	bool all;
};

void apply(const Requests &requests)
{
	if (check_everything || requests.all)
		for_each_known(reconsider);
	else
		for (int i = 0; i < requests.count; i++)
			if (Known *known = find_known(requests.databases[i]))
				reconsider(known);
	check_everything = false;
}

// Longer pauses from failure to failure. A ring cancels the pause, but not its growth.
void back_off(Known *known, Kind kind, int64 healthy_ms)
{
	Job &job = known->jobs[static_cast<int>(kind)];

	if (healthy_ms >= kHealthyMs)
		job.backoff_ms = 0;
	if (job.backoff_ms == 0)
		ereport(LOG, (errmsg("tq %s for database \"%s\" has ended, restarting it with growing pauses", kind_name(kind),
							 known->name)));
	job.backoff_ms = job.backoff_ms == 0 ? kBackoffMinMs : Min(job.backoff_ms * 2, kBackoffMaxMs);
	job.due = known->check ? 0 : in_ms(job.backoff_ms);
}

// DDL is in the way: look again, soon at first.
void postpone(Known *known, Kind kind)
{
	known->hold_ms = known->hold_ms == 0 ? kHoldPauseMs : Min(known->hold_ms * 2, retry_ms());
	known->jobs[static_cast<int>(kind)].due = in_ms(known->hold_ms);
}

void settle_scheduler(Known *known, Outcome outcome, int64 healthy_ms)
{
	Job &job = known->jobs[static_cast<int>(Kind::scheduler)];

	switch (outcome)
	{
		case Outcome::none:
		case Outcome::no_room:
			break;
		case Outcome::failed:
		case Outcome::done:
			back_off(known, Kind::scheduler, healthy_ms);
			break;
		case Outcome::stopped:
			job.due = 0;
			break;
		case Outcome::busy:
			postpone(known, Kind::scheduler);
			break;
		case Outcome::absent:
			job.backoff_ms = 0;
			// If something rang since it started, it may have looked too early.
			if (!known->check)
				known->belief = Belief::absent;
			break;
		case Outcome::crowded:
			known->belief = Belief::crowded;
			if (!crowded_logged)
				ereport(LOG, (errmsg("tq starts no workers for database \"%s\"", known->name),
							  errdetail("The limit of %d is reached.", guc::max_databases),
							  errhint("Consider increasing the configuration parameter \"tq.max_databases\".")));
			crowded_logged = true;
			break;
	}
}

void settle_janitor(Known *known, int slot, Outcome outcome, int64 healthy_ms)
{
	Job &job = known->jobs[static_cast<int>(Kind::janitor)];

	switch (outcome)
	{
		case Outcome::none:
		case Outcome::absent:
		case Outcome::crowded:
		case Outcome::no_room:
			break;
		case Outcome::done:
			job.backoff_ms = 0;
			job.due = 0;
			break;
		// Its work is not done, and who asked for it will not ask again.
		case Outcome::failed:
			back_off(known, Kind::janitor, healthy_ms);
			(void)exchange_janitor_wanted(slot, true);
			break;
		case Outcome::stopped:
			(void)exchange_janitor_wanted(slot, true);
			break;
		case Outcome::busy:
			postpone(known, Kind::janitor);
			(void)exchange_janitor_wanted(slot, true);
			break;
	}
}

// A start that the postmaster gave up, or that nobody remembers, will not happen any more.
bool start_is_dead(const Job &job, const WorkerView &worker)
{
	pid_t pid;

	return job.handle == nullptr || job.generation != worker.generation ||
		   GetBackgroundWorkerPid(job.handle, &pid) == BGWH_STOPPED;
}

// Is DDL under way that wants no worker in the database?
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

// A database has gone that counted against tq.max_databases.
void make_room()
{
	for_each_known([](Known *known) {
		if (known->belief == Belief::crowded)
			reconsider(known);
	});
	crowded_logged = false;
}

// Take note of what happened in one slot since the last cycle, and stop what must not run.
void look_after(int slot)
{
	DatabaseView v = view(slot);
	Known *known = OidIsValid(v.database) ? find_known(v.database) : nullptr;
	bool keep = false;

	if (!OidIsValid(v.database))
		return;

	for (int k = 0; k < kKinds; k++)
	{
		Kind kind = static_cast<Kind>(k);
		const WorkerView &worker = v.workers[k];

		if (known == nullptr)
			continue;
		if (worker.stage == Stage::ready)
			known->hold_ms = 0;
		if (worker.stage == Stage::starting && start_is_dead(known->jobs[k], worker) &&
			abandon_start(slot, kind, worker.generation))
		{
			if (kind == Kind::scheduler)
				settle_scheduler(known, Outcome::failed, 0);
			else
				settle_janitor(known, slot, Outcome::failed, 0);
		}
		else if (worker.stage == Stage::none)
		{
			Outcome outcome = take_outcome(slot, kind);

			if (kind == Kind::scheduler)
				settle_scheduler(known, outcome, worker.healthy_ms);
			else
				settle_janitor(known, slot, outcome, worker.healthy_ms);
		}
	}

	for (int i = 0; known != nullptr && i < executor_places(); i++)
	{
		WorkerView worker = executor_view(slot, i).worker;

		// what comes of it, the scheduler looks at
		if (worker.stage == Stage::starting && start_is_dead(known->executors[i], worker))
			(void)abandon_start(slot, Kind::executor, worker.generation, i, Outcome::failed);
	}

	if (known == nullptr || !known->seen || !known->eligible || !guc::workers)
	{
		request_stop(v.database, Force::nobody);
		// DROP DATABASE marks the database invalid for all to see before it commits: its place is not free yet.
		keep = v.installed && known != nullptr && known->seen && ddl_under_way(v.database);
	}
	else
		keep = v.installed && known->belief == Belief::open;
	// Cannot be released as long as a worker is there; it rings when it leaves.
	if (!keep && release_slot(slot, v.database) && v.installed)
		make_room();
}

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
	old = MemoryContextSwitchTo(long_context);
	ok = RegisterDynamicBackgroundWorker(&worker, &job.handle);
	MemoryContextSwitchTo(old);
	return ok;
}

void report_exhausted(const Known *known, Kind kind)
{
	if (!exhausted_logged)
		ereport(LOG, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					  errmsg("out of background worker slots, could not start tq %s for database \"%s\"", kind_name(kind),
							 known->name),
					  errhint("Consider increasing the configuration parameter \"max_worker_processes\".")));
	exhausted_logged = true;
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
	if (!register_worker(known, job, assignment))
	{
		(void)abandon_start(slot, kind, generation, number, kind == Kind::executor ? Outcome::no_room : Outcome::none);
		job.due = in_ms(retry_ms());
		report_exhausted(known, kind);
		return false;
	}
	exhausted_logged = false;
	return true;
}

// What is to be done, seen over all slots.
struct Overview
{
	bool start_under_way; // a scheduler is on its way and still has our patience
	TimestampTz next;	  // when to look again at the latest
};

bool is_young(const WorkerView &worker, TimestampTz now) noexcept
{
	return (worker.stage == Stage::starting || worker.stage == Stage::connecting) &&
		   !TimestampDifferenceExceeds(worker.since, now, kStartPatienceMs);
}

// The database whose scheduler is missing for the longest time. Only picks: a transaction must not begin or end
// while the hash table is being scanned.
Known *pick_next(Overview *overview)
{
	TimestampTz now = GetCurrentTimestamp();
	Known *next = nullptr;

	for_each_known([&](Known *known) {
		TimestampTz due = known->jobs[static_cast<int>(Kind::scheduler)].due;

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
	TimestampTz now = GetCurrentTimestamp();

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

void forget_dropped()
{
	for_each_known([](Known *known) {
		if (known->seen)
			return;
		live::release_dropped(known->database);
		for (Job &job : known->jobs)
			drop_handle(job);
		for (int i = 0; i < executor_places(); i++)
			drop_handle(known->executors[i]);
		pfree(known->executors);
		(void)hash_search(known_databases, &known->database, HASH_REMOVE, nullptr);
	});
}

// One look at everything. Returns for how many milliseconds there is nothing to do unless somebody rings.
long cycle()
{
	Overview overview = {false, in_ms(kIdleMs)};
	Requests requests;
	TimestampTz now;

	MemoryContextSwitchTo(cycle_context);
	MemoryContextReset(cycle_context);

	if (guc::workers && !workers_were_on)
		check_everything = true;
	workers_were_on = guc::workers;

	pgstat_report_activity(STATE_RUNNING, "tq: looking after workers");
	// First taken, then looked at: what a request is about was committed before it was made.
	requests.count = take_checks(requests.databases, &requests.all);
	scan_databases();
	apply(requests);
	for (int i = 0; i < slot_count(); i++)
		look_after(i);
	forget_dropped();

	now = GetCurrentTimestamp();
	for (int i = 0; i < slot_count(); i++)
	{
		DatabaseView v = view(i);

		if (is_young(v.workers[static_cast<int>(Kind::scheduler)], now))
		{
			overview.start_under_way = true;
			overview.next = Min(overview.next, in_ms(kBackoffMinMs));
		}
	}
	if (guc::workers)
	{
		start_schedulers(&overview);
		start_janitors(&overview);
		start_executors();
		if (overview.start_under_way)
			overview.next = Min(overview.next, in_ms(kBackoffMinMs));
	}
	pgstat_report_activity(STATE_IDLE, nullptr);
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), overview.next);
}

void serve_interrupts()
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

void sleep_for(long ms)
{
	(void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	serve_interrupts();
}

// Report an ERROR and put the process back to where the next cycle can begin. An ERROR in here ends the process,
// which is then started again.
void recover()
{
	EmitErrorReport();
	AbortCurrentTransaction();
	LWLockReleaseAll();
	ConditionVariableCancelSleep();
	pgstat_report_wait_end();
	MemoryContextSwitchTo(cycle_context);
	FlushErrorState();
	check_everything = true;
}

// A cycle and the sleep after it. After an error only a short sleep, so that the log is not flooded.
void guarded_cycle()
{
	static bool failed = false;

	PG_TRY();
	{
		if (failed)
		{
			failed = false;
			sleep_for(kErrorPauseMs);
		}
		sleep_for(cycle());
	}
	PG_CATCH();
	{
		recover();
		failed = true;
	}
	PG_END_TRY();
}

void leave(int, Datum) { launcher_detach(); }

void set_up()
{
	HASHCTL control = {};

	// Applies to the server as a whole; what ALTER DATABASE SET says does not reach a process without one.
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("statement_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("idle_in_transaction_session_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("idle_session_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	if (GetConfigOption("transaction_timeout", true, false) != nullptr)
		SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);

	long_context = AllocSetContextCreate(TopMemoryContext, "tq launcher", ALLOCSET_DEFAULT_SIZES);
	cycle_context = AllocSetContextCreate(TopMemoryContext, "tq launcher cycle", ALLOCSET_DEFAULT_SIZES);
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(Known);
	control.hcxt = long_context;
	known_databases = hash_create("tq launcher databases", 32, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

} // namespace

void register_launcher()
{
	BackgroundWorker worker;

	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	memset(static_cast<void *>(&worker), 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	// Not on a standby, and at once when it is promoted.
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = kRestartSeconds;
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), "tq");
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name), "tq_launcher_main");
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "tq launcher");
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "tq launcher");
	RegisterBackgroundWorker(&worker);
}

} // namespace tq::workers

void tq_launcher_main(Datum)
{
	using namespace tq::workers;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	// Before the connection, so that it is undone after it.
	on_shmem_exit(leave, 0);
	BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
	pgstat_report_appname("tq launcher");
	set_up();
	launcher_attach();

	for (;;)
		guarded_cycle();
}
