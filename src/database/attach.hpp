// Maps a function call to the database's slot in shared memory: creates it, waits until it is loaded, releases it.
// Regime: PG; everything may ereport unless noexcept. Locks: registry, queue, segment map, one at a time.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The database slot of the extension that the called function belongs to. Raises TQ006 (not preloaded), TQ007 (versions
// differ), 25006 (standby), TQ009 (inactive). Reads the catalog into the segment map once, so that ids can be drawn.
Db &database(FunctionCallInfo fcinfo);

// The same for an inactive database, too: no ids can be drawn, and nothing is loaded.
Db &database_slot(FunctionCallInfo fcinfo);
Db &database_slot(Oid extension);

// Finds the slot if there is one, for functions that need only the clock of the database.
void find_database(FunctionCallInfo fcinfo);

// The same as database() for a worker, which has its extension's oid.
Db &database_of(Oid extension);

// The extension that the called function belongs to.
Oid extension_of_call(FunctionCallInfo fcinfo);

// Waits until the live state is loaded, for at most tq.load_timeout. Loads it itself if no scheduler runs. Raises
// TQ009.
void ensure_loaded(Db &db);
// `load` loads the live state, or returns false if another process is doing that.
void set_loader(bool (*load)(Db &db));

// Releases the slots of this database whose extension is gone after a committed DROP. For workers.
void release_gone();

// Releases the slots of a database that was dropped. For the launcher: no session can be in that database any more.
void release_dropped(Oid database);

// Releases a slot and drops everything in it. For an extension or a database that is gone.
void release_db(Db &db, Oid database, Oid extension);

} // namespace tq
