// What the scheduler does with the entries of executors: views, requests, wakeups, signals; see slots.hpp.
//
// Regime: PG; nothing here raises. Locks: "tq workers", held only inside.
#include "pg/prelude.hpp"

#include "processes/slot_table.hpp"

namespace tq
{

int executor_entries() noexcept { return shared->nexecutors; }

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
			e.outcome = ExitOutcome::none;
			e.since = steady_now();
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
	with_lock(LW_SHARED, [&] { wake(executor(slot, number).proc); });
}

void dismiss_executor(int slot, int number) noexcept
{
	with_lock(LW_EXCLUSIVE, [&] {
		Executor &e = executor(slot, number);

		if (e.stage == Stage::ready)
		{
			if (e.stop.load() == 0)
				e.stop.store(kDismissed);
			wake(e.proc);
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

} // namespace tq
