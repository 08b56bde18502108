#include "queues/stored_roles.hpp"

#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "utils/varlena.h"
}

namespace tq
{

namespace
{

constexpr size_t kMostName = 2 * NAMEDATALEN; // quoted, with each character doubled

// The role with this name, which is quoted as regrole prints it. A number is the oid of a dropped role, and never names
// another one; "-" is no role.
Oid role_named(const char *name)
{
	List *parts = NIL;
	if (*name == '-' || (*name >= '0' && *name <= '9') || !SplitIdentifierString(pstrdup(name), '.', &parts) ||
		list_length(parts) != 1)
		return InvalidOid;
	return get_role_oid(static_cast<const char *>(linitial(parts)), true);
}

// A value of tq.role: the oid, and after oid 0 the name.
Oid oid_in(const bytea *value) noexcept
{
	Oid role = InvalidOid;
	if (VARSIZE_ANY_EXHDR(value) >= sizeof(role))
		memcpy(&role, VARDATA_ANY(value), sizeof(role));
	return role;
}

} // namespace

Oid role_type()
{
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("role"),
						   ObjectIdGetDatum(get_namespace_oid("tq", true)));
}

uint64 resolve_roles(const Db &db)
{
	if (!OidIsValid(role_type()))
		return 0;
	// The cast of the text to tq.role looks the name up again (tq_role_in).
	constexpr const char *kStatements[] = {
		// the role may have the privilege by now
		"WITH known AS (DELETE FROM tq.acl WHERE role::oid = 0 AND role::text::tq.role::oid <> 0"
		"  RETURNING queue_id, role::text::tq.role AS role, privilege)"
		" INSERT INTO tq.acl (queue_id, role, privilege) SELECT queue_id, role, privilege FROM known"
		" ON CONFLICT DO NOTHING",
		"UPDATE tq.schedule SET owner = owner::text::tq.role WHERE owner::oid = 0 AND owner::text::tq.role::oid <> 0",
		"UPDATE tq.creator SET role = role::text::tq.role WHERE role::oid = 0 AND role::text::tq.role::oid <> 0",
		"UPDATE tq.requester SET role = role::text::tq.role WHERE role::oid = 0 AND role::text::tq.role::oid <> 0",
		"UPDATE tq.subscription SET role = role::text::tq.role WHERE role::oid = 0 AND role::text::tq.role::oid <> 0",
		// a handler with retry_at infinity still waits for tq_handle
		"UPDATE tq.handler SET role = role::text::tq.role, owner = owner::text::tq.role, function_oid = NULL,"
		" retry_at = CASE WHEN retry_at = 'infinity' THEN retry_at END"
		" WHERE (role::oid = 0 OR owner::oid = 0) AND role::text::tq.role::oid <> 0"
		" AND (owner IS NULL OR owner::text::tq.role::oid <> 0)",
	};
	uint64 changed = 0;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	for (const char *statement : kStatements)
	{
		pg::sql(statement, {}, false, 0);
		changed += SPI_processed;
	}
	pg::leave_owner(scope);
	return changed;
}

const char *missing_roles(const Db &db)
{
	if (!OidIsValid(role_type()))
		return nullptr;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT string_agg(format('%s (%s)', role, rows), ', ' ORDER BY role) AS names"
			" FROM (SELECT role, string_agg(format('%s: %s', what, n), ', ' ORDER BY what) AS rows"
			"  FROM (SELECT role::text AS role, what, count(*) AS n"
			"   FROM (SELECT role, 'grants' AS what FROM tq.acl UNION ALL SELECT owner, 'schedules' FROM tq.schedule"
			"    UNION ALL SELECT role, 'handlers' FROM tq.handler UNION ALL SELECT owner, 'functions' FROM tq.handler"
			"    UNION ALL SELECT role, 'queues' FROM tq.creator"
			"    UNION ALL SELECT role, 'follow-ups' FROM tq.requester"
			"    UNION ALL SELECT role, 'subscriptions' FROM tq.subscription) r"
			"   WHERE role::oid = 0 GROUP BY 1, 2) n"
			"  GROUP BY role) names",
			{}, true, 1);
	const char *names = pg::outside(scope, [] { return pg::spi_text(0, "names"); });
	pg::leave_owner(scope);
	return names;
}

TQ_FUNCTION(tq_role_in)
{
	const char *name = PG_GETARG_CSTRING(0);
	const Oid role = role_named(name);
	const size_t length = OidIsValid(role) ? 0 : strlen(name);
	if (length > kMostName)
		ereport(ERROR, (errcode(ERRCODE_NAME_TOO_LONG), errmsg("the name of a role is too long")));
	auto *value = static_cast<bytea *>(palloc(VARHDRSZ + sizeof(role) + length));
	SET_VARSIZE(value, VARHDRSZ + sizeof(role) + length);
	memcpy(VARDATA(value), &role, sizeof(role));
	memcpy(VARDATA(value) + sizeof(role), name, length);
	PG_RETURN_BYTEA_P(value);
}

TQ_FUNCTION(tq_role_out)
{
	const bytea *value = PG_GETARG_BYTEA_PP(0);
	const Oid role = oid_in(value);
	if (OidIsValid(role))
	{
		const char *name = GetUserNameFromId(role, true);
		PG_RETURN_CSTRING(name != nullptr ? pstrdup(quote_identifier(name)) : psprintf("%u", role));
	}
	const Size length = VARSIZE_ANY_EXHDR(value), n = length > sizeof(role) ? length - sizeof(role) : 0;
	PG_RETURN_CSTRING(pnstrdup(VARDATA_ANY(value) + (length - n), n));
}

TQ_FUNCTION(tq_role_oid) { PG_RETURN_OID(oid_in(PG_GETARG_BYTEA_PP(0))); }

} // namespace tq
