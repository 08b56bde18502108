// What the functions that administer a queue share. They change the row at once, and the live state at commit.
// Regime: PG; may ereport. Locks: a heavyweight lock on the queue's name to the end of the transaction, so that commits
// change the slot in the order in which they changed the row. Enqueues and claims do not take it.
#pragma once

#include "queues/rights.hpp"
#include "pg/owner.hpp"

namespace tq
{

// Finds a queue on which the user has the right, and locks its name. Looks again under the lock, because another
// transaction may have created or dropped the queue. Raises TQ002 if there is none, or if this transaction has dropped
// it.
uint16_t queue_to_change(Db &db, const char *name, uint8 right = kManage, const char *argument = "name");

// Runs one UPDATE of the queue's row as the owner; $1 is the name. False if there is no such row. Copies the RETURNING
// column "settings", a jsonb, to the caller's memory context.
bool update_row(const Db &db, const char *sql, const pg::Args &args, Jsonb **returned = nullptr);

} // namespace tq
