// The part that all per-database workers share.
//
// Regime: PG. Locks: the extension object in AccessShareLock (conditionally, to the end of the transaction).
#pragma once
#include "pg/prelude.hpp"

#include "processes/slots.hpp"

namespace tq
{

struct WorkerContext
{
	Oid database;
	Oid extension; // oid of its pg_extension row; DROP + CREATE makes another one
	Oid extension_schema;
	Kind kind;
	Oid role; // of an executor
};

// The row of pg_extension, as the current catalog snapshot shows it.
struct ExtensionRow
{
	Oid oid;
	Oid schema;
	Oid owner;
};

// Looks up tq in the current database. Needs a transaction. False if it is not installed.
bool find_extension(ExtensionRow *row);

// Is the extension for which this worker was started still there? Call it in each transaction, before the first use of
// one of its tables. True: the extension stays locked against DROP EXTENSION to the end of the transaction. False: the
// worker must exit. It never waits: a DROP EXTENSION that holds the lock or queues for it counts as gone, and the
// launcher checks again afterwards.
bool extension_still_there(const WorkerContext &context);

// Sleeps until the latch is set or the time is over, then serves interrupts (termination, cancel, barriers) and a
// configuration reload. The caller looks for work afterwards, and must not be in a transaction.
void idle(long timeout_ms);

// Serves the configuration reload alone.
void take_settings();

} // namespace tq
