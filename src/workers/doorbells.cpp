// Doorbells: how a backend wakes the launcher or the scheduler, and leaves a request for them; see slots.hpp.
//
// Regime: PG; nothing here raises. Locks: none, but request_check() takes "tq workers".
#include "pg/prelude.hpp"

#include "workers/slot_table.hpp"

namespace tq::workers
{

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

} // namespace tq::workers
