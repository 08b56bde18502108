// The table of databases and their workers in shared memory; see slots.hpp.
//
// Regime: PG. Locks: "tq workers" (LWLock, a leaf) for every field that is not an atomic, and for writing the
// atomics too, so that what is written together is seen together by whoever holds it. Doorbells read the
// atomics without it. kill() and SetLatch() are called under the lock on purpose: an entry is cleared under
// the lock before its process is gone, so a pid or latch found there cannot belong to a stranger.
// Raises: only request_shmem() and init_shmem(), at server start.
#include "pg/prelude.hpp"

#include "guc.hpp"
#include "live/clock.hpp"
#include "live/shared.hpp"
#include "workers/slots.hpp"

namespace tq::workers
{

namespace
{

constexpr char kTranche[] = "tq workers";

// Keeps our locks apart from pg_advisory_lock(), which uses classes 1 and 2: "tq" in ASCII.
constexpr uint16 kLockClass = 0x7471;

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
	std::atomic<uint32> stop; // asked to go
};

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
	ProcRef launcher;				  // written under "tq workers"
	std::atomic<uint32> prepared_ddl; // set once, never cleared: only makes COMMIT PREPARED ring more often
	ConditionVariable gone;			  // has its own spinlock
	bool check_all;					  // "tq workers"
	int nchecks;					  // "tq workers"
	Oid checks[kCheckRequests];		  // "tq workers"
	int nslots;						  // fixed at start
	int nexecutors;					  // of each slot; fixed at start
	Slot slots[FLEXIBLE_ARRAY_MEMBER];
};

Shared *shared = nullptr;
LWLock *lock = nullptr;

// Those of a slot are together.
Executor *executors = nullptr;

// This process's own entry, if it is a worker.
Worker *my_worker = nullptr;
Slot *my_slot = nullptr;
uint32 my_generation = 0;
Kind my_kind = Kind::scheduler;
Outcome my_outcome = Outcome::failed;

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
uint32 my_proc_ref() noexcept { return static_cast<uint32>(MyProc - ProcGlobal->allProcs) + 1; }

void ring(uint32 proc) noexcept
{
	if (proc != 0)
		SetLatch(&ProcGlobal->allProcs[proc - 1].procLatch);
}

Slot *find(Oid database) noexcept
{
	if (shared == nullptr || !OidIsValid(database))
		return nullptr;
	for (int i = 0; i < shared->nslots; i++)
		if (shared->slots[i].database.load() == database)
			return &shared->slots[i];
	return nullptr;
}

Executor &executor(int slot, int number) noexcept { return executors[slot * shared->nexecutors + number]; }

Worker &entry(int slot, Kind kind, int number = 0) noexcept
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
bool occupied(const Worker &worker) noexcept { return worker.stage != Stage::none && worker.stage != Stage::wanted; }

bool all_vacant(int slot) noexcept
{
	bool vacant = true;

	for_each_worker(slot, [&](Kind, const Worker &worker) { vacant = vacant && !occupied(worker); });
	return vacant;
}

WorkerView view_of(const Worker &w) noexcept
{
	return {w.stage, w.outcome, w.stop.load() != 0, w.generation, w.since, w.healthy_ms};
}

// Make the entry free. Caller holds the lock exclusively.
void clear(Worker &worker, Outcome outcome) noexcept
{
	worker.stage = Stage::none;
	worker.outcome = outcome;
	worker.pid = 0;
	worker.proc = 0;
	worker.since = live::steady_now();
	worker.stop.store(0);
}

// Call off a start that has not begun: the process, should it still come, finds another generation.
void call_off(Worker &worker, Outcome outcome) noexcept
{
	worker.generation++;
	worker.healthy_ms = 0;
	clear(worker, outcome);
}

} // namespace

const char *kind_name(Kind kind) noexcept
{
	constexpr const char *kNames[] = {"scheduler", "janitor", "executor"}; // as enum Kind

	return kNames[static_cast<int>(kind)];
}

// ---------------------------------------------------------------------------------------------------------
// Start-up of the server
// ---------------------------------------------------------------------------------------------------------

namespace
{

Size slots_size() { return add_size(offsetof(Shared, slots), mul_size(guc::max_databases + 1, sizeof(Slot))); }

} // namespace

Size shmem_size()
{
	return add_size(slots_size(), mul_size(mul_size(guc::max_databases + 1, guc::max_executors), sizeof(Executor)));
}

void request_shmem()
{
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche(kTranche, 1);
}

