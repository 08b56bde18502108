// The words that users see for states and events.
// Regime: PG, but nothing here raises. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

const char *name_of(State state) noexcept; // the state of an entry in memory; "ended" for State::terminal
const char *name_of(journal::FoldState state) noexcept; // by the journal; a live job is "ready" or "running"
const char *name_of(journal::EventType event) noexcept; // what happened

// The state of a job that this event ended.
const char *ended_as(journal::EventType event) noexcept;

// Finds the terminal state of that name; false if there is none.
bool parse_ended(const char *name, journal::FoldState *state) noexcept;

} // namespace tq
