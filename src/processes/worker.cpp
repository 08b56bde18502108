// Start-up of a per-database worker: attaches to the table, connects, overrides settings of users, checks for the
// extension, runs the body.
//
// Regime: PG. Locks: see worker.hpp. Raises: FATAL if it cannot connect to the database; any ERROR ends the process
// with exit code 1, and the launcher starts another one after a pause.
#include "processes/worker.hpp"

#include "database/activation.hpp"
#include "database/attach.hpp"
#include "shmem/versions.hpp"
#include "pg/errors.hpp"
#include "pg/extension.hpp"
#include "pg/prelude.hpp"

extern "C"
{
#include "commands/dbcommands.h"
#include "storage/pmsignal.h"
}

extern "C" PGDLLEXPORT void tq_worker_main(Datum main_arg);

namespace tq
{

// The bodies, in folders that this one does not include; they return when the worker should exit.
void run_scheduler(const WorkerContext &context);
void run_janitor(const WorkerContext &context);
void run_executor(const WorkerContext &context);

namespace
{

enum class Presence
{
	absent,
	busy,
	foreign,
	present
};

struct Setting
{
	const char *name;
	const char *value;
};

// ALTER DATABASE SET and ALTER ROLE SET reach background workers too. This list resets the settings that could change a
// worker's behaviour. The bodies themselves switch session_replication_role where they need it.
constexpr Setting kSettings[] = {
	// no other object can replace one that a worker calls
	{"search_path", "pg_catalog, pg_temp"},
	// a worker never waits for a user's transaction, and is never cancelled for being slow or idle
	{"lock_timeout", "100ms"},
	{"statement_timeout", "0"},
	{"transaction_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	{"idle_session_timeout", "0"},
	// fresh snapshots, writable
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_deferrable", "off"},
	// Commits flush, so that a worker's decision (a revoked lease) survives a crash whatever the server's default.
	// They do not wait for a standby: a standby that is down would stop every timer of the database.
	{"synchronous_commit", "local"},
	// location and access method of new tables
	{"default_table_access_method", "heap"},
	{"default_tablespace", ""},
	// see all rows, and read and write values in one form
	{"row_security", "off"},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"standard_conforming_strings", "on"},
	{"exit_on_error", "off"}, // errors are caught, so they must stay errors
	// never destroy data without being asked
	{"zero_damaged_pages", "off"},
	{"role", "none"}, // ALTER DATABASE SET
};

// An executor runs the code of its role, with the settings of its role. This list resets the settings that could
// prevent it from journalling the outcome of a job.
constexpr Setting kExecutorSettings[] = {
	{"role", "none"}, // ALTER ROLE SET
	{"search_path", "pg_catalog, pg_temp"}, // while no handler runs
	{"transaction_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	{"idle_session_timeout", "0"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_deferrable", "off"},
	{"zero_damaged_pages", "off"},
	{"exit_on_error", "off"},
};

template <size_t N>
void override_settings(const Setting (&settings)[N])
{
	for (const Setting &setting : settings)
	{
		// transaction_timeout exists from 17 on
		if (GetConfigOption(setting.name, true, false) != nullptr)
			SetConfigOption(setting.name, setting.value, PGC_SUSET, PGC_S_OVERRIDE);
	}
}

// Registered before the connection is made, so it runs after the connection has been undone: transaction aborted,
// locks released, out of the ProcArray. So a free entry means that the process is out of the database. It is
// on_shmem_exit rather than before_shmem_exit for the same reason.
void leave(int, Datum) { worker_detach(); }

// Is tq installed here? If present, the extension object stays locked to the end of the transaction. Busy: a DROP
// EXTENSION has or awaits the lock, or tq was dropped and created again meanwhile.
Presence look_for_extension(ExtensionRow *row)
{
	LOCKTAG tag;
	ExtensionRow again;

	if (!find_extension(row))
		return Presence::absent;

	// DROP EXTENSION first takes AccessExclusiveLock on the object. A worker never queues behind it.
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, row->oid, 0);
	switch (LockAcquire(&tag, AccessShareLock, false, true))
	{
		case LOCKACQUIRE_NOT_AVAIL:
			return Presence::busy;
		case LOCKACQUIRE_OK:
			// With the lock, no DROP or ALTER EXTENSION is under way: read the result of the last one.
			AcceptInvalidationMessages();
			break;
		default:
			break;
	}
	if (!find_extension(&again))
		return Presence::absent;
	if (again.oid != row->oid)
		return Presence::busy;
	*row = again;
	return Presence::present;
}

// If not, logs that: the launcher starts no other worker until ALTER EXTENSION wakes it.
bool served(Oid extension, const char *database_name)
{
	pg::ExtensionFacts facts;

	if (!pg::extension_facts(extension, &facts))
		return false;

	const Fit fit = fit_of(facts.version);

	if (is_served(fit))
		return true;
	ereport(LOG,
			(errcode(kErrVersionMismatch), errmsg("tq runs no workers in database \"%s\"", database_name),
			 errdetail("The extension has version %s there, which the loaded library of version %s does not serve.",
					   facts.version, library_version()),
			 errhint("%s", hint_for(fit))));
	return false;
}

// The outcome of a worker that must not stay; none if it may.
ExitOutcome outcome_of(Stay stay) noexcept
{
	switch (stay)
	{
		case Stay::no:
			return ExitOutcome::absent;
		case Stay::later:
			return ExitOutcome::busy;
		case Stay::full:
			return ExitOutcome::crowded;
		default:
			return ExitOutcome::none;
	}
}

// Makes all checks in one transaction. Fills the context, copies the database's name for the log.
bool check_in(WorkerContext *context, char *database_name)
{
	ExtensionRow row;
	Presence presence;
	ExitOutcome outcome = ExitOutcome::none;
	char *name;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());

