// What shows whether a restore is still under way.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Processes that have tq's tables open for writing or DDL; their rows are not visible yet. Excludes autovacuum and tq.
// Null if there are none.
const char *processes_that_write(const Db &db);

} // namespace tq
