// Running SPI on tq's own tables as the extension's owner, whoever called: pinned search_path, no role to leak.
// Regime: PG. An error leaves the scope by transaction abort, which restores user and settings.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

struct OwnerScope
{
	Oid user;
	int security;
	int guc_level;
	bool snapshot;
};

// Becomes the extension's owner, connects SPI, pushes a latest snapshot (so that a caller's old snapshot hides nothing).
OwnerScope enter_owner(Oid extension);
void leave_owner(const OwnerScope &scope);

// In workers, who are superusers: to be a table's owner while its indexes are looked at or written, whose expressions and predicates may be
// his. Ordinary sessions stay who they are, as with every INSERT.
struct TableOwner
{
	Oid user;
	int security;
};
TableOwner enter_table_owner(Relation rel);
void leave_table_owner(const TableOwner &scope);

// One statement with up to 8 arguments, with a snapshot of now, whatever the transaction's is; `nulls` as SPI wants it or null. Raises what
// SPI raises.
int sql(const char *query, int nargs, const Oid *types, const Datum *values, const char *nulls, bool read_only, long limit);

// The same inside such a scope, as the bootstrap superuser: for the server's own views, which the extension's owner, who need be none, may
// not read. Never for anything of which others could have a part.
int server_sql(const char *query, long limit);

// A statement whose plan the session keeps; it is made anew when a table is another one.
struct Statement
{
	const char *text;
	int nargs;
	Oid types[6];
	SPIPlanPtr plan = nullptr;
};

// Runs it inside such a scope, with a snapshot of now, whatever the transaction's is; returns the rows processed.
uint64 run(Statement &statement, Datum *values, const char *nulls, long limit = 0);

} // namespace tq::pg