	presence = look_for_extension(&row);
	release_gone(); // memory of an extension that was dropped
	name = get_database_name(MyDatabaseId);
	snprintf(database_name, NAMEDATALEN, "%s", name != nullptr ? name : "?");
	if (presence == Presence::present && !served(row.oid, database_name))
		presence = Presence::foreign;
	if (presence == Presence::present)
		outcome = outcome_of(may_stay(row.oid));

	PopActiveSnapshot();
	CommitTransactionCommand();

	switch (presence)
	{
		case Presence::absent:
			worker_set_outcome(ExitOutcome::absent);
			return false;
		case Presence::busy:
			worker_set_outcome(ExitOutcome::busy);
			return false;
		case Presence::foreign:
			worker_set_outcome(ExitOutcome::foreign);
			return false;
		case Presence::present:
			break;
	}
	context->extension = row.oid;
	context->extension_schema = row.schema;
	if (outcome != ExitOutcome::none)
	{
		worker_set_outcome(outcome);
		return false;
	}
	worker_ready();
	return true;
}

} // namespace

bool find_extension(ExtensionRow *row)
{
	Relation relation = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;
	bool found;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum("tq"));
	scan = systable_beginscan(relation, ExtensionNameIndexId, true, nullptr, 1, &key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
	{
		auto form = reinterpret_cast<Form_pg_extension>(GETSTRUCT(tuple));

		*row = {form->oid, form->extnamespace, form->extowner};
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return found;
}

bool extension_still_there(const WorkerContext &context)
{
	ExtensionRow row;

	return look_for_extension(&row) == Presence::present && row.oid == context.extension;
}

void idle(long timeout_ms)
{
	(void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout_ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	// WaitLatch() answers a set latch before it checks the postmaster, and a busy worker's latch is always set. See
	// begin_work() for why this is not PostmasterIsAlive().
	if (!PostmasterIsAliveInternal())
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();
	take_settings();
}

void take_settings()
{
	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
}

} // namespace tq

void tq_worker_main(Datum)
{
	using namespace tq;

	Assignment assignment;
	WorkerContext context = {};
	char database_name[NAMEDATALEN];
	int level;

	memcpy(&assignment, MyBgworkerEntry->bgw_extra, sizeof(assignment));
	level = assignment.kind == Kind::scheduler && !assignment.waited ? LOG : DEBUG1;

	// die() rather than the default handler, which would ereport() inside the signal handler.
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	on_shmem_exit(leave, 0);
	if (!worker_attach(assignment))
	{
		ereport(DEBUG1, (errmsg_internal("tq %s for database %u is not wanted any more", kind_name(assignment.kind),
										 assignment.database)));
		return;
	}

	// Waits here while DDL on the database holds its lock; a request to stop terminates the process then. An
	// executor's session belongs to its role, so that no handler can become another role (H9).
	if (assignment.kind == Kind::executor)
	{
		BackgroundWorkerInitializeConnectionByOid(assignment.database, assignment.role, tq::pg::kMayNotLogin);
		override_settings(kExecutorSettings);
	}
	else
	{
		BackgroundWorkerInitializeConnectionByOid(assignment.database, InvalidOid, 0);
		override_settings(kSettings);
	}
	pgstat_report_appname(MyBgworkerEntry->bgw_name);
	pgstat_report_activity(STATE_RUNNING, "tq: looking for the extension");

	context.database = assignment.database;
	context.kind = assignment.kind;
	context.role = assignment.role;
	if (!check_in(&context, database_name))
		return;
	wake_launcher();
	ereport(level, (errmsg("tq %s started for database \"%s\"", kind_name(context.kind), database_name)));
	pgstat_report_activity(STATE_IDLE, "tq: ready");

	if (context.kind == Kind::scheduler)
		run_scheduler(context);
	else if (context.kind == Kind::janitor)
		run_janitor(context);
	else
		run_executor(context);

	worker_set_outcome(ExitOutcome::done);
	ereport(level, (errmsg("tq %s stopped for database \"%s\"", kind_name(context.kind), database_name)));
}
