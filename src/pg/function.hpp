// Makes C++ functions callable from SQL. Regime: PG. The body may ereport. No C++ exception may leave it: src/core
// throws nothing, and no other folder uses the allocating part of the standard library.
#pragma once

#include "pg/extension.hpp"

// Declares and begins a SQL-callable function with C linkage. In 15 PG_FUNCTION_INFO_V1 declares it without
// PGDLLEXPORT, and a later declaration cannot add the visibility, so this one comes first.
#define TQ_BARE_FUNCTION(name)                                                                                         \
	extern "C"                                                                                                         \
	{                                                                                                                  \
		PGDLLEXPORT Datum name(PG_FUNCTION_ARGS);                                                                      \
		PG_FUNCTION_INFO_V1(name);                                                                                     \
	}                                                                                                                  \
	extern "C" PGDLLEXPORT Datum name(PG_FUNCTION_ARGS)

// The same for a function of the extension. check_call() rejects functions that others declare with the same symbol, so
// the arguments and the result are those of the install script.
#define TQ_FUNCTION(name)                                                                                              \
	static Datum name##_body(PG_FUNCTION_ARGS);                                                                        \
	TQ_BARE_FUNCTION(name)                                                                                             \
	{                                                                                                                  \
		tq::pg::check_call(fcinfo);                                                                                    \
		return name##_body(fcinfo);                                                                                    \
	}                                                                                                                  \
	static Datum name##_body(PG_FUNCTION_ARGS)

namespace tq::pg
{

// Raises unless the called function is a member of the extension tq. Also raises in a parallel worker, because an owner
// can mark a function parallel safe, and in a user's function that a write of tq runs (refuse_in_own_write).
void check_call(FunctionCallInfo fcinfo);

// The data of the trigger function `name`. Raises e_r_i_e_trigger_protocol_violated unless a trigger with this `timing`
// (TRIGGER_EVENT_AFTER, TRIGGER_EVENT_INSTEAD) called it. PostgreSQL ignores the result of such a trigger.
const TriggerData &trigger_call(FunctionCallInfo fcinfo, const char *name, TriggerEvent timing);

} // namespace tq::pg
