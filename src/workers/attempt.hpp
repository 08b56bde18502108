// A part of a worker's work that may fail by itself: of a transaction, or with transactions of its own.
// Regime: PG. Locks: none.
#pragma once

#include "pg/prelude.hpp"

extern "C"
{
#include "utils/resowner.h"
}

namespace tq::workers
{

enum class Tried : uint8
{
	done,
	refused,
	failed,
};

// Runs `what` in a subtransaction, which is rolled back if it says no or fails; *error is then set.
template <class What>
Tried attempt(What &&what, ErrorData **error)
{
	const MemoryContext outside = CurrentMemoryContext;
	const ResourceOwner owner = CurrentResourceOwner;
	volatile Tried result = Tried::failed;
	*error = nullptr;
	BeginInternalSubTransaction(nullptr);
	MemoryContextSwitchTo(outside);
	PG_TRY();
	{
		result = what() ? Tried::done : Tried::refused;
		if (result == Tried::done)
			ReleaseCurrentSubTransaction();
		else
			RollbackAndReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(outside);
		*error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outside);
	CurrentResourceOwner = owner;
	return result;
}

// Runs `what`, which begins and ends transactions; refused: the worker has to leave. An error is reported, if `loud` says so, and the
// transaction rolled back, unless `mine` says that it is the caller's.
template <class What, class Mine, class Loud>
Tried guard(What &&what, Mine &&mine, Loud &&loud)
{
	const MemoryContext outside = CurrentMemoryContext;
	volatile Tried result = Tried::failed;
	PG_TRY();
	{
		result = what() ? Tried::done : Tried::refused;
	}
	PG_CATCH();
	{
		if (!mine())
			PG_RE_THROW();
		MemoryContextSwitchTo(outside);
		if (loud())
			EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
		pgstat_report_activity(STATE_IDLE, nullptr);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outside);
	return result;
}

template <class What, class Mine>
Tried guard(What &&what, Mine &&mine)
{
	return guard(what, mine, [] { return true; });
}

template <class What>
Tried guard(What &&what)
{
	return guard(what, [] { return true; });
}

} // namespace tq::workers
