// tq_now: the time that jobs go by. Needs no right and no shared memory.
// Regime: PG; raises nothing. Locks: none.
#include "live/clock.hpp"
#include "live/shared.hpp"
#include "pg/function.hpp"

using namespace tq;

TQ_FUNCTION(tq_now) { PG_RETURN_TIMESTAMPTZ(live::preloaded() ? live::wall_now() : GetCurrentTimestamp()); }
