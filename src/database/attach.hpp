// Maps a function call to the database's slot in shared memory: creates it, waits until it is loaded, releases it.
// There are tq.max_databases slots. An active database keeps its slot. Until it is active, the slot is lent: it serves
// calls of a database that is not used yet. A transaction that calls tq there holds it; after that, a database that
// needs a slot takes it. See README.md.
// Regime: PG; everything may ereport unless noexcept. Locks: registry and segment map, one at a time; queues, one at a
// time, also under the registry; a heavyweight lock of the slot while it is lent, to the end of the transaction.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The database slot of the extension that the called function belongs to. Raises TQ006 (not preloaded), TQ007 (versions
// differ), 25006 (standby), TQ009 (inactive), 53400 (no slot is free). Reads the catalog into the segment map once, so
// that ids can be drawn.
Db &database(FunctionCallInfo fcinfo);

// The same; waits until the live state is loaded, as ensure_loaded().
Db &loaded_database(FunctionCallInfo fcinfo);

// As database(), for an inactive database, too: no ids can be drawn, and nothing is loaded.
Db &database_slot(FunctionCallInfo fcinfo);
Db &database_slot(Oid extension);

// The same; null if no slot is free.
Db *find_or_make_slot(Oid extension);

// Null if there is none.
Db *find_db(Oid extension);

// For functions that only read the tables: the slot if there is one, otherwise a stand-in that has the extension and
// nothing else. So no slot is taken.
const Db &database_facts(FunctionCallInfo fcinfo);

// How many databases keep a slot.
int slots_kept() noexcept;
inline constexpr char kNoSlotHint[] =
	"Raise tq.max_databases and restart the server, or call tq_deactivate() in an active database.";

// Finds the slot if there is one, for functions that need only the clock of the database.
void find_database(FunctionCallInfo fcinfo);

// As database(), for a worker, which knows its extension's oid.
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
