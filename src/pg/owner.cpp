#include "pg/owner.hpp"

extern "C"
{
#include "catalog/pg_authid.h"
}

#include "pg/extension.hpp"

namespace tq::pg
{

namespace
{

// The depth of triggers around the running statement of tq; -1: none runs.
int own_depth = -1;

int trigger_depth() { return DatumGetInt32(DirectFunctionCall1(pg_trigger_depth, PointerGetDatum(nullptr))); }

Oid extension_owner(Oid extension)
{
	ExtensionFacts facts;
	if (!extension_facts(extension, &facts))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"tq\" does not exist")));
	return facts.owner;
}

} // namespace

OwnerScope enter_owner(Oid extension) { return enter_role(extension_owner(extension)); }

OwnerScope enter_role(Oid role)
{
	OwnerScope scope{};
	GetUserIdAndSecContext(&scope.user, &scope.security);
	scope.guc_level = NewGUCNestLevel();
	scope.outside = CurrentMemoryContext;
	// Outside the scope a worker may be a superuser. The restriction refuses deferred triggers and held cursors of the
	// owner, whose code would run there.
	SetUserIdAndSecContext(role, scope.security | SECURITY_LOCAL_USERID_CHANGE |
									  (MyBgworkerEntry != nullptr ? SECURITY_RESTRICTED_OPERATION : 0));
	static_cast<void>(set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
										GUC_ACTION_SAVE, true, 0, false));
	static_cast<void>(set_config_option("row_security", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
										false));
	PushActiveSnapshot(GetLatestSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	return scope;
}

void leave_owner(const OwnerScope &scope)
{
	SPI_finish();
	PopActiveSnapshot();
	AtEOXact_GUC(true, scope.guc_level);
	SetUserIdAndSecContext(scope.user, scope.security);
}

TableOwner enter_table_owner(Relation rel)
{
	TableOwner scope{InvalidOid, 0};
	if (likely(MyBgworkerEntry == nullptr))
		return scope;
	GetUserIdAndSecContext(&scope.user, &scope.security);
	SetUserIdAndSecContext(rel->rd_rel->relowner, scope.security | SECURITY_RESTRICTED_OPERATION);
	return scope;
}

void leave_table_owner(const TableOwner &scope)
{
	if (unlikely(OidIsValid(scope.user)))
		SetUserIdAndSecContext(scope.user, scope.security);
}

int run_plan(SPIPlanPtr plan, Datum *values, const char *nulls, long limit)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	const int outside = own_depth;
	int rc = 0;
	own_depth = trigger_depth();
	PG_TRY();
	{
		rc = SPI_execute_snapshot(plan, values, nulls, snapshot, InvalidSnapshot, false, true, limit);
	}
	PG_FINALLY();
	{
		own_depth = outside;
	}
	PG_END_TRY();
	UnregisterSnapshot(snapshot);
	return rc;
}

bool fired_by_own_statement() { return own_depth >= 0 && trigger_depth() == own_depth + 1; }

int sql(const char *query, const Args &args, bool read_only, long limit)
{
	auto *types = const_cast<Oid *>(args.types);
	auto *values = const_cast<Datum *>(args.values);
	int rc = 0;
	if (read_only)
		rc = SPI_execute_with_args(query, args.n, types, values, args.nulls, true, limit);
	else
	{
		// by default SPI writes with the transaction's snapshot, which is old in REPEATABLE READ
		SPIPlanPtr plan = SPI_prepare(query, args.n, types);
		if (plan == nullptr)
			elog(ERROR, "SPI_prepare failed on \"%s\": %s", query, SPI_result_code_string(SPI_result));
		rc = run_plan(plan, values, args.nulls, limit);
		SPI_freeplan(plan);
	}
	if (rc < 0)
		elog(ERROR, "SPI failed on \"%s\": %s", query, SPI_result_code_string(rc));
	return rc;
}

uint64 sql_as_owner(Oid extension, const char *query, const Args &args, long limit)
{
	const OwnerScope scope = enter_owner(extension);
	static_cast<void>(sql(query, args, false, limit));
	const uint64 rows = SPI_processed;
	leave_owner(scope);
	return rows;
}

int server_sql(const char *query, long limit)
{
	Oid user;
	int security;
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, security | SECURITY_RESTRICTED_OPERATION);
	const int rc = sql(query, {}, true, limit);
	SetUserIdAndSecContext(user, security);
	return rc;
}

uint64 run(Statement &s, Datum *values, const char *nulls, long limit)
{
	if (s.plan == nullptr)
	{
		SPIPlanPtr plan = SPI_prepare(s.text, s.nargs, s.types);
		if (plan == nullptr || SPI_keepplan(plan) != 0)
			elog(ERROR, "SPI_prepare failed on \"%s\": %s", s.text, SPI_result_code_string(SPI_result));
		s.plan = plan;
	}
	const int rc = run_plan(s.plan, values, nulls, limit);
	if (rc < 0)
		elog(ERROR, "SPI failed on \"%s\": %s", s.text, SPI_result_code_string(rc));
	const uint64 n = SPI_processed;
	// a rule removed the statement: such a plan depends on no table, and would outlive the rule
	if (rc == SPI_OK_REWRITTEN)
	{
		SPI_freeplan(s.plan);
		s.plan = nullptr;
	}
	return n;
}

} // namespace tq::pg
