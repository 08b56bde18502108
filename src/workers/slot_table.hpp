// What lies in the table of databases and their workers, and what is done with any of it; only for the files that make up
// workers/slots.hpp.
//
// Regime: PG. Locks: "tq workers" (LWLock, a leaf) for every field that is not an atomic, and for writing the
// atomics too, so that what is written together is seen together by whoever holds it. Doorbells read the
// atomics without it. kill() and SetLatch() are called under the lock on purpose: an entry is cleared under
// the lock before its process is gone, so a pid or latch found there cannot belong to a stranger.
#pragma once

#include "pg/prelude.hpp"

#include "live/clock.hpp"
#include "workers/slots.hpp"

namespace tq::workers
{

// A process as a doorbell knows it: index into ProcGlobal->allProcs plus one, zero for nobody. PGPROCs never
// move, so a number that has gone stale costs its new owner one spurious wake-up and nothing else.
using ProcRef = std::atomic<uint32>;

// One worker of one database. All fields: "tq workers", except that `stop` is read by its owner without it.
struct Worker
{
	Stage stage;
	Outcome outcome;
	uint32 generation;		  // of the current start; tells a late starter that it is not meant any more
	pid_t pid;				  // of the attached process, else 0
	uint32 proc;			  // ProcRef of the attached process
	core::Micros since;		  // when the stage began; live::steady_now
	int64 healthy_ms;		  // how long the last run was ready
	std::atomic<uint32> stop; // asked to go: kDismissed or kStopNow
};

// Of Worker::stop; the greater one stays.
constexpr uint32 kDismissed = 1; // an executor, when its job is done
constexpr uint32 kStopNow = 2;	 // its job is to be given back

// All by "tq workers".
struct Executor : Worker
{
	Oid role;
	uint64 handler; // it is engaged by, 0 if by none
	int64 job;		// it runs, 0 if none
	int64 lease;
};

struct Slot
{
	std::atomic<uint32> database;		// Oid, InvalidOid = free; written under "tq workers"
	ProcRef scheduler;					// a scheduler that is ready; written under "tq workers"
	std::atomic<uint32> janitor_wanted; // set by anybody, cleared by the launcher
	bool installed;						// counts against tq.max_databases; "tq workers"
	Worker workers[kKinds];
};

struct Shared
{
	ProcRef launcher;			// written under "tq workers"
	ConditionVariable gone;		// has its own spinlock
	bool check_all;				// "tq workers"
	int nchecks;				// "tq workers"
	Oid checks[kCheckRequests]; // "tq workers"
	int nslots;					// fixed at start
	int nexecutors;				// of each slot; fixed at start
	Slot slots[FLEXIBLE_ARRAY_MEMBER];
};

// Set by init_shmem(); null if tq was not preloaded.
extern Shared *shared;
extern LWLock *lock;

// Those of a slot are together.
extern Executor *executors;

// A transaction abort releases LWLocks, so no destructor is needed, nor would one run after a longjmp.
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

inline void ring(uint32 proc) noexcept
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

inline Worker &entry(int slot, Kind kind, int number = 0) noexcept
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

// Is a process in the entry, or on its way into it? Caller holds the lock.
inline bool occupied(const Worker &worker) noexcept
{
	return worker.stage != Stage::none && worker.stage != Stage::wanted;
}

inline bool all_vacant(int slot) noexcept
{
	bool vacant = true;

	for_each_worker(slot, [&](Kind, const Worker &worker) { vacant = vacant && !occupied(worker); });
	return vacant;
}

inline WorkerView view_of(const Worker &w) noexcept
{
	return {w.stage, w.outcome, w.stop.load() != 0, w.generation, w.since, w.healthy_ms};
}

// Make the entry free. Caller holds the lock exclusively.
inline void clear(Worker &worker, Outcome outcome) noexcept
{
	worker.stage = Stage::none;
	worker.outcome = outcome;
	worker.pid = 0;
	worker.proc = 0;
	worker.since = live::steady_now();
	worker.stop.store(0);
}

// Call off a start that has not begun: the process, should it still come, finds another generation.
inline void call_off(Worker &worker, Outcome outcome) noexcept
{
	worker.generation++;
	worker.healthy_ms = 0;
	clear(worker, outcome);
}

} // namespace tq::workers
