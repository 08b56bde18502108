// Handles workers that have ended and starts that failed, and stops workers that must not run.
#pragma once

#include "workers/database_registry.hpp"

namespace tq
{

// The pause before the launcher retries a failed step.
int retry_ms() noexcept;

// DDL blocks a scheduler or janitor: delays its start, briefly at first, then longer.
void postpone(Known *known, Kind kind);

// Records the events in one slot since the last cycle, and stops workers that must not run.
void process_slot(int slot);

} // namespace tq
