// Whether a session may know a segment that it has not locked yet. pg_dump lists all tables by its snapshot and then
// locks them; it fails if one of them is dropped in between.
// Regime: PG. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Whether drops of segments must wait for a snapshot that a session of this database has held for some time. True for
// at most ten seconds in a row, then false for as long. For the janitor, outside of a transaction; it sleeps for a
// moment.
bool snapshots_delay_drops(Db &db);

} // namespace tq
