// Whether a restore (pg_restore, psql with a dump) may be under way in a database. Two sources answer:
//
//   - The setting tq.restoring of the database (ALTER DATABASE ... SET), from the statement to tq_restore_end(). While
//     it is on, workers do nothing and calls that write are refused, so nothing has to be guessed.
//   - Without the setting, what the reload triggers and the janitor have seen: incomplete segments, and the time of the
//     last change from outside. Jobs that look lost may then still come.
//
// Only the row of the database in pg_db_role_setting counts. It outlives crashes, and sessions that began before the
// statement obey it too.
// Regime: PG; raises where it says so. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Whether tq.restoring is on. Reads the catalog if the setting may have changed since the last check, so it needs a
// transaction.
bool is_restoring(Db &db);

// The same without reading: also true if the setting may have changed since the last check.
bool may_be_restoring(const Db &db) noexcept;

// Raises TQ009 if tq.restoring is on in this session's database.
void refuse_while_restoring();

// A transaction that has set or reset tq.restoring of a database (InvalidOid: any database) has ended.
void restoring_changed(Oid database) noexcept;

// Whether the last change from outside, the only sign of a restore that was not announced, is less than this ago.
bool restore_seen_within(const Db &db, Micros length) noexcept;

// Whether missing jobs may still be restored: tq.restoring is on, segments are incomplete, or another session is still
// writing to them; its rows become visible only when its COPY ends. Stays true for ten minutes after the last change
// from outside, or until tq_restore_end().
bool restore_may_be_under_way(const Db &db) noexcept;

// Whether a restore may be under way in a dormant database that was written to past tq. Its tables may come in any
// order, so tq defers irreversible actions.
bool copy_is_coming(const Db &db) noexcept;

// The numbers of segments that lack indexes or triggers and are not in use, for a message; null if there are none.
const char *incomplete_segments(const Db &db);

// Ends the ten minutes: all changes from outside are older than this call.
void forget_last_change(Db &db) noexcept;

} // namespace tq
