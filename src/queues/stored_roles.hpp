// Roles in tables that are dumped (docs/adr/0024-roles-in-dumped-tables.md). The type tq.role holds the oid of a role,
// and prints its present name. If no role has the name that it reads, it holds the name, and its oid is 0: no rights
// come from such a row until resolve_roles().
// Regime: PG; may ereport. Locks: rows of the tables of resolve_roles, to the end of the transaction.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The type tq.role; InvalidOid with the SQL of 0.1.0.
Oid role_type();

// Looks up the names that were no role's when their rows were read. The functions of handlers that this concerns are
// unbound. Returns the number of changed rows.
uint64 resolve_roles(const Db &db);

// The names that are no role's, each with the numbers of its rows, in the caller's memory. Null if there are none.
const char *missing_roles(const Db &db);

} // namespace tq
