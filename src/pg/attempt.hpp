// Runs a part of some work that may fail alone, in a subtransaction or in its own transactions.
// Regime: PG. Locks: none.
#pragma once

#include "pg/prelude.hpp"

extern "C"
{
#include "utils/resowner.h"
}

namespace tq
{

enum class Tried : uint8
{
	done,	 // the work returned true
	refused, // the work returned false
	failed,	 // the work raised an error
};

// Runs `what` in a subtransaction, and rolls it back if `what` returns false or raises. An error goes to *error, or to
// the log if `error` is null.
template <class What>
Tried attempt(What &&what, ErrorData **error = nullptr)
{
	const MemoryContext outside = CurrentMemoryContext;
	const ResourceOwner owner = CurrentResourceOwner;
	volatile Tried result = Tried::failed;
	if (error != nullptr)
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
		if (error != nullptr)
			*error = CopyErrorData();
		else
			EmitErrorReport();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outside);
	CurrentResourceOwner = owner;
	return result;
}

// Whether an error with this code comes from damaged data: a broken page or index, a failing disk, a missing file.
constexpr bool is_damage(int sqlerrcode) noexcept
{
	const int category = ERRCODE_TO_CATEGORY(sqlerrcode);
	return category == ERRCODE_TO_CATEGORY(ERRCODE_DATA_CORRUPTED) ||
		   category == ERRCODE_TO_CATEGORY(ERRCODE_SYSTEM_ERROR);
}

// The same as attempt() for a read. Raises every error again that does not come from damaged data.
template <class What>
Tried attempt_read(What &&what, ErrorData **error)
{
	const Tried tried = attempt(what, error);
	if (tried == Tried::failed && !is_damage((*error)->sqlerrcode))
		ReThrowError(*error);
	return tried;
}

// For workers: runs `what`, which begins and ends transactions, and returns false if the worker must exit. After an
// error, rolls back the transaction, and reports the error if reports() is true. Raises the error again if handles() is
// false. Both are called while the error is current (geterrcode()).
template <class What, class Handles, class Reports>
Tried guard(What &&what, Handles &&handles, Reports &&reports)
{
	const MemoryContext outside = CurrentMemoryContext;
	volatile Tried result = Tried::failed;
	PG_TRY();
	{
		result = what() ? Tried::done : Tried::refused;
	}
	PG_CATCH();
	{
		if (!handles())
			PG_RE_THROW();
		MemoryContextSwitchTo(outside);
		if (reports())
			EmitErrorReport();
		FlushErrorState();
		AbortCurrentTransaction();
		pgstat_report_activity(STATE_IDLE, nullptr);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outside);
	return result;
}

template <class What, class Handles>
Tried guard(What &&what, Handles &&handles)
{
	return guard(what, handles, [] { return true; });
}

template <class What>
Tried guard(What &&what)
{
	return guard(what, [] { return true; });
}

} // namespace tq
