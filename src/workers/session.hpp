// The session of an executor between the handlers that run in it.
// Regime: PG. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::workers
{

// The current transaction is flushed when it commits, whatever the role's synchronous_commit; no standby is waited for.
void flush_this_transaction();

// For the current transaction.
void pin_search_path(const char *search_path);

// Takes back what a handler has left in the session, so that the next starts as in a new one: its role, settings, temporary tables,
// prepared statements, held cursors, advisory locks. In no transaction.
void tidy_session(Oid role);

} // namespace tq::workers
