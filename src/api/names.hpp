// The words that users see for states and events.
// Regime: PG, but nothing here raises. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

const char *name_of(State state) noexcept;
const char *name_of(journal::FoldState state) noexcept; // the state of an ended job, else "ready" or "running"
const char *name_of(journal::EventType event) noexcept; // what happened

// The state of a job that this event ended.
const char *ended_as(journal::EventType event) noexcept;

// Finds the terminal state of that name; false if there is none.
bool parse_ended(const char *name, journal::FoldState *state) noexcept;

} // namespace tq
