// Detects whether this database is the one where its queues have been used, or a copy of it. A new extension is dormant
// until its first use. A clone or a restored dump is dormant until tq_activate() (R8, H33). Queues work meanwhile;
// schedules and executors are held.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Compares tq.meta with this server and database and sets db.dormant. If tq.meta has no row and the queues have been
// used since the start, this is the first use: it records this server and database. The scheduler calls it, in a
// transaction.
void check_identity(Db &db);

// Whether check_identity could now have another result: the database is dormant and not known to be a copy. It also was
// used since the start, was changed from outside since the last check, or an expected restore has ended.
bool identity_to_check(const Db &db) noexcept;

enum class Identity : uint8
{
	active,
	fresh, // nothing is recorded yet
	copy,  // only other databases are recorded
};
Identity read_identity(const Db &db);

// Whether memory marks this database as dormant. Also works in a session that has never called a function of tq.
bool is_dormant_here() noexcept;

// Records this server and database, and clears db.dormant when this transaction commits.
void activate(Db &db);

// Counts a schedule or a handler as the first use of the queues. Otherwise those of a new extension would be held,
// since only a scheduler detects the use of queues.
void note_first_use(Db &db);

} // namespace tq
