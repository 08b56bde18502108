#include "pg/owner.hpp"

extern "C"
{
#include "catalog/pg_authid.h"
#include "postmaster/bgworker.h"
}

#include "pg/extension.hpp"

namespace tq::pg
{

namespace
{

Oid extension_owner(Oid extension)
{
	ExtensionFacts facts;
	if (!extension_facts(extension, &facts))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"tq\" does not exist")));
	return facts.owner;
}

// With a snapshot of now, whatever the transaction's is.
int execute_now(SPIPlanPtr plan, Datum *values, const char *nulls, long limit)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	const int rc = SPI_execute_snapshot(plan, values, nulls, snapshot, InvalidSnapshot, false, true, limit);
	UnregisterSnapshot(snapshot);
	return rc;
}

} // namespace

OwnerScope enter_owner(Oid extension)
{
	OwnerScope scope{};
	const Oid owner = extension_owner(extension);
	GetUserIdAndSecContext(&scope.user, &scope.security);
	scope.guc_level = NewGUCNestLevel();
	// in a worker nothing of the owner's may be put off to a time when it is a superuser again
	SetUserIdAndSecContext(owner, scope.security | SECURITY_LOCAL_USERID_CHANGE |
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

int sql(const char *query, int nargs, const Oid *types, const Datum *values, const char *nulls, bool read_only, long limit)
{
	int rc = 0;
	if (read_only)
		rc = SPI_execute_with_args(query, nargs, const_cast<Oid *>(types), const_cast<Datum *>(values), nulls, true, limit);
	else
	{
		// left to itself, SPI writes with the snapshot of the transaction, which in REPEATABLE READ may be an old one
		SPIPlanPtr plan = SPI_prepare(query, nargs, const_cast<Oid *>(types));
		if (plan == nullptr)
			elog(ERROR, "SPI_prepare failed on \"%s\": %s", query, SPI_result_code_string(SPI_result));
		rc = execute_now(plan, const_cast<Datum *>(values), nulls, limit);
		SPI_freeplan(plan);
	}
	if (rc < 0)
		elog(ERROR, "SPI failed on \"%s\": %s", query, SPI_result_code_string(rc));
	return rc;
}

int server_sql(const char *query, long limit)
{
	Oid user;
	int security;
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, security | SECURITY_RESTRICTED_OPERATION);
	const int rc = sql(query, 0, nullptr, nullptr, nullptr, true, limit);
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
	const int rc = execute_now(s.plan, values, nulls, limit);
	if (rc < 0)
		elog(ERROR, "SPI failed on \"%s\": %s", s.text, SPI_result_code_string(rc));
	return SPI_processed;
}

} // namespace tq::pg
