// Publishes a transaction's changes to the queue at its commit, or undoes them at its abort (R13); the same for
// savepoints. Only this module knows the order in which modules take part; src/commit/README.md explains it.
// Regime: PG; the callbacks cannot fail, but PRE_COMMIT may. Locks: the commit callback holds the map lock (shared) and
// takes queue locks one at a time.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

void register_callbacks(); // from _PG_init

} // namespace tq
