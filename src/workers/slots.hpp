// The table of databases and their workers in shared memory, and the doorbells between backends, the
// launcher and the workers.
//
// Regime: PG. Lock: the LWLock "tq workers", a leaf (nothing is locked, allocated, raised or waited for under
// it), so it may be taken below any other lock and in transaction callbacks. The doorbells (the functions a
// backend calls on its hot path) take no lock at all: they read atomics and set a latch. Nothing here raises
// an error once init_shmem() has run, and everything is a harmless no-op when tq was not preloaded.
#pragma once
#include "pg/prelude.hpp"

extern "C"
{
#include "storage/condition_variable.h"
#include "storage/lock.h"
}

namespace tq::workers
{

// What a worker of a database does.
enum class Kind : uint8_t
{
	scheduler,
	janitor,
	executor
};
inline constexpr int kKinds = 2; // of which a database has one; of executors it has guc::max_executors places

// "scheduler", "janitor" or "executor": used in process titles, bgw_type and log lines.
const char *kind_name(Kind kind) noexcept;

// ---------------------------------------------------------------------------------------------------------
// Start-up of the server (slots.cpp)
// ---------------------------------------------------------------------------------------------------------

// Bytes of shared memory wanted; depends on tq.max_databases.
Size shmem_size();

// Ask for the memory and the lock. To be called from the shmem_request_hook.
void request_shmem();

// Create or attach the table. To be called from the shmem_startup_hook; takes AddinShmemInitLock itself, may
// be called again (after a crash the memory is new and everything starts from nothing).
void init_shmem();

// ---------------------------------------------------------------------------------------------------------
// Doorbells: any backend, also in commit and abort callbacks (doorbells.cpp)
// ---------------------------------------------------------------------------------------------------------

// Set the latch of the launcher, if there is one.
void wake_launcher() noexcept;

// Have the launcher look at a database (again): start what it needs, stop what it must not have. InvalidOid
// means all databases.
void request_check(Oid database) noexcept;

// Ask for a run of the janitor. The request is remembered until a janitor starts; one that comes while a
// janitor runs leads to another run. False if the database has no worker slot, so nobody will come.
bool request_janitor(Oid database) noexcept;

// Is a scheduler alive (connected and past its start checks) for the database?
bool scheduler_running(Oid database) noexcept;

// Set the latch of the database's scheduler, if one is alive.
void set_latch_of_scheduler(Oid database) noexcept;

// ---------------------------------------------------------------------------------------------------------
// DDL hooks (stopping.cpp)
// ---------------------------------------------------------------------------------------------------------

// Who is to be terminated (SIGTERM) rather than asked through its stop flag and latch. A worker that is not
// past its start checks is always terminated: it may be blocked where it sees no flag.
enum class Force : uint8_t
{
	nobody,
	long_running, // janitor and executors, which may be in the middle of a long transaction
	everybody
};

// Ask the workers of a database to go. Those registered but not begun are called off for good.
void request_stop(Oid database, Force force) noexcept;

// True if no process of ours is left in the database (or on its way into it).
bool all_gone(Oid database) noexcept;

// Signalled whenever a worker has left; what a waiter for all_gone() sleeps on. Null if not preloaded.
ConditionVariable *gone_condition() noexcept;

// The heavyweight lock that means "DDL on this database or its tq is under way, start no worker". Holders
// take ShareLock (many may hold it) to the end of their transaction, the launcher tests with ExclusiveLock.
// InvalidOid: there is a prepared transaction with DDL that concerns us, in whatever database, so whoever ends one has to
// ring. It holds RowExclusiveLock; who asks, tests with ShareLock.
LOCKTAG ddl_lock_tag(Oid database) noexcept;

// ---------------------------------------------------------------------------------------------------------
// Launcher (slots.cpp)
// ---------------------------------------------------------------------------------------------------------

// none -> (executors: wanted by the scheduler ->) starting (registered with the postmaster) -> connecting (process attached) -> ready -> none
enum class Stage : uint8_t
{
	none,
	wanted,
	starting,
	connecting,
	ready
};

// How a run ended; failed unless the worker could say otherwise.
enum class Outcome : uint8_t
{
	none,	 // nothing to report
	failed,	 // error, FATAL or pg_terminate_backend: restart with back-off
	stopped, // asked to go: restart when the DDL is over
	absent,	 // the extension is not installed
	foreign, // it is, in a version that the library does not serve
	busy,	 // the extension is being dropped or altered: try again soon
	crowded, // more databases than tq.max_databases
	done,	 // the body returned
	no_room, // executors: there was no background worker slot for it
};

struct WorkerView
{
	Stage stage;
	Outcome outcome;
	bool stopping;
	uint32 generation;
	core::Micros since; // when the stage began; live::steady_now
	int64 healthy_ms;  // how long the last run was ready
};

struct ExecutorView
{
	WorkerView worker;
	pid_t pid;
	Oid role;		// it runs jobs as, or is to
	uint64 handler; // whose job it runs, 0 if none
	int64 job;
	int64 lease;
};

struct DatabaseView
{
	Oid database;	// InvalidOid: the slot is free
	bool installed; // a worker has found the extension there
	bool janitor_wanted;
	WorkerView workers[kKinds];
};

// Number of slots: one for each database allowed by tq.max_databases and one for probing.
int slot_count() noexcept;

// A copy of one slot.
DatabaseView view(int slot) noexcept;

// Announce this process as the launcher (or withdraw). Starts of an earlier launcher that have not begun
// are called off, since only it knew their handles.
void launcher_attach() noexcept;
void launcher_detach() noexcept;

// Take the pending requests for checks: returns how many were copied, sets *all if every database is meant.
inline constexpr int kCheckRequests = 16;
int take_checks(Oid *databases, bool *all) noexcept;

// Find or take a slot for the database; -1 if all are in use.
int acquire_slot(Oid database) noexcept;

// Give the slot back. False if a worker uses it, or it is not the database's any more.
bool release_slot(int slot, Oid database) noexcept;

// Has the database a worker of this kind, in whatever stage?
bool worker_present(Oid database, Kind kind) noexcept;

// Begin a start: the entry becomes `starting`. Returns its generation, 0 if there is a worker already; of an executor, if none is wanted.
uint32 begin_start(int slot, Oid database, Kind kind, int number = 0) noexcept;

// The start came to nothing (or the postmaster says the process is gone): free the entry. False if it has
// been attached, ended or called off meanwhile.
bool abandon_start(int slot, Kind kind, uint32 generation, int number = 0, Outcome outcome = Outcome::none) noexcept;

// Read and clear the outcome of the last run.
Outcome take_outcome(int slot, Kind kind, int number = 0) noexcept;

// Set or clear the janitor request; returns what it was.
bool exchange_janitor_wanted(int slot, bool wanted) noexcept;

// ---------------------------------------------------------------------------------------------------------
// Worker (own_entry.cpp)
// ---------------------------------------------------------------------------------------------------------

// What the launcher hands to a new worker in bgw_extra.
struct Assignment
{
	Oid database;
	uint32 generation;
	int32 slot;
	Kind kind;
	int32 number; // of an executor: its place,
	Oid role;	  // and whom it runs jobs as
};

// Take the entry the launcher made. False if it was called off, given away or never existed (the memory is
// new after a crash): the process has to leave at once.
bool worker_attach(const Assignment &assignment) noexcept;

// Past the start checks: a scheduler can be woken from now on. False if the database is one too many.
bool worker_ready(Oid database) noexcept;

// What to report if the process ends now.
void worker_set_outcome(Outcome outcome) noexcept;

// Leave the table; does nothing if not attached. For the exit callback.
void worker_detach() noexcept;

// Has somebody asked this worker to go?
bool worker_stop_requested() noexcept;

// ---------------------------------------------------------------------------------------------------------
// Executors: their places, as the scheduler of the database sees them (executor_places.cpp). `slot` is find_slot's
// ---------------------------------------------------------------------------------------------------------

// The slot of a database, -1 if it has none.
int find_slot(Oid database) noexcept;
int executor_places() noexcept; // of each slot
ExecutorView executor_view(int slot, int number) noexcept;

// Have the launcher start one more executor for a role. False if no place is free.
bool request_executor(int slot, Oid role) noexcept;
// Set its latch.
void wake_executor(int slot, int number) noexcept;
// Ask it to leave when its job is done.
void dismiss_executor(int slot, int number) noexcept;
// Send a signal, if it (still) runs the attempt with this lease.
void signal_executor(int slot, int number, int64 lease, int signal) noexcept;

// ... and as an executor sees its own (own_entry.cpp).

// It is about to run a job of this handler. False if `max` of them already do, or `queue_max` for the queue (the upper half of its number).
bool executor_engage(uint64 handler, int max, int queue_max) noexcept;
// It runs this attempt; 0, 0: it does not any more. No signal is under way when this returns. True if it has been asked to stop, and is to give
// the job back.
bool executor_runs(int64 job, int64 lease) noexcept;
// It is idle again; `ring`: the scheduler wants to know.
void executor_disengage(bool ring) noexcept;

} // namespace tq::workers
