// Is this database where its queues have been used, or a copy of it? A new extension is dormant until its first use; a clone or a restored
// dump until tq_activate() (R8, H33). Queues work meanwhile; schedules and executors are held.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// Compares tq.meta with this server and database and sets db.dormant. Where nothing was ever recorded and the queues have been used
// since the start, it records this place: that is the first use. For the scheduler, in a transaction.
void check_identity(Db &db);

// Whether check_identity could now find something else: dormant, not known to be a copy, and used since the start.
bool identity_to_check(const Db &db) noexcept;

enum class Identity : uint8
{
	active,
	fresh, // nothing recorded yet
	copy,  // only other places recorded
};
Identity read_identity(const Db &db);

// Records this place; the caller notes the change for its commit.
void record_identity(const Db &db);

} // namespace tq::live