void init_shmem()
{
	bool found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	lock = &GetNamedLWLockTranche(kTranche)->lock;
	shared = static_cast<Shared *>(ShmemInitStruct("tq workers", shmem_size(), &found));
	if (!found)
	{
		// zero is what every field starts from: no database, no process, no request
		memset(static_cast<void *>(shared), 0, shmem_size());
		ConditionVariableInit(&shared->gone);
		shared->nslots = guc::max_databases + 1;
		shared->nexecutors = guc::max_executors;
	}
	executors = reinterpret_cast<Executor *>(reinterpret_cast<char *>(shared) + slots_size());
	LWLockRelease(AddinShmemInitLock);
}

// ---------------------------------------------------------------------------------------------------------
// Doorbells
// ---------------------------------------------------------------------------------------------------------

void wake_launcher() noexcept
{
	if (shared != nullptr)
		ring(shared->launcher.load());
}

void request_check(Oid database) noexcept
{
	if (shared == nullptr)
		return;
	with_lock(LW_EXCLUSIVE, [&] {
		bool known = false;

		for (int i = 0; i < shared->nchecks && !known; i++)
			known = shared->checks[i] == database;
		if (!OidIsValid(database) || (!known && shared->nchecks == kCheckRequests))
			shared->check_all = true;
		else if (!known)
			shared->checks[shared->nchecks++] = database;
	});
	wake_launcher();
}

bool request_janitor(Oid database) noexcept
{
	Slot *slot = find(database);

	if (slot == nullptr)
		return false;
	// Whoever sets the flag rings; until the launcher has cleared it, it is still going to look at it.
	if (slot->janitor_wanted.exchange(1) == 0)
		wake_launcher();
	return true;
}

bool scheduler_running(Oid database) noexcept
{
	Slot *slot = find(database);

	return slot != nullptr && slot->scheduler.load() != 0;
}

void set_latch_of_scheduler(Oid database) noexcept
{
	if (Slot *slot = find(database))
		ring(slot->scheduler.load());
}

// ---------------------------------------------------------------------------------------------------------
// DDL hooks
// ---------------------------------------------------------------------------------------------------------

void request_stop(Oid database, Force force) noexcept
{
	if (shared == nullptr)
		return;
	with_lock(LW_EXCLUSIVE, [&] {
		int slot = find_slot(database);

		if (slot < 0)
			return;
		for_each_worker(slot, [force](Kind kind, Worker &worker) {
			bool terminate = force == Force::everybody ||
							 (force == Force::long_running && kind != Kind::scheduler) ||
							 worker.stage == Stage::connecting;

			if (worker.stage == Stage::starting || worker.stage == Stage::wanted)
				call_off(worker, Outcome::stopped);
			else if (worker.stage != Stage::none)
			{
				bool first = worker.stop.exchange(1) == 0;
				// one that runs a job looks at no flag: told once, it gives the job back; told again, it would be ended at once
				bool busy = kind == Kind::executor && static_cast<Executor &>(worker).job != 0;

				if (terminate || (first && busy))
					(void)kill(worker.pid, SIGTERM);
				else
					ring(worker.proc);
			}
		});
	});
}

bool all_gone(Oid database) noexcept
{
	if (shared == nullptr)
		return true;
	return with_lock(LW_SHARED, [&] {
		int slot = find_slot(database);

		return slot < 0 || all_vacant(slot);
	});
}

ConditionVariable *gone_condition() noexcept { return shared != nullptr ? &shared->gone : nullptr; }

void note_prepared_ddl() noexcept
{
	if (shared != nullptr)
		shared->prepared_ddl.store(1);
}

bool prepared_ddl_possible() noexcept { return shared != nullptr && shared->prepared_ddl.load() != 0; }

LOCKTAG
ddl_lock_tag(Oid database) noexcept
{
	LOCKTAG tag;

	SET_LOCKTAG_ADVISORY(tag, database, 0, 0, kLockClass);
	return tag;
}

// ---------------------------------------------------------------------------------------------------------
// Launcher
// ---------------------------------------------------------------------------------------------------------

int slot_count() noexcept { return shared->nslots; }

DatabaseView view(int slot) noexcept
{
	return with_lock(LW_SHARED, [&] {
		Slot &s = shared->slots[slot];
		DatabaseView v = {};

		v.database = s.database.load();
		v.installed = s.installed;
		v.janitor_wanted = s.janitor_wanted.load() != 0;
		for (int k = 0; k < kKinds; k++)
			v.workers[k] = view_of(s.workers[k]);
		return v;
	});
}

void launcher_attach() noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		shared->launcher.store(my_proc_ref());
		for (int i = 0; i < shared->nslots; i++)
			for_each_worker(i, [](Kind, Worker &worker) {
				if (worker.stage == Stage::starting)
					call_off(worker, Outcome::stopped);
			});
	});
}

void launcher_detach() noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		if (shared->launcher.load() == my_proc_ref())
			shared->launcher.store(0);
	});
}

