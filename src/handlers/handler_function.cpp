#include "handlers/handler_function.hpp"

#include "queues/stored_roles.hpp"
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

// One row of tq.handler.
struct Row
{
	int32 queue_id;
	const char *kind;
	HandlerFunction f;
};

Oid type_in(Oid schema)
{
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("tq_job"), ObjectIdGetDatum(schema));
}

// Splits a name that tq_handle wrote into schema and function. False for other text, which was written by hand.
bool split_name(const char *function, const char **schema, const char **name)
{
	List *names = NIL;
	if (!SplitIdentifierString(pstrdup(function), '.', &names) || list_length(names) != 2)
		return false;
	*schema = static_cast<const char *>(linitial(names));
	*name = static_cast<const char *>(lsecond(names));
	return true;
}

// The function of that name with one argument tq_job; InvalidOid if there is none. Checks no rights and uses no
// search_path.
Oid function_named(const char *function, Oid job_type, Oid *schema)
{
	const char *schema_name = nullptr;
	const char *name = nullptr;
	*schema = InvalidOid;
	if (!split_name(function, &schema_name, &name))
		return InvalidOid;
	*schema = get_namespace_oid(schema_name, true);
	if (!OidIsValid(*schema))
		return InvalidOid;
	const oidvector *arguments = buildoidvector(&job_type, 1);
	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name), PointerGetDatum(arguments),
						   ObjectIdGetDatum(*schema));
}

const char *role_name(Oid role)
{
	const char *name = GetUserNameFromId(role, true);
	return name != nullptr ? psprintf("role \"%s\"", name) : psprintf("role %u, which does not exist", role);
}

// Why the registered function cannot be called now; null if it can. Such a reason can go away.
const char *not_now(const HandlerFunction &f, const FormData_pg_proc &proc, Oid schema, Oid job_type)
{
	if (!has_privs_of_role(proc.proowner, f.role))
		return psprintf("function %s(tq_job) belongs to %s, which does not have the rights of %s", f.function,
						role_name(proc.proowner), role_name(f.role));
	if (const char *why = unfit(proc, job_type))
		return psprintf("function %s(tq_job) cannot handle jobs: %s", f.function, why);
	if (!pg::may_use_schema(schema, f.role))
		return psprintf("permission denied for schema %s", get_namespace_name(schema));
	if (!pg::may_execute(proc.oid, f.role))
		return psprintf("permission denied for function %s", NameStr(proc.proname));
	return nullptr;
}

Judgment held(const char *why)
{
	return Judgment{FunctionState::held, psprintf("%s; call tq_handle again", why), InvalidOid, false};
}
Judgment paused(const char *why) { return Judgment{FunctionState::paused, why, InvalidOid, false}; }

// The scope of the owner, as a restricted operation: a user's trigger on tq.handler cannot be deferred until the
// session has its own rights again. The session may be that of a superuser that only drops a function.
struct Restricted
{
	Oid user;
	int security;
	pg::OwnerScope scope;
};

Restricted enter_restricted(Oid extension)
{
	Restricted r{};
	GetUserIdAndSecContext(&r.user, &r.security);
	SetUserIdAndSecContext(r.user, r.security | SECURITY_RESTRICTED_OPERATION);
	r.scope = pg::enter_owner(extension);
	return r;
}

void leave_restricted(const Restricted &r)
{
	pg::leave_owner(r.scope);
	SetUserIdAndSecContext(r.user, r.security);
}

