// Roles in tables that are dumped (docs/adr/0024-roles-in-dumped-tables.md). The type tq.role holds the oid of a role,
// and prints the role's present name. A name that no role has is stored as text with oid 0. A row with such a value
// gives no rights until resolve_roles() finds the role.
// Regime: PG; may ereport. Locks: rows of the tables of resolve_roles, to the end of the transaction.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The type tq.role; InvalidOid with the SQL of 0.1.0.
Oid role_type();

// Looks up the names that are stored as text, and stores the oids of the roles that exist now. A handler that it
// changes is bound to the function of its name again, as after a restore. Returns the number of changed rows.
uint64 resolve_roles(const Db &db);

// The names that are stored as text, each with the numbers of its rows, in the caller's memory. Null if there are none.
const char *missing_roles(const Db &db);

} // namespace tq
