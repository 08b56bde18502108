// Whether tq works in this database (R8, H6, H33). A row of tq.meta names the server, the database and the extension
// in which the queues are in use. A restored, copied or upgraded database has only rows of others. There tq does
// nothing until tq_activate(), and its tables may be written in any order.
// Regime: PG; may ereport. Locks: on tables of the schema tq, see each function.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

enum class Activation : uint8
{
	active,
	unused, // no row names it, and nothing was restored: the first use makes it active
	inactive,
};

// Reads the tables.
Activation read_activation(Oid extension);

// Whether it is inactive now; does not read the tables if memory knows that it is active.
bool is_inactive(const Db &db);

// Whether it is active, for a hook: the extension may be being created.
bool is_active_here(Oid extension);

// Raises TQ009 if the database is inactive. Reads the tables unless memory knows that the database is active.
void require_active(Db &db);

// The same after a wait of a call that began when this was the slot of the extension. Also raises TQ009 if the database
// was deactivated and activated meanwhile.
void require_still_active(const Db &db, Oid extension);

// The first use of a new extension: this transaction is about to write a job, a queue or a schedule. The scheduler
// records it in its own transaction, so that no session waits for another one's transaction (H16). Without a scheduler
// this transaction records it. Raises TQ009 if the tables are written past tq.
void note_use(Db &db);

// Records the use if the database is unused and nobody writes to its tables; false otherwise. Keeps
// ShareRowExclusiveLock on some tables until the transaction ends.
bool record_use(Db &db);

// Inserts the row of this database, or deletes it. Calls of this transaction raise TQ009 until it commits.
void write_activation(Db &db, bool active);

// The numbers of segments that lack indexes or triggers, for a message; null if there are none.
const char *incomplete_segments();

// Logs once per slot that the database is inactive.
void log_inactive(Db &db);

} // namespace tq
