// The session of an executor between the handlers that run in it.
// Regime: PG. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq
{

// Makes the commit of the current transaction flush, whatever the role's synchronous_commit. It waits for no standby.
void flush_this_transaction();

// Sets the search_path for the current transaction.
void set_search_path(const char *search_path);

// Resets the session after a handler, so that the next handler starts as in a new one: its role, settings, temporary
// tables, prepared statements, held cursors, advisory locks. Must not be called in a transaction.
void tidy_session(Oid role);

} // namespace tq
