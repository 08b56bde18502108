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
	done,
	refused,
	failed,
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

// Runs `what`, which begins and ends transactions. Returns refused if the worker must exit. After an error, rolls back
// the transaction and reports the error if loud() is true. Raises the error again if mine() is false.
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

} // namespace tq
