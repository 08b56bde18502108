// Time zones as the core wants them, from PostgreSQL's own time zone library.
// Regime: PG. find_zone may raise and reads a file the first time; the functions of a zone neither raise nor allocate. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/cron.hpp"

namespace tq::pg
{

// The zone of that name in the IANA database, in any case; it is good as long as the process lives. Raises 22023 if there is none.
// Not taken: POSIX rules such as "CET-1CEST", as which PostgreSQL reads every misspelt name with a digit in it, and zones that count
// leap seconds.
pg_tz *find_zone(const char *name);

// What core::next_fire wants.
core::Zone core_zone(const pg_tz *tz) noexcept;

} // namespace tq::pg
