#include "pg/owner.hpp"

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

} // namespace

OwnerScope enter_owner(Oid extension)
{
	OwnerScope scope{};
	const Oid owner = extension_owner(extension);
	GetUserIdAndSecContext(&scope.user, &scope.security);
	scope.guc_level = NewGUCNestLevel();
	SetUserIdAndSecContext(owner, scope.security | SECURITY_LOCAL_USERID_CHANGE);
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

int sql(const char *query, int nargs, const Oid *types, const Datum *values, const char *nulls, bool read_only, long limit)
{
	const int rc = SPI_execute_with_args(query, nargs, const_cast<Oid *>(types), const_cast<Datum *>(values), nulls,
										 read_only, limit);
	if (rc < 0)
		elog(ERROR, "SPI failed on \"%s\": %s", query, SPI_result_code_string(rc));
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
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	const int rc = SPI_execute_snapshot(s.plan, values, nulls, snapshot, InvalidSnapshot, false, true, limit);
	UnregisterSnapshot(snapshot);
	if (rc < 0)
		elog(ERROR, "SPI failed on \"%s\": %s", s.text, SPI_result_code_string(rc));
	return SPI_processed;
}

} // namespace tq::pg
