// Fires when something other than tq writes to a table of tq: COPY, pg_restore, psql, logical replication (R6). The
// name is that of 0.1.0, where such rows made tq read the journal again.
// Regime: PG. Locks: none. Raises an error if the database is active, or if it is not called as a trigger.
#include "database/activation.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "transaction/queue_changes.hpp"

namespace tq
{

namespace
{

[[noreturn]] void refuse(Relation table)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("tq is active in this database"),
					errdetail("Table \"%s\" can be written only while it is not.", RelationGetRelationName(table)),
					errhint("Call SELECT tq_deactivate() first, and SELECT tq_activate() afterwards.")));
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

// Remembers for the subtransaction that the database is inactive, because triggers fire for each row under logical
// replication. The database stays inactive: only tq_activate() changes that, and it needs a lock on all tables. In
// another session that lock conflicts with the one on the written table, which the subtransaction keeps. In this one,
// the change is noted as QueueEdit::switched. An unused database is not remembered, because a first use may be
// recorded meanwhile.
void require_inactive(Relation table, Oid extension)
{
	static LocalTransactionId last_id = InvalidLocalTransactionId;
	static SubTransactionId last_sub = InvalidSubTransactionId;
	const LocalTransactionId id = pg::local_xid(*MyProc);
	const SubTransactionId sub = GetCurrentSubTransactionId();
	const bool is_meta = strcmp(RelationGetRelationName(table), "meta") == 0;
	if (id == last_id && sub == last_sub && !is_meta && !database_change_here(QueueEdit::switched))
		return;
	if (is_active_here(extension))
		refuse(table);
	CommandCounterIncrement(); // the next look sees the rows of the statement, such as one of tq.meta
	const Activation is = read_activation(extension);
	if (is == Activation::active && !is_meta)
		refuse(table); // it has become active just now
	if (is == Activation::active)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("a row of tq.meta names this database"),
						errdetail("The row would make the database active, whole or not."),
						errhint("Leave the row out. When all rows are restored, call SELECT tq_activate().")));
	if (is == Activation::unused)
		return;
	last_id = id;
	last_sub = sub;
	tell_inactive();
}

} // namespace
} // namespace tq

// tq.reload_trigger() returns trigger: once per statement (ENABLE ALWAYS), and per row where rows come
// without statements, from logical replication (ENABLE REPLICA).
TQ_FUNCTION(tq_reload_trigger)
{
	const Relation table = tq::pg::trigger_call(fcinfo, "tq.reload_trigger", TRIGGER_EVENT_AFTER).tg_relation;
	if (!tq::pg::fired_by_own_statement() && RelationGetNamespace(table) == get_namespace_oid("tq", true))
		tq::require_inactive(table, tq::pg::extension_of(fcinfo->flinfo->fn_oid));
	PG_RETURN_POINTER(nullptr);
}