int take_checks(Oid *databases, bool *all) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		int n = shared->nchecks;

		memcpy(databases, shared->checks, sizeof(Oid) * n);
		*all = shared->check_all;
		shared->nchecks = 0;
		shared->check_all = false;
		return n;
	});
}

int acquire_slot(Oid database) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		int vacant = -1;

		for (int i = 0; i < shared->nslots; i++)
		{
			Oid owner = shared->slots[i].database.load();

			if (owner == database)
				return i;
			if (!OidIsValid(owner) && vacant < 0)
				vacant = i;
		}
		if (vacant >= 0)
			shared->slots[vacant].database.store(database);
		return vacant;
	});
}

bool release_slot(int slot, Oid database) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		Slot &s = shared->slots[slot];

		if (s.database.load() != database || !all_vacant(slot))
			return false;
		for_each_worker(slot, [](Kind, Worker &worker) {
			worker.stage = Stage::none;
			worker.outcome = Outcome::none;
		});
		s.installed = false;
		s.janitor_wanted.store(0);
		s.database.store(InvalidOid);
		return true;
	});
}

bool worker_present(Oid database, Kind kind) noexcept
{
	return with_lock(LW_SHARED, [&] {
		Slot *slot = find(database);

		return slot != nullptr && slot->workers[static_cast<int>(kind)].stage != Stage::none;
	});
}

uint32 begin_start(int slot, Oid database, Kind kind, int number) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&]() -> uint32 {
		Worker &worker = entry(slot, kind, number);
		Stage before = kind == Kind::executor ? Stage::wanted : Stage::none;

		if (shared->slots[slot].database.load() != database || worker.stage != before)
			return 0;
		if (++worker.generation == 0)
			worker.generation = 1;
		worker.stage = Stage::starting;
		worker.outcome = Outcome::none;
		worker.since = live::steady_now();
		return worker.generation;
	});
}

bool abandon_start(int slot, Kind kind, uint32 generation, int number, Outcome outcome) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		Worker &worker = entry(slot, kind, number);

		if (worker.stage != Stage::starting || worker.generation != generation)
			return false;
		call_off(worker, outcome);
		if (kind == Kind::executor)
			ring(shared->slots[slot].scheduler.load());
		return true;
	});
}

Outcome take_outcome(int slot, Kind kind, int number) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		Worker &worker = entry(slot, kind, number);
		Outcome outcome = worker.outcome;

		worker.outcome = Outcome::none;
		return outcome;
	});
}

bool exchange_janitor_wanted(int slot, bool wanted) noexcept
{
	return shared->slots[slot].janitor_wanted.exchange(wanted ? 1 : 0) != 0;
}

// ---------------------------------------------------------------------------------------------------------
// Worker
// ---------------------------------------------------------------------------------------------------------

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

// ---------------------------------------------------------------------------------------------------------
// Executors
// ---------------------------------------------------------------------------------------------------------

int find_slot(Oid database) noexcept
{
	Slot *slot = find(database);

	return slot != nullptr ? static_cast<int>(slot - shared->slots) : -1;
}

int executor_places() noexcept { return shared->nexecutors; }

ExecutorView executor_view(int slot, int number) noexcept
{
	return with_lock(LW_SHARED, [&]() -> ExecutorView {
		const Executor &e = executor(slot, number);

		return {view_of(e), e.pid, e.role, e.handler, e.job, e.lease};
	});
}

bool request_executor(int slot, Oid role) noexcept
{
	bool done = with_lock(LW_EXCLUSIVE, [&] {
		for (int i = 0; i < shared->nexecutors; i++)
		{
			Executor &e = executor(slot, i);

			if (e.stage != Stage::none)
				continue;
			e.stage = Stage::wanted;
			e.outcome = Outcome::none;
			e.since = live::steady_now();
			e.role = role;
			e.handler = 0;
			e.job = e.lease = 0;
			return true;
		}
		return false;
	});

	if (done)
		wake_launcher();
	return done;
}

void wake_executor(int slot, int number) noexcept
{
	with_lock(LW_SHARED, [&] { ring(executor(slot, number).proc); });
}

void dismiss_executor(int slot, int number) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		Executor &e = executor(slot, number);

		if (e.stage == Stage::ready)
		{
			e.stop.store(1);
			ring(e.proc);
		}
	});
}

void signal_executor(int slot, int number, int64 lease, int signal) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		const Executor &e = executor(slot, number);

		if (e.stage == Stage::ready && e.lease == lease)
			(void)kill(e.pid, signal);
	});
}

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

void executor_runs(int64 job, int64 lease) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		Executor &me = *static_cast<Executor *>(my_worker);

		me.job = job;
		me.lease = lease;
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
