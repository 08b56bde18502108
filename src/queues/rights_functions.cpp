// tq_grant, tq_revoke, the function of tq_grants, and the trigger that reports changes to tq.acl to every session.
// Regime: PG. Locks: RowExclusiveLock on tq.acl to the end of the transaction.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "shmem/grant_changes.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

struct Grant
{
	int32 queue_id;
	Oid role;
	Datum privileges; // a text[]
	const char *names; // of the privileges
};

// The queue_id that tq.acl has for a queue. Raises unless the caller may manage the queue.
int32 queue_to_share(Db &db, const char *name)
{
	if (strcmp(name, "*") == 0)
	{
		require_right_everywhere(db, "queue \"*\"", kManage);
		return kAllQueues;
	}
	return number_to_manage(db, name);
}

// Reads the privileges of a call: the argument privilege, and the later ones that are not null.
void parse_privileges(FunctionCallInfo fcinfo, const char *queue, Grant *g)
{
	StringInfoData names;
	initStringInfo(&names);
	Datum list[lengthof(kPrivileges)];
	int n = 0;
	for (int i = 2; i < PG_NARGS() && n < static_cast<int>(lengthof(list)); ++i)
	{
		if (i > 2 && !given(fcinfo, i))
			continue;
		const char *argument = i == 2 ? "privilege" : psprintf("privilege%d", i - 1);
		const char *privilege = text_required(fcinfo, i, argument, kWordLimit);
		if (parse_right(privilege) == kCreate && strcmp(queue, "*") != 0)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("privilege \"create\" can only be granted or revoked on all queues"),
							errhint("Give queue as '*'.")));
		list[n++] = CStringGetTextDatum(privilege);
		appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", privilege);
	}
	g->privileges = PointerGetDatum(construct_array(list, n, TEXTOID, -1, false, TYPALIGN_INT));
	g->names = names.data;
}

// queue, role, privilege, privilege2, ...
Grant parse(FunctionCallInfo fcinfo, Db **db)
{
	const char *queue = text_required(fcinfo, 0, "queue");
	require(fcinfo, 1, "role");
	Grant g{};
	g.role = PG_GETARG_OID(1);
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(g.role)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("role %u does not exist", g.role),
				 errhint("Grant to a role, and make the other roles its members.")));
	parse_privileges(fcinfo, queue, &g);
	*db = &database(fcinfo);
	g.queue_id = queue_to_share(**db, queue);
	return g;
}

void write(const Db &db, const char *action, const Grant &g, const char *sql)
{
	const Oid types[] = {INT4OID, OIDOID, TEXTARRAYOID};
	const Datum values[] = {Int32GetDatum(g.queue_id), ObjectIdGetDatum(g.role), g.privileges};
	lock_queue_row(db, g.queue_id);
	begin_grants_of(g.queue_id);
	pg::sql_as_owner(db.extension, sql, {types, values});
	end_grants_of();
	record_action(db, action, g.queue_id, 0,
				  Facts().add("role", GetUserNameFromId(g.role, false)).add("privileges", g.names));
}

} // namespace

// queue, role, privilege, privilege2, ...
TQ_FUNCTION(tq_grant)
{
	require_writable("tq_grant()");
	Db *db = nullptr;
	const Grant g = parse(fcinfo, &db);
	write(*db, "grant", g,
		  "INSERT INTO tq.acl (queue_id, role, privilege) SELECT $1, $2::regrole, p FROM unnest($3) p ON CONFLICT DO "
		  "NOTHING");
	PG_RETURN_VOID();
}

// queue, role, privilege, privilege2, ...
TQ_FUNCTION(tq_revoke)
{
	require_writable("tq_revoke()");
	Db *db = nullptr;
	const Grant g = parse(fcinfo, &db);
	write(*db, "revoke", g, "DELETE FROM tq.acl WHERE queue_id = $1 AND role = $2::regrole AND privilege = ANY ($3)");
	PG_RETURN_VOID();
}

// tq.may_list(queue_id, role): whether the caller may see this row of tq_grants: rows of the caller's own roles, and
// all rows of a queue that the caller may manage or inspect.
TQ_FUNCTION(tq_may_list)
{
	require(fcinfo, 0, "queue_id");
	require(fcinfo, 1, "role");
	const Db &db = database_facts(fcinfo); // views show rows of inactive databases, too
	PG_RETURN_BOOL(rights(db).may(PG_GETARG_INT32(0), kManage | kInspect) ||
				   has_privs_of_role(GetUserId(), PG_GETARG_OID(1)));
}

// tq.may_list_groups(queue_id): whether the caller may see the paused and limited groups of tq_queues.
TQ_FUNCTION(tq_may_list_groups)
{
	require(fcinfo, 0, "queue_id");
	PG_RETURN_BOOL(rights(database_facts(fcinfo)).may(PG_GETARG_INT32(0), kOperate | kInspect));
}

// tq.rights_on(queue_id): the privileges of the caller on a queue, or with 0 on all queues, from grants to its roles
// and from owning the extension.
TQ_FUNCTION(tq_rights_on)
{
	require(fcinfo, 0, "queue_id");
	const int32 queue_id = PG_GETARG_INT32(0);
	const Rights &mine = rights(database_facts(fcinfo));
	Datum list[lengthof(kPrivileges)];
	int n = 0;
	for (const Privilege &p : kPrivileges)
	{
		uint8 wanted = p.rights;
		if ((wanted & kManage) != 0)
			wanted = kManage;
		if (wanted == (kMetrics | kInspect)) // monitor: both are listed
			continue;
		if (mine.may(queue_id, wanted))
			list[n++] = CStringGetTextDatum(p.name);
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(list, n, TEXTOID, -1, false, TYPALIGN_INT));
}

// Trigger on tq.acl, for each changed row. Notifies other sessions at commit, and this session at its next command, and
// again if it rolls back.
TQ_FUNCTION(tq_acl_changed)
{
	note_grants();
	CacheInvalidateRelcache(pg::trigger_call(fcinfo, "tq.acl_changed", TRIGGER_EVENT_AFTER).tg_relation);
	PG_RETURN_POINTER(nullptr);
}

} // namespace tq
