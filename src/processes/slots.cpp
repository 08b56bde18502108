// The table of databases and their workers in shared memory: the server's and the launcher's part; see slots.hpp.
//
// Regime: PG. Locks: "tq workers", see slot_table.hpp. Raises: only request_slots() and init_slots(), at server start.
#include "pg/prelude.hpp"

#include "guc.hpp"
#include "processes/slot_table.hpp"

namespace tq
{

Shared *shared = nullptr;
LWLock *lock = nullptr;
Executor *executors = nullptr;

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

constexpr char kTranche[] = "tq workers";

Size slots_size() { return add_size(offsetof(Shared, slots), mul_size(guc::max_databases + 1, sizeof(Slot))); }

Size shmem_size()
{
	return add_size(slots_size(), mul_size(mul_size(guc::max_databases + 1, guc::max_executors), sizeof(Executor)));
}

} // namespace

void request_slots()
{
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche(kTranche, 1);
}

void init_slots()
{
	bool found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	lock = &GetNamedLWLockTranche(kTranche)->lock;
	shared = static_cast<Shared *>(ShmemInitStruct("tq workers", shmem_size(), &found));
	if (!found)
	{
		// every field starts at zero: no database, no process, no request
		memset(static_cast<void *>(shared), 0, shmem_size());
		ConditionVariableInit(&shared->gone);
		shared->nslots = guc::max_databases + 1;
		shared->nexecutors = guc::max_executors;
	}
	executors = reinterpret_cast<Executor *>(reinterpret_cast<char *>(shared) + slots_size());
	LWLockRelease(AddinShmemInitLock);
}

// ---------------------------------------------------------------------------------------------------------
// Launcher
// ---------------------------------------------------------------------------------------------------------

int slot_count() noexcept { return shared->nslots; }

int find_slot(Oid database) noexcept
{
	Slot *slot = find(database);

	return slot != nullptr ? static_cast<int>(slot - shared->slots) : -1;
}

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
			for_each_worker(i, [](Kind, WorkerEntry &worker) {
				if (worker.stage == Stage::starting)
					call_off(worker, ExitOutcome::stopped);
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
		for_each_worker(slot, [](Kind, WorkerEntry &worker) {
			worker.stage = Stage::none;
			worker.outcome = ExitOutcome::none;
			worker.waits_since = 0;
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
		WorkerEntry &worker = entry(slot, kind, number);
		Stage before = kind == Kind::executor ? Stage::wanted : Stage::none;

		if (shared->slots[slot].database.load() != database || worker.stage != before)
			return 0;
		if (++worker.generation == 0)
			worker.generation = 1;
		worker.stage = Stage::starting;
		worker.outcome = ExitOutcome::none;
		worker.since = steady_now();
		return worker.generation;
	});
}

bool abandon_start(int slot, Kind kind, uint32 generation, int number, ExitOutcome outcome) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		WorkerEntry &worker = entry(slot, kind, number);

		if (worker.stage != Stage::starting || worker.generation != generation)
			return false;
		call_off(worker, outcome);
		if (kind == Kind::executor)
			wake(shared->slots[slot].scheduler.load());
		return true;
	});
}

ExitOutcome take_outcome(int slot, Kind kind, int number) noexcept
{
	return with_lock(LW_EXCLUSIVE, [&] {
		WorkerEntry &worker = entry(slot, kind, number);
		ExitOutcome outcome = worker.outcome;

		worker.outcome = ExitOutcome::none;
		return outcome;
	});
}

bool exchange_janitor_wanted(int slot, bool wanted) noexcept
{
	return shared->slots[slot].janitor_wanted.exchange(wanted ? 1 : 0) != 0;
}

void note_waiting(int slot, Kind kind, bool waits) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		core::Micros &since = entry(slot, kind, 0).waits_since;

		since = !waits ? 0 : since != 0 ? since : steady_now();
	});
}

void pass_turn(int slot, Oid database) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		WorkerEntry &scheduler = entry(slot, Kind::scheduler, 0);

		if (shared->slots[slot].database.load() != database || scheduler.stage != Stage::ready)
			return;
		scheduler.stop.store(kStopNow);
		wake(scheduler.proc);
		shared->turn_at = steady_now();
	});
}

core::Micros last_turn() noexcept
{
	return with_lock(LW_SHARED, [] { return shared->turn_at; });
}

} // namespace tq
