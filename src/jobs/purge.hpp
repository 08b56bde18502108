// Purges jobs, for tq_purge and tq_reset.
// Regime: PG; may ereport.
#pragma once

#include "jobs/find.hpp"

namespace tq
{

// Purges the jobs in these states; returns how many. Raises a NOTICE if the transaction must commit before the rest.
// The caller has loaded the live state.
int64 purge(Db &db, Search *search);

} // namespace tq
