// Telling the scheduler that schedules have changed.
// Regime: PG; noexcept. Locks: none.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// The open transaction has changed a schedule, or fired one: at its commit the scheduler is to read them again. Does nothing for the
// scheduler itself, which knows.
void mark_schedules() noexcept;

// For the transaction callbacks.
bool schedules_marked() noexcept;
void announce_schedules() noexcept; // at commit
void forget_schedules() noexcept;	// at every end

} // namespace tq::live