// The handlers that are not held and meet a condition. In it $1 is this server and $2 this database.
pg::Array<Row> read_rows(const char *condition)
{
	const Oid types[] = {INT8OID, OIDOID};
	const Datum values[] = {Int64GetDatum(static_cast<int64>(GetSystemIdentifier())), ObjectIdGetDatum(MyDatabaseId)};
	pg::sql(
		psprintf("SELECT queue_id, kind, function, " TQ_HANDLER_ROLE ", owner::oid, function_oid FROM tq.handler"
				 " WHERE retry_at IS DISTINCT FROM 'infinity' AND num_nulls(queue_id, kind, function, role) = 0 AND %s",
				 condition),
		{types, values}, true, 0);
	pg::Array<Row> rows;
	for (uint64 at = 0; at < SPI_processed; ++at)
	{
		bool isnull = false;
		Row &r = rows.append(CurrentMemoryContext, {});
		r.queue_id = pg::spi_int4(at, "queue_id");
		r.kind = pg::spi_text(at, "kind");
		r.f.function = pg::spi_text(at, "function");
		r.f.role = DatumGetObjectId(pg::spi_required(at, "role", OIDOID));
		const Datum owner = pg::spi_value(at, "owner", OIDOID, &isnull);
		r.f.owner = isnull ? InvalidOid : DatumGetObjectId(owner);
		const Datum oid = pg::spi_value(at, "function_oid", OIDOID, &isnull);
		r.f.function_oid = isnull ? InvalidOid : DatumGetObjectId(oid);
		r.f.has_identity = true;
	}
	return rows;
}

// Call it within the scope of the owner.
void write_hold(const Row &r, const char *why)
{
	if (!lock_handler(r.queue_id, r.kind))
		return;
	const Oid types[] = {INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID, OIDOID, OIDOID, OIDOID};
	const Datum values[] = {Int32GetDatum(r.queue_id),		   CStringGetTextDatum(r.kind),
							CStringGetTextDatum(why),		   TimestampTzGetDatum(wall_now()),
							CStringGetTextDatum(r.f.function), ObjectIdGetDatum(r.f.role),
							ObjectIdGetDatum(r.f.owner),	   ObjectIdGetDatum(r.f.function_oid)};
	// a handler that was registered again meanwhile has another identity, or the same problem
	pg::sql("UPDATE tq.handler SET problem = $3, problem_at = $4, retry_at = 'infinity'"
			" WHERE queue_id = $1 AND kind = $2 AND function = $5 AND role::oid = $6"
			" AND coalesce(owner::oid, 0) = $7 AND coalesce(function_oid, 0) = $8",
			{types, values}, false, 0);
}

// Call it within the scope of the owner.
void bind(const Row &r, Oid owner, Oid function)
{
	const Oid types[] = {INT4OID, TEXTOID, OIDOID, OIDOID};
	const Datum values[] = {Int32GetDatum(r.queue_id), CStringGetTextDatum(r.kind), ObjectIdGetDatum(owner),
							ObjectIdGetDatum(function)};
	pg::sql("UPDATE tq.handler SET owner = $3::regrole, function_oid = $4 WHERE queue_id = $1 AND kind = $2",
			{types, values}, false, 0);
}

} // namespace

const char *unfit(const FormData_pg_proc &proc, Oid job_type) noexcept
{
	if (proc.prokind != PROKIND_FUNCTION)
		return "It must be a function, not a procedure, an aggregate or a window function.";
	if (proc.proretset)
		return "It must not return a set.";
	if (proc.pronargs != 1 || proc.proargtypes.values[0] != job_type)
		return "It must take one argument of type tq_job.";
	if (proc.prorettype != JSONBOID && proc.prorettype != VOIDOID)
		return "It must return jsonb or void.";
	return nullptr;
}

Oid job_type_in(Oid schema)
{
	const Oid type = type_in(schema);
	if (!OidIsValid(type))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("type \"tq_job\" does not exist")));
	return type;
}

