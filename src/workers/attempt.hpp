// A part of a worker's transaction that may fail by itself.
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

} // namespace tq::workers
