// What the launcher makes of workers that have ended, of starts that came to nothing, and of those that must not run.
#pragma once

#include "workers/known_databases.hpp"

namespace tq::workers
{

// The pause after which something that could not be done is tried again.
int retry_ms() noexcept;

// DDL is in the way of a scheduler or janitor: it is looked at again, soon at first.
void postpone(Known *known, Kind kind);

// Takes note of what happened in one slot since the last cycle, and stops what must not run.
void look_after(int slot);

} // namespace tq::workers
