// Blocked jobs without a row in tq.dependency, because the rows were deleted by hand or not restored. Nothing would
// ever free these jobs, so the audit reports how many there are.
// Regime: PG; may ereport. Locks: AccessShareLock on the tables it reads.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

void register_orphan_counter(); // from _PG_init

} // namespace tq
