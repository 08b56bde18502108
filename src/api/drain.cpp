// tq_drain, tq_undrain: a worker is to stop gracefully. Its claims return nothing, its heartbeats answer `quiet`.
// Regime: PG. Locks: the registry lock. In memory only: at once, not undone by a rollback, forgotten by a restart
// of the server.
#include "api/args.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "live/workers_table.hpp"
#include "pg/function.hpp"

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_drain)
{
	const char *name = text_required(fcinfo, 0, "worker");
	live::check_name("worker", name);
	require_writable("tq_drain()");
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	live::require_right_everywhere(db, "tq_drain", live::kManage); // a worker is of no queue
	// one that has never claimed may be about to
	int32 holds = 0;
	if (!live::set_draining(db, name, true, &holds))
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many workers"),
						errhint("Raise tq.max_workers (now %d) and restart the server.", guc::max_workers)));
	PG_RETURN_INT64(holds);
}

TQ_FUNCTION(tq_undrain)
{
	const char *name = text_required(fcinfo, 0, "worker");
	live::check_name("worker", name);
	require_writable("tq_undrain()");
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	live::require_right_everywhere(db, "tq_undrain", live::kManage);
	int32 holds = 0;
	PG_RETURN_BOOL(live::set_draining(db, name, false, &holds));
}
