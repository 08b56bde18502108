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

// The same; does not read the tables if memory knows that the database is active.
Activation activation_of(const Db &db);

// Whether it is active, for a hook: the extension may be being created.
bool is_active_here(Oid extension);

// Raises TQ009 if the database is inactive. Reads the tables unless memory knows that the database is active.
void require_active(Db &db);

[[noreturn]] void refuse_inactive();

// The same after a wait of a call that began when this was the slot of the extension. Also raises TQ009 if the database
// was deactivated and activated meanwhile.
void require_still_active(const Db &db, Oid extension);

// The first use of a new extension: this transaction is about to write a job, a queue or a schedule. The scheduler,
// which starts for that, records it in its own transaction, so that no session waits for another one's transaction
// (H16). Without a scheduler this transaction records it. Raises TQ009 if the tables are written past tq.
void note_use(Db &db);

// For a worker that starts: whether it is to stay. It is if the database is active and has a slot. A first use that a
// session asks for is recorded here.
enum class Stay : uint8
{
	yes,
	no,	   // the database is not active
	later, // other sessions write to the tables
	full,  // no slot is free
};
Stay may_stay(Oid extension);

// `ask` asks the launcher to look at this database.
void set_launcher_call(void (*ask)());

// Inserts the row of this database, or deletes it. Calls of this transaction raise TQ009 until it commits.
void write_activation(Db &db, bool active);

// The numbers of segments that lack indexes or triggers, for a message; null if there are none.
const char *incomplete_segments();

} // namespace tq
