// Publishes a transaction's changes to the queue at its commit, or undoes them at its abort (R13); the same for
// savepoints. Only this module knows the order in which modules take part; src/commit/README.md explains it.
// Regime: PG; PRE_COMMIT and PRE_PREPARE may raise, the other callbacks cannot fail. Locks: the callbacks take the
// registry lock, the map lock (shared) and queue locks, in this module or in those they call.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

void register_callbacks(); // from _PG_init

} // namespace tq
