// Stops the workers of a database, and prevents new starts, during DDL that needs exclusive access; see slots.hpp.
//
// Regime: PG; nothing here raises. Locks: "tq workers", held only inside.
#include "pg/prelude.hpp"

#include "processes/slot_table.hpp"

namespace tq
{

namespace
{

// Keeps tq's locks apart from pg_advisory_lock(), which uses classes 1 and 2: "tq" in ASCII.
constexpr uint16 kLockClass = 0x7471;

} // namespace

void request_stop(Oid database, Force force) noexcept
{
	if (shared == nullptr)
		return;
	with_lock(LW_EXCLUSIVE, [&] {
		int slot = find_slot(database);

		if (slot < 0)
			return;
		for_each_worker(slot, [force](Kind kind, WorkerEntry &worker) {
			if (worker.stage == Stage::starting || worker.stage == Stage::wanted)
				call_off(worker, ExitOutcome::stopped);
			else if (worker.stage != Stage::none)
			{
				bool first = worker.stop.exchange(kStopNow) != kStopNow;
				// An executor that runs a job checks no flag. The first SIGTERM makes it release the job; a second one
				// would end it at once. While it records the end of an attempt, it has a job without a lease.
				const Executor *one = kind == Kind::executor ? &static_cast<Executor &>(worker) : nullptr;
				bool terminate =
					force == Force::all || (force == Force::all_but_releasing && (one == nullptr || one->job == 0)) ||
					(force == Force::long_running && kind != Kind::scheduler) || worker.stage == Stage::connecting;

				if (terminate || (first && one != nullptr && one->lease != 0))
					(void)kill(worker.pid, SIGTERM);
				else
					wake(worker.proc);
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

LOCKTAG
ddl_lock_tag(Oid database) noexcept
{
	LOCKTAG tag;

	SET_LOCKTAG_ADVISORY(tag, database, 0, 0, kLockClass);
	return tag;
}

} // namespace tq
