#include "pg/function.hpp"

extern "C"
{
#include "access/parallel.h"
}

#include "pg/table_statements.hpp"

namespace tq::pg
{

void check_call(FunctionCallInfo fcinfo)
{
	static_cast<void>(extension_of(fcinfo->flinfo != nullptr ? fcinfo->flinfo->fn_oid : InvalidOid));
	if (IsParallelWorker())
		ereport(ERROR, (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
						errmsg("functions of tq cannot be called in a parallel worker"),
						errhint("Mark the function as PARALLEL UNSAFE again.")));
	if (!CALLED_AS_TRIGGER(fcinfo))
		refuse_in_own_write();
}

const TriggerData &trigger_call(FunctionCallInfo fcinfo, const char *name, TriggerEvent timing)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("function \"%s\" was not called by a trigger", name)));
	const auto &trigger = *reinterpret_cast<TriggerData *>(fcinfo->context);
	if ((trigger.tg_event & TRIGGER_EVENT_TIMINGMASK) != timing)
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("function \"%s\" must be fired %s", name,
							   timing == TRIGGER_EVENT_AFTER ? "AFTER the event" : "INSTEAD OF the event")));
	if (timing == TRIGGER_EVENT_INSTEAD)
		refuse_in_own_write();
	return trigger;
}

} // namespace tq::pg
