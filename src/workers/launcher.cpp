// The launcher: finds the databases that have the extension, and starts and restarts their workers. README.md beside
// this file has the state diagrams.
//
// Regime: PG. Locks: "tq workers" inside slots.hpp, and those of starting.cpp. The launcher is connected to no
// database, so it blocks no DDL. Raises: an ERROR in a cycle is reported and survived; only termination ends it, and
// the postmaster then starts another one.
#include "workers/launcher.hpp"

#include "guc.hpp"
#include "processes/slots.hpp"
#include "workers/database_registry.hpp"
#include "workers/exit_handling.hpp"
#include "workers/starting.hpp"
#include "pg/prelude.hpp"

extern "C" PGDLLEXPORT void tq_launcher_main(Datum main_arg);

namespace tq
{

namespace
{

// Longest sleep. It covers changes without a wakeup, such as an UPDATE of pg_database.
constexpr int kIdleMs = 60000;
constexpr int kErrorPauseMs = 1000;
constexpr int kRestartSeconds = 5;

bool check_everything = true; // after an error, requests may have been lost
bool workers_were_on = true;

// One pass over all databases. Returns for how many milliseconds the launcher may sleep without a wakeup.
long cycle()
{
	Overview overview = {false, in_ms(kIdleMs)};

	MemoryContextSwitchTo(cycle_context);
	MemoryContextReset(cycle_context);

	if (guc::workers && !workers_were_on)
		check_everything = true;
	workers_were_on = guc::workers;

	pgstat_report_activity(STATE_RUNNING, "tq: looking after workers");
	update_databases(check_everything);
	check_everything = false;
	for (int i = 0; i < slot_count(); i++)
		process_slot(i);
	forget_dropped();

	start_workers(&overview);
	pgstat_report_activity(STATE_IDLE, nullptr);
	return static_cast<long>(std::max<core::Micros>((overview.next - steady_now() + 999) / 1000, 0));
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

// Reports an ERROR and resets the process for the next cycle. An ERROR in here ends the process; the postmaster then
// starts it again.
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

// A cycle and the sleep after it. After an error it sleeps briefly first, so that the log is not flooded.
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
	// These apply to the server as a whole. ALTER DATABASE SET does not reach a process without a database.
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("statement_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("idle_in_transaction_session_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("idle_session_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	if (GetConfigOption("transaction_timeout", true, false) != nullptr)
		SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);

	set_up_registry();
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

} // namespace tq

void tq_launcher_main(Datum)
{
	using namespace tq;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	// Registered before the connection, so it runs after the connection has ended.
	on_shmem_exit(leave, 0);
	BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
	pgstat_report_appname("tq launcher");
	set_up();
	launcher_attach();

	for (;;)
		guarded_cycle();
}