Judgment judge(const HandlerFunction &f, Oid job_type)
{
	if (!OidIsValid(f.role))
		return paused(kUnknownRole);
	Oid schema = InvalidOid;
	const Oid named = function_named(f.function, job_type, &schema);
	const Oid registered = f.has_identity ? f.function_oid : named;
	HeapTuple tuple = OidIsValid(registered) ? SearchSysCache1(PROCOID, ObjectIdGetDatum(registered)) : nullptr;
	if (!HeapTupleIsValid(tuple))
	{
		if (!f.has_identity)
			return paused(psprintf("function %s(tq_job) does not exist", f.function));
		return held(psprintf(OidIsValid(named) ? "function %s(tq_job) is not the one that was registered"
											   : "the registered function %s(tq_job) does not exist any more",
							 f.function));
	}
	const auto *proc = reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple));
	Judgment j{FunctionState::good, nullptr, registered, proc->prorettype == VOIDOID};
	if (f.has_identity && proc->proowner != f.owner)
		j = held(psprintf("function %s(tq_job) belongs to %s now, not to %s", f.function, role_name(proc->proowner),
						  role_name(f.owner)));
	else if (!OidIsValid(named))
		j = paused(psprintf("the registered function %s(tq_job) has another name now", f.function));
	else if (named != registered)
		j = held(psprintf("function %s(tq_job) is not the one that was registered", f.function));
	else if (const char *why = not_now(f, *proc, schema, job_type))
		j = paused(why);
	ReleaseSysCache(tuple);
	return j;
}

bool handlers_have_identity()
{
	const Oid table = get_relname_relid("handler", get_namespace_oid("tq", true));
	const Oid type = role_type();
	return OidIsValid(table) && OidIsValid(type) && get_atttype(table, get_attnum(table, "owner")) == type &&
		   get_atttype(table, get_attnum(table, "function_oid")) == OIDOID;
}

bool lock_handler(int32 queue_id, const char *kind)
{
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(queue_id), CStringGetTextDatum(kind)};
	pg::sql("SELECT FROM tq.handler WHERE queue_id = $1 AND kind = $2 AND retry_at IS DISTINCT FROM 'infinity' FOR "
			"UPDATE SKIP LOCKED",
			{types, values}, false, 0);
	return SPI_processed > 0;
}

void hold_handler(Oid extension, int32 queue_id, const char *kind, const HandlerFunction &f, const char *why)
{
	const Restricted scope = enter_restricted(extension);
	write_hold(Row{queue_id, kind != nullptr ? kind : "", f}, why);
	leave_restricted(scope);
}

void hold_changed_handlers(Oid extension, Oid schema)
{
	const Oid job_type = type_in(schema);
	if (!OidIsValid(job_type) || !handlers_have_identity())
		return;
	const Restricted scope = enter_restricted(extension);
	for (const Row &r : read_rows("EXISTS (SELECT FROM tq.meta WHERE system_identifier = $1 AND database = $2)"))
	{
		const Judgment j = judge(r.f, job_type);
		if (j.state == FunctionState::held)
			write_hold(r, j.why);
	}
	leave_restricted(scope);
}

void bind_handlers(Oid extension, Oid schema, bool only_unbound)
{
	if (!handlers_have_identity())
		return;
	const Oid job_type = job_type_in(schema);
	const Restricted scope = enter_restricted(extension);
	for (const Row &row :
		 read_rows(psprintf("$1 IS NOT NULL AND $2 IS NOT NULL%s", only_unbound ? " AND function_oid IS NULL" : "")))
	{
		Row r = row;
		if (!OidIsValid(r.f.role)) // after resolve_roles()
			continue;
		Oid in_schema = InvalidOid;
		r.f.function_oid = function_named(r.f.function, job_type, &in_schema);
		HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(r.f.function_oid));
		if (HeapTupleIsValid(tuple))
		{
			if (!OidIsValid(r.f.owner)) // a dump of 0.1.0 does not record the owner
				r.f.owner = reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple))->proowner;
			ReleaseSysCache(tuple);
		}
		const Judgment j = judge(r.f, job_type);
		if (j.state == FunctionState::held)
			write_hold(row, j.why);
		else if (r.f.function_oid != row.f.function_oid || r.f.owner != row.f.owner)
			bind(r, r.f.owner, r.f.function_oid);
	}
	leave_restricted(scope);
}

} // namespace tq
