// tq_now: the current wall clock time, as jobs use it. Needs no right.
// Regime: PG. Locks: the registry lock, briefly.
#include "database/attach.hpp"
#include "pg/function.hpp"

using namespace tq;

TQ_FUNCTION(tq_now)
{
	find_database(fcinfo); // wall_now() then uses the clock of this database (tq_set_now)
	PG_RETURN_TIMESTAMPTZ(preloaded() ? wall_now() : GetCurrentTimestamp());
}
