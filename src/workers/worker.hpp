// What every per-database worker does before and around its body.
//
// Regime: PG. Locks: the extension object in AccessShareLock (conditionally, to the end of the transaction).
#pragma once
#include "pg/prelude.hpp"
#include "workers/slots.hpp"

namespace tq::workers
{

struct WorkerContext
{
	Oid database;
	Oid extension; // the pg_extension row this worker belongs to; DROP + CREATE makes another one
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

// Look tq up in the current database. Needs a transaction. False if it is not installed.
bool find_extension(ExtensionRow *row);

// Is the extension this worker was started for still there? To be called inside each transaction, before the
// first use of one of its tables. If true, the extension stays locked against DROP EXTENSION to the end of the
// transaction; if false, the worker has to leave. Never waits: a DROP EXTENSION that holds the lock or queues
// for it counts as gone (the launcher looks again when it is over).
bool extension_still_there(const WorkerContext &context);

// Somebody (DDL, tq.workers = off) has asked this worker to go: finish what is at hand and return.
bool stop_requested(const WorkerContext &context) noexcept;

// Sleep until the latch is set or the time is over, then serve interrupts (termination, cancel, barriers) and a
// configuration reload. The caller looks for work after it returns, and must not be in a transaction.
void idle(long timeout_ms);

// The configuration reload alone.
void take_settings();

} // namespace tq::workers
