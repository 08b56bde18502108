// Shared memory of the wait points (TQ_TEST builds). Regime: PG.
#pragma once

#include "pg/prelude.hpp"

namespace tq
{
#ifdef TQ_TEST
Size test_shmem_size();
void init_test_shmem();
#endif
} // namespace tq
