#include "processes/work_transaction.hpp"

extern "C"
{
#include "storage/pmsignal.h"
}

namespace tq
{

bool begin_work(const WorkerContext &context, const char *activity)
{
	// A worker that always has work never waits for a latch, so it checks here. PostmasterIsAlive() checks only once,
	// after the signal of the postmaster's death. If a newly forked child has the pipe open then, it reports the
	// postmaster as alive forever.
	if (!PostmasterIsAliveInternal())
		proc_exit(1);
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	pgstat_report_activity(STATE_RUNNING, activity);
	if (!extension_still_there(context))
	{
		CommitTransactionCommand();
		pgstat_report_activity(STATE_IDLE, nullptr);
		return false;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

void end_work(bool asynchronous)
{
	PopActiveSnapshot();
	if (asynchronous)
		static_cast<void>(set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
											true, 0, false));
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, nullptr);
}

} // namespace tq
