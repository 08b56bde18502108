// tq_handle, tq_unhandle: which function runs the jobs of a queue inside the server, and the trigger that tells the workers.
// Regime: PG. Locks: RowExclusiveLock on tq.handler to the end of the transaction.
#include "api/handle.hpp"

#include "api/args.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "live/xact.hpp"
#include "pg/extension.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/owner.hpp"
#include "workers/slots.hpp"

extern "C"
{
#include "catalog/pg_authid.h"
#include "parser/parse_type.h"
}

namespace tq::api
{

namespace
{

constexpr const char *kOptions[] = {"fatal", "max", nullptr};

// SQLSTATEs: five digits or capital letters each.
const int *states_in(const pg::Named &at, const JsonbValue &v, int *n)
{
	if (v.type != jbvBinary || !JsonContainerIsArray(v.val.binary.data))
		pg::bad_value(at, "It must be an array of SQLSTATEs.");
	*n = static_cast<int>(JsonContainerSize(v.val.binary.data));
	auto *states = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(*n + 1)));
	for (int i = 0; i < *n; ++i)
	{
		const JsonbValue *state = getIthJsonbValueFromContainer(v.val.binary.data, static_cast<uint32>(i));
		if (state->type != jbvString || state->val.string.len != 5 ||
			strspn(pg::string_of(*state), "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
			pg::bad_value(at, "It must be an array of SQLSTATEs, five digits or capital letters each.");
		const char *s = state->val.string.val;
		states[i] = MAKE_SQLSTATE(s[0], s[1], s[2], s[3], s[4]);
	}
	return states;
}

// What keeps a function from being a handler; null if nothing does.
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

// The function as it is written down: with its schema. Raises if it cannot be a handler, or the caller may not call it.
char *checked_handler(Oid function, Oid job_type)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION), errmsg("function with OID %u does not exist", function)));
	const auto *proc = reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple));
	if (const char *why = unfit(*proc, job_type))
		ereport(ERROR, (errcode(ERRCODE_INVALID_FUNCTION_DEFINITION), errmsg("function %s cannot handle jobs", format_procedure(function)),
						errdetail("%s", why), errhint("Define it as: CREATE FUNCTION name(job tq_job) RETURNS jsonb ...")));
	if (isTempNamespace(proc->pronamespace))
		ereport(ERROR, (errcode(ERRCODE_INVALID_FUNCTION_DEFINITION), errmsg("function %s cannot handle jobs", format_procedure(function)),
						errdetail("It is temporary: no other session can call it.")));
	if (!pg::may_execute(function, GetUserId()))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for function %s", NameStr(proc->proname)),
						errdetail("The handler runs as the role that names it.")));
	char *name = quote_qualified_identifier(get_namespace_name(proc->pronamespace), NameStr(proc->proname));
	ReleaseSysCache(tuple);
	return name;
}

// Before 17 no background worker can be the session of a role without LOGIN (H9).
void require_login(Oid role)
{
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	const bool may = HeapTupleIsValid(tuple) && reinterpret_cast<Form_pg_authid>(GETSTRUCT(tuple))->rolcanlogin;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	if (!may && pg::kMayNotLogin == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
						errmsg("role \"%s\" cannot run handlers", GetUserNameFromId(role, false)),
						errdetail("It may not log in, and before PostgreSQL 17 the process that runs its handlers is a session of its own."),
						errhint("Name the handler as a role with LOGIN.")));
}

const char *kind_or_empty(FunctionCallInfo fcinfo)
{
	const char *kind = text_or_null(fcinfo, 1);
	if (kind != nullptr)
		live::check_name("kind", kind);
	return kind != nullptr ? kind : "";
}

} // namespace

HandlerOptions parse_handler_options(Jsonb *options)
{
	HandlerOptions o;
	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("options must be a JSON object")));
	pg::Members m = pg::members_of(options, kOptions, "options");
	while (pg::next_member(&m))
	{
		const pg::Named at{"option", m.key};
		if (strcmp(m.key, "max") == 0)
			o.max = static_cast<int>(pg::integer_in(at, m.value, 1, 1000));
		else
			o.fatal = states_in(at, m.value, &o.nfatal);
	}
	return o;
}

Oid job_type_in(Oid schema)
{
	const Oid type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("tq_job"), ObjectIdGetDatum(schema));
	if (!OidIsValid(type))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("type \"tq_job\" does not exist")));
	return type;
}

Oid find_handler(const char *name, Oid job_type, bool *returns_void)
{
	const Oid function = LookupFuncName(pg::name_list(name), 1, &job_type, true);
	if (!OidIsValid(function))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION), errmsg("function %s(tq_job) does not exist", name)));
	static_cast<void>(checked_handler(function, job_type));
	*returns_void = get_func_rettype(function) == VOIDOID;
	return function;
}

