// The contents of the table of databases and their workers, and basic operations on them. Only for the files that
// implement processes/slots.hpp.
//
// Regime: PG. Locks: "tq workers" (LWLock, a leaf) for every field that is not an atomic, and for writing the atomics,
// except janitor_wanted, so that a lock holder sees consistent values. Wakeup functions read the atomics without it.
// kill() and SetLatch() are called under the lock on purpose: an entry is cleared under the lock before its process
// ends, so a pid or latch found there cannot belong to another process.
#pragma once

#include "pg/prelude.hpp"

#include "processes/slots.hpp"
#include "shmem/clock.hpp"

namespace tq
{

// A process for wakeups: index into ProcGlobal->allProcs plus one, zero for none. PGPROCs never move, so a stale number
// only costs its new owner one spurious wakeup.
using ProcRef = std::atomic<uint32>;

// One worker of one database. All fields: "tq workers", except that `stop` is read by its owner without it.
struct WorkerEntry
{
	Stage stage;
	ExitOutcome outcome;
	uint32 generation;		  // of the current start; a late process with an older one exits
	pid_t pid;				  // of the attached process, else 0
	uint32 proc;			  // ProcRef of the attached process
	core::Micros since;		  // when the stage began; steady_now
	core::Micros waits_since; // see WorkerView
	int64 healthy_ms;		  // how long the last run was ready
	std::atomic<uint32> stop; // asked to exit: kDismissed or kStopNow
};

// Values of WorkerEntry::stop; a greater value is never lowered.
constexpr uint32 kDismissed = 1; // an executor: exit after the job
constexpr uint32 kStopNow = 2;	 // release the job and exit

// All fields: "tq workers".
struct Executor : WorkerEntry
{
	Oid role;
	uint64 handler; // handler it works for, 0 if none
	int64 job;		// job it runs, or whose attempt it ends; 0 if none
	int64 lease;
};

struct Slot
{
	std::atomic<uint32> database;		// Oid, InvalidOid = free; written under "tq workers"
	ProcRef scheduler;					// a scheduler that is ready; written under "tq workers"
	std::atomic<uint32> janitor_wanted; // set by any process, cleared by the launcher
	bool installed;						// a worker was ready; "tq workers"
	WorkerEntry workers[kKinds];
};

struct Shared
{
	ProcRef launcher;			// written under "tq workers"
	ConditionVariable gone;		// has its own spinlock
	bool check_all;				// "tq workers"
	int nchecks;				// "tq workers"
	Oid checks[kCheckRequests]; // "tq workers"
	core::Micros turn_at;		// see last_turn(); "tq workers"
	int nslots;					// fixed at start
	int nexecutors;				// of each slot; fixed at start
	Slot slots[FLEXIBLE_ARRAY_MEMBER];
};

// Set by init_slots(); null if tq was not preloaded.
extern Shared *shared;
extern LWLock *lock;

// The entries of one slot are adjacent.
extern Executor *executors;

// A transaction abort releases LWLocks, so no destructor is needed. None would run after a longjmp.
template <typename Body>
auto with_lock(LWLockMode mode, Body body) noexcept
{
	LWLockAcquire(lock, mode);
	if constexpr (std::is_void_v<decltype(body())>)
	{
		body();
		LWLockRelease(lock);
	}
	else
	{
		auto result = body();
		LWLockRelease(lock);
		return result;
	}
}

// Version-neutral: the number is MyProc->pgprocno up to 16 and MyProcNumber from 17.
inline uint32 my_proc_ref() noexcept { return static_cast<uint32>(MyProc - ProcGlobal->allProcs) + 1; }

inline void wake(uint32 proc) noexcept
{
	if (proc != 0)
		SetLatch(&ProcGlobal->allProcs[proc - 1].procLatch);
}

inline Slot *find(Oid database) noexcept
{
	if (shared == nullptr || !OidIsValid(database))
		return nullptr;
	for (int i = 0; i < shared->nslots; i++)
		if (shared->slots[i].database.load() == database)
			return &shared->slots[i];
	return nullptr;
}

inline Executor &executor(int slot, int number) noexcept { return executors[slot * shared->nexecutors + number]; }

inline WorkerEntry &entry(int slot, Kind kind, int number = 0) noexcept
{
	return kind == Kind::executor ? executor(slot, number) : shared->slots[slot].workers[static_cast<int>(kind)];
}

// All entries of a slot.
template <typename Visit>
void for_each_worker(int slot, Visit visit) noexcept
{
	for (int k = 0; k < kKinds; k++)
		visit(static_cast<Kind>(k), shared->slots[slot].workers[k]);
	for (int i = 0; i < shared->nexecutors; i++)
		visit(Kind::executor, executor(slot, i));
}

// Does the entry have a process, or one that is starting? The caller holds the lock.
inline bool occupied(const WorkerEntry &worker) noexcept
{
	return worker.stage != Stage::none && worker.stage != Stage::wanted;
}

inline bool all_vacant(int slot) noexcept
{
	bool vacant = true;

	for_each_worker(slot, [&](Kind, const WorkerEntry &worker) { vacant = vacant && !occupied(worker); });
	return vacant;
}

inline WorkerView view_of(const WorkerEntry &w) noexcept
{
	return {w.stage, w.outcome, w.stop.load() != 0, w.generation, w.since, w.waits_since, w.healthy_ms};
}

// Frees the entry. The caller holds the lock exclusively.
inline void clear(WorkerEntry &worker, ExitOutcome outcome) noexcept
{
	worker.stage = Stage::none;
	worker.outcome = outcome;
	worker.pid = 0;
	worker.proc = 0;
	worker.since = steady_now();
	worker.stop.store(0);
}

// Cancels a start that has not begun: if the process still comes, it finds another generation.
inline void call_off(WorkerEntry &worker, ExitOutcome outcome) noexcept
{
	worker.generation++;
	worker.healthy_ms = 0;
	clear(worker, outcome);
}

} // namespace tq
