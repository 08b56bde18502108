// The words that users see for states and events.
// Regime: PG, but nothing here raises. Locks: none.
#pragma once

#include "live/shared.hpp"

namespace tq::api
{

const char *name_of(live::State state) noexcept;
const char *name_of(journal::FoldState state) noexcept; // of one that has ended, else "ready" or "running"
const char *name_of(journal::EventType event) noexcept; // what happened

// The state that an event which ends a job leads to.
const char *ended_as(journal::EventType event) noexcept;

// The terminal state of that name; false if there is none.
bool parse_ended(const char *name, journal::FoldState *state) noexcept;

} // namespace tq::api
