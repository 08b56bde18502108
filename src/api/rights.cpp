// tq_grant, tq_revoke, what is behind tq_grants, and the trigger that tells every session of changes to tq.acl.
// Regime: PG. Locks: RowExclusiveLock on tq.acl to the end of the transaction.
#include "api/args.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"

namespace tq::api
{

namespace
{

struct Grant
{
	int32 queue_id;
	Oid role;
	const char *privilege;
};

// The number under which a queue has its rights; the caller may manage it.
int32 queue_to_share(live::Db &db, const char *name)
{
	if (strcmp(name, "*") == 0)
	{
		live::require_right_everywhere(db, "queue \"*\"", live::kManage);
		return live::kAllQueues;
	}
	return live::number_to_manage(db, name);
}

// queue, role, privilege
Grant parse(FunctionCallInfo fcinfo, live::Db **db)
{
	const char *queue = text_required(fcinfo, 0, "queue");
	require(fcinfo, 1, "role");
	Grant g{};
	g.role = PG_GETARG_OID(1);
	g.privilege = text_required(fcinfo, 2, "privilege");
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(g.role)))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("role %u does not exist", g.role),
						errhint("Rights are given to roles; make everybody a member of one to give them to everybody.")));
	const uint8 right = live::parse_right(g.privilege);
	if (right == live::kCreate && strcmp(queue, "*") != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the privilege create does not belong to a single queue"),
						errhint("Give queue as '*'.")));
	*db = &live::database(fcinfo);
	g.queue_id = queue_to_share(**db, queue);
	return g;
}

void write(const live::Db &db, const Grant &g, const char *sql)
{
	const Oid types[] = {INT4OID, OIDOID, TEXTOID};
	const Datum values[] = {Int32GetDatum(g.queue_id), ObjectIdGetDatum(g.role), CStringGetTextDatum(g.privilege)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(sql, 3, types, values, nullptr, false, 0);
	pg::leave_owner(scope);
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// queue, role, privilege
TQ_FUNCTION(tq_grant)
{
	require_writable("tq_grant()");
	live::Db *db = nullptr;
	const Grant g = parse(fcinfo, &db);
	write(*db, g,
		  "INSERT INTO tq.acl (queue_id, role, privilege) VALUES ($1, $2::regrole, $3) ON CONFLICT DO NOTHING");
	PG_RETURN_VOID();
}

// queue, role, privilege
TQ_FUNCTION(tq_revoke)
{
	require_writable("tq_revoke()");
	live::Db *db = nullptr;
	const Grant g = parse(fcinfo, &db);
	write(*db, g, "DELETE FROM tq.acl WHERE queue_id = $1 AND role = $2::regrole AND privilege = $3");
	PG_RETURN_VOID();
}

// tq.may_list(queue_id, role): may the caller see this row of tq_grants? Those of one's own roles, and all of a queue that one may look at.
TQ_FUNCTION(tq_may_list)
{
	require(fcinfo, 0, "queue_id");
	require(fcinfo, 1, "role");
	const live::Db &db = live::database(fcinfo);
	PG_RETURN_BOOL(live::rights(db).may(PG_GETARG_INT32(0), live::kManage | live::kMonitor) ||
				   has_privs_of_role(GetUserId(), PG_GETARG_OID(1)));
}

// Trigger on tq.acl, for each row that changes however it changes. Every session hears of it when the transaction commits, this one with its
// next command and once more if it rolls back.
TQ_FUNCTION(tq_acl_changed)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("function \"%s\" was not called by a trigger", "tq.acl_changed")));
	CacheInvalidateRelcache(reinterpret_cast<TriggerData *>(fcinfo->context)->tg_relation);
	PG_RETURN_POINTER(nullptr); // ignored: always an AFTER trigger
}