const char *why_not_handled(const live::Db &db, int32 queue_id, const char *kind, const char **function)
{
	const MemoryContext caller = CurrentMemoryContext;
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(queue_id), CStringGetTextDatum(kind != nullptr ? kind : "")};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT function, problem FROM tq.handler WHERE queue_id = $1 AND kind IN ($2, '') ORDER BY kind DESC", 2, types,
			values, nullptr, true, 1);
	const bool found = SPI_processed > 0;
	const char *problem = nullptr;
	if (found)
	{
		const char *name = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
		*function = MemoryContextStrdup(caller, name);
		problem = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2);
		problem = problem != nullptr ? MemoryContextStrdup(caller, problem) : nullptr;
	}
	pg::leave_owner(scope);
	MemoryContextSwitchTo(caller);
	if (!found || problem != nullptr)
		return problem;
	if (db.dormant.load())
		return "this database is a copy, and tq_activate() has not been called";
	if (std::min(guc::executors, guc::max_executors) == 0)
		return "tq.executors or tq.max_executors is 0";
	return nullptr;
}

Crew crew_of() noexcept
{
	Crew crew{};
	const int slot = workers::find_slot(MyDatabaseId);
	for (int i = 0; slot >= 0 && i < workers::executor_places(); ++i)
	{
		const workers::ExecutorView e = workers::executor_view(slot, i);
		crew.present += e.worker.stage == workers::Stage::ready;
		crew.busy += e.handler != 0;
	}
	return crew;
}

int64 broken_handlers(const live::Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT FROM tq.handler WHERE problem IS NOT NULL", 0, nullptr, nullptr, nullptr, true, 0);
	const auto n = static_cast<int64>(SPI_processed);
	pg::leave_owner(scope);
	return n;
}

} // namespace tq::api

using namespace tq;
using namespace tq::api;

// queue, kind, handler, options
TQ_FUNCTION(tq_handle)
{
	require_writable("tq_handle()");
	const char *queue = text_required(fcinfo, 0, "queue");
	const char *kind = kind_or_empty(fcinfo);
	require(fcinfo, 2, "handler");
	const Oid function = PG_GETARG_OID(2);
	Jsonb *options = given(fcinfo, 3) ? PG_GETARG_JSONB_P(3) : nullptr;
	if (options != nullptr)
		static_cast<void>(parse_handler_options(options));
	live::Db &db = live::database(fcinfo);
	const int32 queue_id = live::number_to_manage(db, queue);
	// the handler is given what is in the jobs, as a worker would be
	static_cast<void>(live::queue_with_right(db, queue, live::kConsume));
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(db.extension, &facts))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"tq\" does not exist")));
	const char *name = checked_handler(function, job_type_in(get_func_namespace(fcinfo->flinfo->fn_oid)));
	require_login(GetUserId());

	const Oid types[] = {INT4OID, TEXTOID, TEXTOID, OIDOID, TEXTOID, JSONBOID, TIMESTAMPTZOID};
	const Datum values[] = {Int32GetDatum(queue_id), CStringGetTextDatum(kind), CStringGetTextDatum(name),
							ObjectIdGetDatum(GetUserId()), CStringGetTextDatum(GetConfigOption("search_path", false, false)),
							PointerGetDatum(options), TimestampTzGetDatum(live::wall_now())};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("INSERT INTO tq.handler AS h (queue_id, kind, function, role, search_path, options, defined_at)"
			" VALUES ($1, $2, $3, $4::regrole, $5, coalesce($6, '{}'), $7)"
			" ON CONFLICT (queue_id, kind) DO UPDATE SET function = excluded.function, role = excluded.role,"
			" search_path = excluded.search_path, options = excluded.options, defined_at = excluded.defined_at,"
			" problem = NULL, problem_at = NULL, retry_at = NULL",
			7, types, values, options != nullptr ? nullptr : "     n ", false, 0);
	pg::leave_owner(scope);
	PG_RETURN_VOID();
}

// queue, kind
TQ_FUNCTION(tq_unhandle)
{
	require_writable("tq_unhandle()");
	const char *queue = text_required(fcinfo, 0, "queue");
	const char *kind = kind_or_empty(fcinfo);
	live::Db &db = live::database(fcinfo);
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(live::number_to_manage(db, queue)), CStringGetTextDatum(kind)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("DELETE FROM tq.handler WHERE queue_id = $1 AND kind = $2", 2, types, values, nullptr, false, 0);
	const bool found = SPI_processed > 0;
	pg::leave_owner(scope);
	if (!found)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						kind[0] != '\0' ? errmsg("queue \"%s\" has no handler for kind \"%s\"", queue, kind)
										: errmsg("queue \"%s\" has no handler for every kind", queue),
						errhint("tq_handlers shows what handlers there are.")));
	PG_RETURN_VOID();
}

// Trigger on tq.handler: schedulers and executors read it again when the transaction has committed.
TQ_FUNCTION(tq_handler_changed)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("function \"%s\" was not called by a trigger", "tq.handler_changed")));
	live::mark_handlers_changed();
	PG_RETURN_POINTER(nullptr); // ignored: always an AFTER trigger
}
