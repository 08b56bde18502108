// What fires when rows of a segment are written by anything but tq: COPY, pg_restore, psql, logical
// replication (R6). Regime: PG. Locks: as live/reopening.hpp says. Raises an error if it is not called as a trigger.
#include "pg/function.hpp"

namespace tq::live
{
void mark_reload() noexcept;   // live/load.hpp
void reopen_written(Oid table); // live/reopening.hpp
}

// tq.reload_trigger() returns trigger: once per statement (ENABLE ALWAYS), and per row where rows come
// without statements, from logical replication (ENABLE REPLICA).
TQ_FUNCTION(tq_reload_trigger)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("function \"%s\" was not called by a trigger", "tq.reload_trigger")));
	tq::live::mark_reload();
	tq::live::reopen_written(RelationGetRelid(reinterpret_cast<TriggerData *>(fcinfo->context)->tg_relation));
	PG_RETURN_POINTER(nullptr); // ignored: always an AFTER trigger
}
