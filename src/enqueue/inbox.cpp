// tq_inbox: a view for INSERT and COPY. Each row is enqueued with tq_enqueue, and the view's columns are that
// function's arguments.
// Regime: PG.
#include "api/args.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

extern "C" Datum tq_enqueue(PG_FUNCTION_ARGS);

using namespace tq;

namespace
{

// The columns of the view, in the order of tq_enqueue's arguments. The type of `queue` is a domain, tq.inbox_queue.
constexpr pg::ColumnSpec kInbox[] = {
	{"queue", TEXTOID},
	{"payload", JSONBOID},
	{"kind", TEXTOID},
	{"priority", INT4OID},
	{"run_at", TIMESTAMPTZOID},
	{"delay", INTERVALOID},
	{"expires_at", TIMESTAMPTZOID},
	{"max_attempts", INT4OID},
	{"retry", JSONBOID},
	{"timeout", INTERVALOID},
	{"group_key", TEXTOID},
	{"unique_key", TEXTOID},
	{"unique_mode", TEXTOID},
	{"headers", JSONBOID},
	{"depends_on", INT8ARRAYOID},
	{"options", JSONBOID},
};

} // namespace

// The INSTEAD OF INSERT trigger.
TQ_FUNCTION(tq_inbox_insert)
{
	constexpr int kColumns = std::size(kInbox);
	const TriggerData &trigger = pg::trigger_call(fcinfo, "tq.inbox_insert", TRIGGER_EVENT_INSTEAD);
	if (!TRIGGER_FIRED_BY_INSERT(trigger.tg_event))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("function \"%s\" must be fired INSTEAD OF INSERT", "tq.inbox_insert")));
	Datum values[kColumns];
	bool nulls[kColumns];
	pg::read_trigger_row(trigger, pg::row_shape(kInbox), values, nulls);
	LOCAL_FCINFO(call, kColumns);
	InitFunctionCallInfoData(*call, fcinfo->flinfo, kColumns, InvalidOid, nullptr, nullptr);
	for (int i = 0; i < kColumns; ++i)
	{
		call->args[i].value = values[i];
		call->args[i].isnull = nulls[i];
	}
	static_cast<void>(tq_enqueue(call));
	return PointerGetDatum(trigger.tg_trigtuple);
}

// The CHECK of the domain tq.inbox_queue calls this function; COPY and INSERT evaluate it for each row. If
// session_replication_role turns triggers off, the rows would otherwise be lost without an error.
TQ_FUNCTION(tq_inbox_guard)
{
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("cannot insert into tq_inbox while session_replication_role is replica"),
						errdetail("The trigger that enqueues the rows does not fire then."),
						errhint("Reset session_replication_role, or use tq_enqueue_many.")));
	PG_RETURN_BOOL(true);
}
