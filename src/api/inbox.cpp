// tq_inbox: a view to insert into, by COPY too; each row goes the way of tq_enqueue, whose arguments its columns are.
// Regime: PG.
#include "api/args.hpp"
#include "pg/function.hpp"

extern "C" Datum tq_enqueue(PG_FUNCTION_ARGS);

using namespace tq;

// The INSTEAD OF INSERT trigger.
TQ_FUNCTION(tq_inbox_insert)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("tq.inbox_insert() can only be called as a trigger")));
	const auto *trigger = reinterpret_cast<TriggerData *>(fcinfo->context);
	if (!TRIGGER_FIRED_INSTEAD(trigger->tg_event) || !TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("tq.inbox_insert() must be fired INSTEAD OF INSERT, for each row")));
	constexpr int kColumns = 16;
	TupleDesc desc = RelationGetDescr(trigger->tg_relation);
	if (desc->natts != kColumns)
		elog(ERROR, "tq_inbox has %d columns, not %d", desc->natts, kColumns);
	Datum values[kColumns];
	bool nulls[kColumns];
	heap_deform_tuple(trigger->tg_trigtuple, desc, values, nulls);
	LOCAL_FCINFO(call, kColumns);
	InitFunctionCallInfoData(*call, fcinfo->flinfo, kColumns, InvalidOid, nullptr, nullptr);
	for (int i = 0; i < kColumns; ++i)
	{
		call->args[i].value = values[i];
		call->args[i].isnull = nulls[i];
	}
	static_cast<void>(tq_enqueue(call));
	return PointerGetDatum(trigger->tg_trigtuple);
}

// In the CHECK of the type of tq_inbox.queue, which COPY and INSERT evaluate for each row: where session_replication_role turns triggers off,
// the rows would vanish without a word (H26).
TQ_FUNCTION(tq_inbox_guard)
{
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("cannot insert into tq_inbox while session_replication_role is replica"),
						errdetail("The trigger that enqueues the rows does not fire then."),
						errhint("Reset session_replication_role, or use tq_enqueue_many.")));
	PG_RETURN_BOOL(true);
}
