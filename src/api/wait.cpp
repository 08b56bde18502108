// tq_wait: waits until a job can be claimed, without a snapshot that would hold back everybody's vacuum (H20).
// Regime: PG. Locks: queue locks, briefly (live/waiting.hpp).
#include "api/args.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/waiting.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"

extern "C"
{
#include "utils/portal.h"
}

namespace tq::api
{

namespace
{

// Lets go of every snapshot that this call can give up. A CALL on its own may drop the portal's, as COMMIT in a procedure does. In a
// transaction block only a lone snapshot may go, and PortalRunUtility then finds the stack empty, as it does after VACUUM.
void drop_snapshots(bool atomic)
{
	if (!atomic)
		ForgetPortalSnapshots();
	else if (ActiveSnapshotSet())
	{
		Snapshot top = RegisterSnapshot(GetActiveSnapshot());
		PopActiveSnapshot();
		if (ActiveSnapshotSet()) // a caller's caller reads with one
			PushActiveSnapshot(top);
		UnregisterSnapshot(top);
	}
	InvalidateCatalogSnapshot();
}

// Whether this transaction still holds back the removal of dead rows: by a cursor's snapshot, by its isolation level, by what it wrote.
bool pins() noexcept { return TransactionIdIsValid(MyProc->xmin) || TransactionIdIsValid(GetTopTransactionIdIfAny()); }

// Naming a queue that nobody has used yet may have drawn its id, which is a write; it must not stay open while we wait.
void commit_names()
{
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	SPI_commit();
	SPI_finish();
}

// Registers anew; true if there is something to claim already.
bool enter(const uint16_t *queues, const uint32 *generations, char *const *names, int n)
{
	const live::Filter any{};
	live::wait_begin(queues, n, any);
	for (int i = 0; i < n; ++i)
		live::check_still_there(queues[i], generations[i], names[i]);
	return live::wait_check(queues, n, any);
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// queues, timeout
TQ_FUNCTION(tq_wait)
{
	PreventCommandIfParallelMode("tq_wait()");
	constexpr int kMax = core::kWaitersPerProc;
	int n = 0;
	Datum *list = array_required(fcinfo, 0, "queues", TEXTOID, &n);
	if (n < 1 || n > kMax)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("queues must have 1 to %d elements", kMax)));
	const core::Micros timeout = interval_or(fcinfo, 1, "timeout", core::kNever, 0);
	const bool atomic = fcinfo->context == nullptr || !IsA(fcinfo->context, CallContext) ||
						castNode(CallContext, fcinfo->context)->atomic;

	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	const bool wrote_before = TransactionIdIsValid(GetTopTransactionIdIfAny());
	uint16_t queues[kMax];
	uint32 generations[kMax];
	char *names[kMax];
	for (int i = 0; i < n; ++i)
	{
		names[i] = TextDatumGetCString(list[i]);
		queues[i] = live::queue_for_claim(db, names[i]);
		generations[i] = live::generation_of(db, queues[i], names[i]);
	}
	// only of a CALL by itself: a procedure may rely on its transaction's locks and settings
	if (!atomic && !SPI_inside_nonatomic_context() && !wrote_before && TransactionIdIsValid(GetTopTransactionIdIfAny()))
		commit_names();
	drop_snapshots(atomic);

	core::Micros left = timeout;
	if (pins())
		left = std::min(left, guc::max_pinned_wait * core::Micros{1000});
	const core::Micros until = left == core::kNever ? core::kNever : live::steady_now() + left;
	bool found = enter(queues, generations, names, n);
	while (!found && live::wait_sleep(until))
	{
		found = live::wait_check(queues, n, live::Filter{}); // before the token is given up
		if (!found)
			found = enter(queues, generations, names, n);
	}
	// with a job found, the caller claims next; otherwise a token that came too late goes to another waiter
	live::wait_end(!found);
	PG_RETURN_VOID();
}
