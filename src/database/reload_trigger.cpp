// Fires when something other than tq writes rows of a segment: COPY, pg_restore, psql, logical replication (R6).
// Regime: PG. Locks: see segments/reopening.hpp. Raises an error if it is not called as a trigger.
#include "database/activation.hpp"
#include "database/reload.hpp"
#include "segments/reopening.hpp"
#include "pg/function.hpp"
#include "pg/table_statements.hpp"

extern "C"
{
#include "commands/extension.h"
}

namespace tq
{

namespace
{

// Asked once per transaction, because triggers fire for each row under logical replication.
bool is_active_now()
{
	static LocalTransactionId asked = InvalidLocalTransactionId;
	static bool active = false;
	const LocalTransactionId now = pg::local_xid(*MyProc);
	if (now != asked)
	{
		const Oid extension = get_extension_oid("tq", true);
		active = OidIsValid(extension) && is_active_here(extension);
		asked = now;
	}
	return active;
}

void tell_inactive()
{
	static bool told = false;
	if (told)
		return;
	told = true;
	constexpr const char *kMessage = "rows are written to tables of tq: it is inactive in this database";
	constexpr const char *kHint = "When all rows are restored, call SELECT tq_activate().";
	ereport(NOTICE, (errmsg("%s", kMessage), errhint("%s", kHint)));
	ereport(LOG_SERVER_ONLY, (errmsg("tq: %s", kMessage), errhint("%s", kHint)));
}

} // namespace
} // namespace tq

// tq.reload_trigger() returns trigger: once per statement (ENABLE ALWAYS), and per row where rows come
// without statements, from logical replication (ENABLE REPLICA).
TQ_FUNCTION(tq_reload_trigger)
{
	const TriggerData &trigger = tq::pg::trigger_call(fcinfo, "tq.reload_trigger", TRIGGER_EVENT_AFTER);
	if (tq::pg::fired_by_own_statement())
		PG_RETURN_POINTER(nullptr);
	if (!tq::is_active_now())
		tq::tell_inactive();
	else
	{
		tq::mark_reload();
		tq::reopen_written(RelationGetRelid(trigger.tg_relation));
	}
	PG_RETURN_POINTER(nullptr);
}
