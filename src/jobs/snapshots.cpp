#include "jobs/snapshots.hpp"

#include "guc.hpp"
#include "shmem/clock.hpp"

extern "C"
{
#include "utils/portal.h"
}

namespace tq
{

namespace
{

// Whether this transaction still holds back the removal of dead rows: by the snapshot of a cursor, by its isolation
// level, or by its writes.
bool holds_back_vacuum() noexcept
{
	return TransactionIdIsValid(MyProc->xmin) || TransactionIdIsValid(GetTopTransactionIdIfAny());
}

} // namespace

bool is_atomic(FunctionCallInfo fcinfo) noexcept
{
	return fcinfo->context == nullptr || !IsA(fcinfo->context, CallContext) ||
		   castNode(CallContext, fcinfo->context)->atomic;
}

// A top-level CALL may drop the portal's snapshots, as COMMIT in a procedure does. In a transaction block, only a lone
// snapshot on the stack may be released. PortalRunUtility then finds the stack empty, as after VACUUM.
void drop_snapshots(bool atomic)
{
	if (!atomic)
		ForgetPortalSnapshots();
	else if (ActiveSnapshotSet())
	{
		Snapshot top = RegisterSnapshot(GetActiveSnapshot());
		PopActiveSnapshot();
		if (ActiveSnapshotSet()) // the caller's caller reads with one
			PushActiveSnapshot(top);
		UnregisterSnapshot(top);
	}
	InvalidateCatalogSnapshot();
}

core::Micros end_of_wait(core::Micros timeout) noexcept
{
	const core::Micros left =
		holds_back_vacuum() ? std::min(timeout, guc::max_pinned_wait * core::Micros{1000}) : timeout;
	return left == core::kNever ? core::kNever : steady_now() + left;
}

} // namespace tq
