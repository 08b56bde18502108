// Suggests a queue for a name that has none. Only queues on which the current user has a right are suggested, so an
// error says nothing about others.
// Regime: PG; may raise. Locks: registry, briefly.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The beginning of a hint, "Perhaps you meant "mail". "; empty if no queue is near, or if the user has a right on a
// queue of that name.
const char *perhaps_queue(const Db &db, const char *name);

// Raises TQ002.
[[noreturn]] void no_such_queue(const Db &db, const char *name);

} // namespace tq
