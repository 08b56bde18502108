// Time zones for the core, from PostgreSQL's time zone library.
// Regime: PG. find_zone may raise, and reads a file on the first call; the functions of a zone neither raise nor
// allocate.
// Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/cron.hpp"

namespace tq::pg
{

// Finds an IANA zone by name, ignoring case; valid for the life of the process. Raises 22023 if there is none. Refuses
// zones that count leap seconds. Also refuses POSIX rules such as "CET-1CEST": PostgreSQL parses any misspelt name with
// a digit as one.
pg_tz *find_zone(const char *name);

// The zone interface of core::next_fire.
core::Zone core_zone(const pg_tz *tz) noexcept;

} // namespace tq::pg
