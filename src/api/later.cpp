// Functions that later versions bring: they exist with their signatures, so that what depends on them can be written, and say so.
// Regime: PG.
#include "pg/function.hpp"

using namespace tq;

TQ_FUNCTION(tq_later)
{
	const char *name = get_func_name(fcinfo->flinfo->fn_oid);
	ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					errmsg("%s is not supported yet", name != nullptr ? name : "this function"),
					errhint("A later version of tq brings it.")));
}
