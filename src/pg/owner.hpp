// Runs SPI on tq's tables as the extension's owner, for any caller, with a fixed search_path.
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
	MemoryContext outside; // current before and after the scope
};

// Switches to the extension's owner, connects SPI, and pushes a latest snapshot, because the caller's may be old.
OwnerScope enter_owner(Oid extension);
// The same as any role, such as the owner of a table.
OwnerScope enter_role(Oid role);
void leave_owner(const OwnerScope &scope);

// Calls f in the memory context around such a scope, for a result that stays after it.
template <class F> auto outside(const OwnerScope &scope, F &&f)
{
	const MemoryContext inner = MemoryContextSwitchTo(scope.outside);
	auto result = f();
	MemoryContextSwitchTo(inner);
	return result;
}

// Makes a worker, which is a superuser, act as a table's owner while it reads or writes the table's indexes. Their
// expressions and predicates may be the owner's code. Ordinary sessions keep their role, as in every INSERT.
struct TableOwner
{
	Oid user;
	int security;
};
TableOwner enter_table_owner(Relation rel);
void leave_table_owner(const TableOwner &scope);

// The arguments of a statement. `nulls` is as in SPI, or null.
struct Args
{
	const Oid *types = nullptr;
	const Datum *values = nullptr;
	const char *nulls = nullptr;
	int n = 0;

	Args() = default;
	Args(const Oid *t, const Datum *v, const char *null, int count) : types(t), values(v), nulls(null), n(count) {}
	template <int N>
	Args(const Oid (&t)[N], const Datum (&v)[N], const char *null = nullptr) : Args(t, v, null, N)
	{}
};

// Runs a plan with a latest snapshot, regardless of the transaction's. Returns SPI's code. tq writes through SPI only
// by this function, which marks the statement as tq's own (fired_by_own_statement).
int run_plan(SPIPlanPtr plan, Datum *values, const char *nulls, long limit);

// For tq.reload_trigger(), which refuses rows that tq does not write: true if a statement of tq fired it. A statement
// inside another trigger is not tq's own.
bool fired_by_own_statement();

// Runs one statement: one that writes by run_plan(), a read_only one with the active snapshot, such as that of
// enter_owner(). Returns SPI's code; raises SPI's errors.
int sql(const char *query, const Args &args, bool read_only, long limit);

// The same in a scope of its own, for a statement that writes. Returns the number of rows processed.
uint64 sql_as_owner(Oid extension, const char *query, const Args &args, long limit = 0);

// Runs a query on the server's own views, in such a scope, as the bootstrap superuser: the extension's owner may lack
// the right to read them. Never pass a query that others can influence.
int server_sql(const char *query, long limit);

// A statement with a plan that the session keeps; replanned when a table is replaced.
struct Statement
{
	const char *text;
	int nargs;
	Oid types[8];
	SPIPlanPtr plan = nullptr;
};

// Runs the statement in such a scope with a latest snapshot; returns the number of rows processed.
uint64 run(Statement &statement, Datum *values, const char *nulls, long limit = 0);

} // namespace tq::pg
