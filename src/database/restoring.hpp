// Rows that were written past tq into an active database. Jobs that look lost may then still come.
// Regime: PG; raises where it says so. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Whether the last change from outside is less than this ago.
bool restore_seen_within(const Db &db, Micros length) noexcept;

// Whether the janitor has not compared the segments since the last change from outside, or that was less than ten
// minutes ago.
bool restore_may_be_under_way(const Db &db) noexcept;

// The numbers of segments that lack indexes or triggers, for a message; null if there are none.
const char *incomplete_segments();

} // namespace tq
