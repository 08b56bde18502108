// The table of databases and their workers in shared memory, and the wakeups between backends, the launcher and the
// workers.
//
// Regime: PG. Lock: the LWLock "tq workers", a leaf (code under it locks, allocates, raises and waits for nothing), so
// it may be taken below any other lock and in transaction callbacks. The wakeup functions, which a backend calls on its
// hot path, take no lock: they read atomics and set a latch. Nothing here raises an error once init_slots() has run.
// The wakeups, the functions for DDL and find_slot() do nothing if tq was not preloaded; the others must not be called
// then.
#pragma once
#include "pg/prelude.hpp"

extern "C"
{
#include "storage/condition_variable.h"
#include "storage/lock.h"
}

namespace tq
{

// The task of a database's worker.
enum class Kind : uint8_t
{
	scheduler,
	janitor,
	executor
};
inline constexpr int kKinds = 2; // one of each per database; executors have guc::max_executors entries

// "scheduler", "janitor" or "executor": used in process titles, bgw_type and log lines.
const char *kind_name(Kind kind) noexcept;

// ---------------------------------------------------------------------------------------------------------
// Start-up of the server (slots.cpp)
// ---------------------------------------------------------------------------------------------------------

// Requests the memory and the lock. For the shmem_request_hook.
void request_slots();

// Creates or attaches the table. For the shmem_startup_hook. Takes AddinShmemInitLock itself. May be called again:
// after a crash the memory is new and zero.
void init_slots();

// ---------------------------------------------------------------------------------------------------------
// Wakeups: any backend, also in commit and abort callbacks (wakeups.cpp)
// ---------------------------------------------------------------------------------------------------------

// Sets the latch of the launcher, if there is one.
void wake_launcher() noexcept;

// Makes the launcher check a database again: it starts missing workers and stops forbidden ones. InvalidOid means all
// databases.
void request_check(Oid database) noexcept;

// Requests a run of the janitor. The request is remembered until a janitor starts; a request during a run leads to
// another run. False if the database has no worker slot: then no janitor comes.
bool request_janitor(Oid database) noexcept;

// Sets the latch of the database's scheduler, if one is alive (connected and past its start checks).
void set_latch_of_scheduler(Oid database) noexcept;

// ---------------------------------------------------------------------------------------------------------
// DDL (stopping.cpp)
// ---------------------------------------------------------------------------------------------------------

// The workers that get SIGTERM, rather than a stop flag and a latch. A worker that has not passed its start checks
// always gets SIGTERM: it may be blocked where it checks no flag.
enum class Force : uint8_t
{
	none,
	long_running, // janitor and executors: they may be in a long transaction
	all_but_releasing, // not executors that have been asked, and have a job to release
	all
};

// Asks the workers of a database to exit. Cancels starts that have not begun.
void request_stop(Oid database, Force force) noexcept;

// True if no process of tq is in the database or starting in it.
bool all_gone(Oid database) noexcept;

// Broadcast whenever a worker has exited; a waiter for all_gone() sleeps on it. Null if not preloaded.
ConditionVariable *gone_condition() noexcept;

// The heavyweight lock that means "DDL on this database or its tq is under way, start no worker". Holders take
// ShareLock (many may hold it) to the end of their transaction; the launcher tests with ExclusiveLock. InvalidOid: a
// prepared transaction with such DDL exists in some database, so the session that ends a prepared transaction must wake
// the launcher. The prepared transaction holds RowExclusiveLock; that session tests with ShareLock.
LOCKTAG ddl_lock_tag(Oid database) noexcept;

// ---------------------------------------------------------------------------------------------------------
// Launcher (slots.cpp)
// ---------------------------------------------------------------------------------------------------------

// The stages of an entry, in this order, then `none` again.
enum class Stage : uint8_t
{
	none,
	wanted,		// an executor that the scheduler has requested; other kinds have no such stage
	starting,	// the launcher registers it with the postmaster, or is about to
	connecting, // the process has attached to the entry
	ready
};

// The outcome of a run; failed unless the worker reported another one.
enum class ExitOutcome : uint8_t
{
	none,			// nothing to report
	failed,			// error, FATAL or pg_terminate_backend: restart with backoff
	stopped,		// asked to exit: restart after the DDL
	absent,			// the extension is not installed, or the database is not active
	foreign,		// a version that the library does not serve
	busy,			// the extension is being dropped or altered, or its tables are written: try again soon
	crowded,		// tq.max_databases databases have a slot already
	done,			// the body returned
	no_worker_slot, // executors: max_worker_processes is used up
};

struct WorkerView
{
	Stage stage;
	ExitOutcome outcome;
	bool stopping;
	uint32 generation;
	core::Micros since; // when the stage began; steady_now
	core::Micros waits_since; // since when its start finds no free background worker; steady_now, 0: it does not wait
	int64 healthy_ms;  // how long the last run was ready
};

struct ExecutorView
{
	WorkerView worker;
	pid_t pid;
	Oid role;		// role whose jobs it runs, or will run
	uint64 handler; // handler that it is engaged for, 0 if none
	int64 job;
	int64 lease;
};

struct DatabaseView
{
	Oid database;	// InvalidOid: the slot is free
	bool installed; // a worker has found the extension there, and the database active
	bool janitor_wanted;
	WorkerView workers[kKinds];
};

// Number of slots: one for each database allowed by tq.max_databases and one for probing.
int slot_count() noexcept;

// A copy of one slot.
DatabaseView view(int slot) noexcept;

// Announces this process as the launcher (or withdraws it). Cancels starts of an earlier launcher that have not begun,
// since only that launcher knew their handles.
void launcher_attach() noexcept;
void launcher_detach() noexcept;

// Takes the pending requests for checks. Returns how many it copied; sets *all if every database is meant.
inline constexpr int kCheckRequests = 16;
int take_checks(Oid *databases, bool *all) noexcept;

// Finds or allocates a slot for the database; -1 if all are in use.
int acquire_slot(Oid database) noexcept;

// Releases the slot. False if a worker uses it, or if it belongs to another database by now.
bool release_slot(int slot, Oid database) noexcept;

// Does the database have a worker of this kind, in any stage?
bool worker_present(Oid database, Kind kind) noexcept;

// Begins a start: the entry becomes `starting`. Returns its generation. Returns 0 if there is a worker already or, for
// an executor, if none is wanted.
uint32 begin_start(int slot, Oid database, Kind kind, int number = 0) noexcept;

// Frees the entry of a start that failed, or whose process is gone according to the postmaster. False if the entry was
// attached, ended or cancelled meanwhile.
bool abandon_start(int slot, Kind kind, uint32 generation, int number = 0,
				   ExitOutcome outcome = ExitOutcome::none) noexcept;

// Reads and clears the outcome of the last run.
ExitOutcome take_outcome(int slot, Kind kind, int number = 0) noexcept;

// Sets or clears the janitor request; returns its former value.
bool exchange_janitor_wanted(int slot, bool wanted) noexcept;

// Records that a start has found no free background worker, or that it has found one.
void note_waiting(int slot, Kind kind, bool waits) noexcept;

// Asks the scheduler of a database to exit, so that a start that waits gets its background worker.
void pass_turn(int slot, Oid database) noexcept;

// When pass_turn() last did so; steady_now, 0: never.
core::Micros last_turn() noexcept;

// ---------------------------------------------------------------------------------------------------------
// The worker itself, on its own entry (worker_self.cpp)
// ---------------------------------------------------------------------------------------------------------

// The launcher's data for a new worker, in bgw_extra.
struct Assignment
{
	Oid database;
	uint32 generation;
	int32 slot;
	Kind kind;
	int32 number; // of an executor: its entry
	Oid role;	  // of an executor: the role whose jobs it runs
	bool waited;  // its start waited for a free background worker; logged at DEBUG1, because workers take turns
};

// Attaches to the launcher's entry. False if it was cancelled, reassigned or never existed (the memory is new after a
// crash): then the process must exit at once.
bool worker_attach(const Assignment &assignment) noexcept;

// The start checks are done: from now on a scheduler can be woken.
void worker_ready() noexcept;

// Sets the outcome that the entry reports if the process ends now.
void worker_set_outcome(ExitOutcome outcome) noexcept;

// Detaches from the table; does nothing if not attached. For the exit callback.
void worker_detach() noexcept;

// DDL or tq.workers = off has asked this worker to exit: it finishes its current work and returns.
bool stop_requested() noexcept;

// ---------------------------------------------------------------------------------------------------------
// The scheduler of the database, on the entries of its executors (executor_entries.cpp)
// ---------------------------------------------------------------------------------------------------------

// The slot of a database, -1 if it has none.
int find_slot(Oid database) noexcept;

// How many executor entries each slot has. The functions below take a slot from find_slot() and the number of an entry.
int executor_entries() noexcept;
ExecutorView executor_view(int slot, int number) noexcept;

// Asks the launcher for one more executor for a role. False if no entry is free.
bool request_executor(int slot, Oid role) noexcept;
// Sets its latch.
void wake_executor(int slot, int number) noexcept;
// Asks it to exit after its job.
void dismiss_executor(int slot, int number) noexcept;
// Sends a signal if the executor still runs the attempt with this lease.
void signal_executor(int slot, int number, int64 lease, int signal) noexcept;

// ... and for the executor itself (worker_self.cpp).

// Engages the executor: from now on it counts for this handler, whose jobs it is about to claim. False if `max`
// executors already work for the handler, or `queue_max` for its queue (the upper half of its id). Also false if the
// handler must leave the last of the `allowed` executors to one of the n `runnable` handlers.
bool executor_engage(uint64 handler, int max, int queue_max, int allowed, const uint64 *runnable, int n) noexcept;

// A handler that has `engaged` executors must not take the last of the `idle` ones while another runnable handler has
// none. runs() tells whether a handler has an executor.
template <class Runs>
bool leaves_last_executor(uint64 handler, int engaged, int idle, const uint64 *runnable, int n, Runs &&runs) noexcept
{
	return engaged > 0 && idle < 2 &&
		   std::any_of(runnable, runnable + n, [&](uint64 other) noexcept { return other != handler && !runs(other); });
}
// Records the attempt that the executor runs. Lease 0: its handler has ended, and the scheduler sends no more signals
// for it; executor_disengage() forgets the job. True if the executor has been asked to stop and must release the job.
bool executor_runs(int64 job, int64 lease) noexcept;
// The executor is idle again. `wakes_scheduler`: the scheduler looks for more work.
void executor_disengage(bool wakes_scheduler) noexcept;

} // namespace tq
