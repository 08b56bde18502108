// Fires when something other than tq writes rows of a segment: COPY, pg_restore, psql, logical replication (R6).
// Regime: PG. Locks: see segments/reopening.hpp. Raises an error if it is not called as a trigger.
#include "pg/function.hpp"
#include "pg/table_statements.hpp"

namespace tq
{
void mark_reload() noexcept;   // database/reload.hpp
void reopen_written(Oid table); // segments/reopening.hpp
}

// tq.reload_trigger() returns trigger: once per statement (ENABLE ALWAYS), and per row where rows come
// without statements, from logical replication (ENABLE REPLICA).
TQ_FUNCTION(tq_reload_trigger)
{
	const TriggerData &trigger = tq::pg::trigger_call(fcinfo, "tq.reload_trigger", TRIGGER_EVENT_AFTER);
	if (!tq::pg::fired_by_own_statement())
	{
		tq::mark_reload();
		tq::reopen_written(RelationGetRelid(trigger.tg_relation));
	}
	PG_RETURN_POINTER(nullptr);
}
