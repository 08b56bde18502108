// Wakeups: how a backend wakes the launcher or the scheduler, and leaves a request for them; see slots.hpp.
//
// Regime: PG; nothing here raises. Locks: none, except request_check(), which takes "tq workers".
#include "pg/prelude.hpp"

#include "processes/slot_table.hpp"

namespace tq
{

void wake_launcher() noexcept
{
	if (shared != nullptr)
		wake(shared->launcher.load());
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
	// Only the process that sets the flag wakes the launcher. A set flag means that the launcher has yet to read it.
	if (slot->janitor_wanted.exchange(1) == 0)
		wake_launcher();
	return true;
}

void set_latch_of_scheduler(Oid database) noexcept
{
	if (Slot *slot = find(database))
		wake(slot->scheduler.load());
}

} // namespace tq
