// tq_set_now: sets the clock of this database, for tests.
// Regime: PG. Locks: none.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"

using namespace tq;

// at; returns the time of the clock
TQ_FUNCTION(tq_set_now)
{
	require_writable("tq_set_now()");
	const TimestampTz at = time_or(fcinfo, 0, "at", 0);
	if (given(fcinfo, 0) && (at < guc::kFirstFakeTime || at >= guc::kFakeTimeEnd))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("at is out of range: %s", timestamptz_to_str(at)),
						errdetail("It must lie in the years 2001 to 9998.")));
	Db &db = database(fcinfo);
	require_testing(db, "function tq_set_now");
	set_database_clock(db, at);
	record_action(db, "set_now", kAllQueues, 0, Facts().add_time("at", at));
	PG_RETURN_TIMESTAMPTZ(wall_now());
}
