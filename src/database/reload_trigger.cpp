// Fires when something other than tq writes rows of a segment: COPY, pg_restore, psql, logical replication (R6).
// Regime: PG. Locks: none. Raises an error if the database is active, or if it is not called as a trigger.
#include "database/activation.hpp"
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

// Remembers inactive databases for a subtransaction, because triggers fire for each row under logical replication. The
// lock on the written table, which the subtransaction keeps, excludes tq_activate().
bool is_active_now()
{
	static LocalTransactionId last_id = InvalidLocalTransactionId;
	static SubTransactionId last_sub = InvalidSubTransactionId;
	const LocalTransactionId id = pg::local_xid(*MyProc);
	const SubTransactionId sub = GetCurrentSubTransactionId();
	if (id == last_id && sub == last_sub)
		return false;
	const Oid extension = get_extension_oid("tq", true);
	if (OidIsValid(extension) && is_active_here(extension))
		return true;
	last_id = id;
	last_sub = sub;
	return false;
}

void tell_inactive()
{
	static bool told = false;
	if (told)
		return;
	told = true;
	constexpr const char *kMessage = "rows are written to tables of tq: it is inactive in this database";
	constexpr const char *kHint = "When all rows are restored, call SELECT tq_activate().";
	ereport(WARNING_CLIENT_ONLY, (errmsg("%s", kMessage), errhint("%s", kHint)));
	ereport(LOG_SERVER_ONLY, (errmsg("tq: %s", kMessage), errhint("%s", kHint)));
}

[[noreturn]] void refuse(Relation table)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("tq is active in this database"),
					errdetail("Table \"%s\" can be written only while it is not.", RelationGetRelationName(table)),
					errhint("Call SELECT tq_deactivate() first, and SELECT tq_activate() afterwards.")));
}

} // namespace
} // namespace tq

// tq.reload_trigger() returns trigger: once per statement (ENABLE ALWAYS), and per row where rows come
// without statements, from logical replication (ENABLE REPLICA).
TQ_FUNCTION(tq_reload_trigger)
{
	const TriggerData &trigger = tq::pg::trigger_call(fcinfo, "tq.reload_trigger", TRIGGER_EVENT_AFTER);
	const bool of_tq = RelationGetNamespace(trigger.tg_relation) == get_namespace_oid("tq", true);
	if (of_tq && !tq::pg::fired_by_own_statement())
	{
		if (tq::is_active_now())
			tq::refuse(trigger.tg_relation);
		tq::tell_inactive();
	}
	PG_RETURN_POINTER(nullptr);
}
