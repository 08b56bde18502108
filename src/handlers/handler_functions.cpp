// tq_handle, tq_unhandle: choose the function that runs the jobs of a queue inside the server. A trigger notifies the
// workers of changes.
// Regime: PG. Locks, to the end of the transaction: RowExclusiveLock on tq.handler; tq_handle also an ExclusiveLock on
// the role among the objects of tq.handler.
#include "handlers/handler_functions.hpp"

#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "handlers/handler_function.hpp"
#include "processes/slots.hpp"
#include "queues/queue_names.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "transaction/config_changes.hpp"
#include "pg/extension.hpp"
#include "pg/function.hpp"
#include "pg/near_words.hpp"
#include "pg/json_values.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "catalog/pg_authid.h"
#include "parser/parse_type.h"
}

namespace tq
{

namespace
{

constexpr const char *kOptions[] = {"fatal", "max", nullptr};
constexpr pg::SizeLimit kSearchPathLimit{8192, nullptr}; // stored with the handler

// Reads an array of SQLSTATEs, five digits or capital letters each.
const int *states_in(const pg::Named &at, const JsonbValue &v, int *n)
{
	if (v.type != jbvBinary || !JsonContainerIsArray(v.val.binary.data))
		pg::bad_value(at, v, "It must be an array of SQLSTATEs.");
	*n = static_cast<int>(JsonContainerSize(v.val.binary.data));
	auto *states = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(*n + 1)));
	for (int i = 0; i < *n; ++i)
	{
		const JsonbValue *state = getIthJsonbValueFromContainer(v.val.binary.data, static_cast<uint32>(i));
		if (state->type != jbvString || state->val.string.len != 5 ||
			strspn(pg::string_of(*state), "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
			pg::bad_value(at, *state, "It must be an array of SQLSTATEs, five digits or capital letters each.");
		const char *s = state->val.string.val;
		states[i] = MAKE_SQLSTATE(s[0], s[1], s[2], s[3], s[4]);
	}
	return states;
}

[[noreturn]] void cannot_handle(Oid function, const char *why, const char *hint)
{
	ereport(ERROR, (errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
					errmsg("function %s cannot handle jobs", format_procedure(function)), errdetail("%s", why),
					hint != nullptr ? errhint("%s", hint) : 0));
}

// The function as tq.handler records it. Raises if it cannot be a handler or if the current user may not call it. Its
// owner can change its code, so this also raises if the owner does not have the rights of the current user.
HandlerFunction checked_function(Oid function, Oid job_type)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION), errmsg("function with OID %u does not exist", function)));
	const auto *proc = reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple));
	const Oid role = GetUserId();
	if (const char *why = unfit(*proc, job_type))
		cannot_handle(function, why, "Define it as: CREATE FUNCTION name(job tq_job) RETURNS jsonb ...");
	if (isTempNamespace(proc->pronamespace))
		cannot_handle(function, "It is temporary: no other session can call it.", nullptr);
	if (!pg::may_execute(function, role))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("permission denied for function %s", NameStr(proc->proname)),
						errdetail("The handler runs as the role that names it.")));
	if (!has_privs_of_role(proc->proowner, role))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("function %s cannot be a handler of role \"%s\"", format_procedure(function),
							   GetUserNameFromId(role, false)),
						errdetail("It would run as that role, but its owner, role \"%s\", can change its code and does "
								  "not have the rights of that role.",
								  GetUserNameFromId(proc->proowner, false)),
						errhint("Call tq_handle as the owner of the function, or make the function belong to a role "
								"that has these rights.")));
	const char *name = quote_qualified_identifier(get_namespace_name(proc->pronamespace), NameStr(proc->proname));
	const HandlerFunction f{name, role, proc->proowner, function, handlers_have_identity()};
	ReleaseSysCache(tuple);
	return f;
}

// Before PostgreSQL 17 a background worker cannot run a session of a role without LOGIN (H9).
void require_login(Oid role)
{
	HeapTuple tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	const bool may = HeapTupleIsValid(tuple) && reinterpret_cast<Form_pg_authid>(GETSTRUCT(tuple))->rolcanlogin;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	if (!may && pg::kMayNotLogin == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
						errmsg("role \"%s\" cannot run handlers", GetUserNameFromId(role, false)),
						errdetail("It may not log in, and before PostgreSQL 17 the process that runs its handlers is a "
								  "session of its own."),
						errhint("Name the handler as a role with LOGIN.")));
}

// The beginning of a hint: the nearest kind among the handlers of a queue.
const char *perhaps_kind(const Db &db, int32 queue_id, const char *kind)
{
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(queue_id)};
	pg::Nearest near{kind};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT kind FROM tq.handler WHERE queue_id = $1 ORDER BY kind", {types, values}, true, 0);
	for (uint64 i = 0; i < SPI_processed; ++i)
		if (const char *other = pg::spi_text(i, "kind", kNameLimit.bytes))
			pg::consider(&near, other);
	pg::leave_owner(scope);
	return pg::perhaps(near);
}

const char *kind_or_empty(FunctionCallInfo fcinfo)
{
	const char *kind = text_or_null(fcinfo, 1, "kind");
	if (kind != nullptr)
		check_name("kind", kind);
	return kind != nullptr ? kind : "";
}

// Every scheduler and executor of the database keeps all handlers. So one role must not register any number of them. A
// call that adds one waits for others of the role. If the limit is lowered, existing handlers stay and can be replaced.
void require_capacity(const Db &db, int32 queue_id, const char *kind, Oid role)
{
	const int most = guc::max_handlers_per_role;
	if (most == 0)
		return;
	LockDatabaseObject(get_relname_relid("handler", get_namespace_oid("tq", false)), role, 0, ExclusiveLock);
	const Oid types[] = {INT4OID, TEXTOID, OIDOID};
	const Datum values[] = {Int32GetDatum(queue_id), CStringGetTextDatum(kind), ObjectIdGetDatum(role)};
	const uint64 others = pg::sql_as_owner(
		db.extension,
		"SELECT FROM tq.handler WHERE role::oid = $3"
		" AND NOT EXISTS (SELECT FROM tq.handler WHERE queue_id = $1 AND kind = $2 AND role::oid = $3)",
		{types, values}, most);
	if (others >= static_cast<uint64>(most))
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						errmsg("too many handlers of role \"%s\"", GetUserNameFromId(role, false)),
						errdetail("It has at least %d; tq.max_handlers_per_role allows %d.", most, most),
						errhint("Remove some with tq_unhandle, handle several kinds with one function and kind null, "
								"or have a superuser raise tq.max_handlers_per_role.")));
}

void write_handler(const Db &db, int32 queue_id, const char *kind, const HandlerFunction &f, Jsonb *options)
{
	const Oid types[] = {INT4OID, TEXTOID, TEXTOID, OIDOID, TEXTOID, JSONBOID, TIMESTAMPTZOID, OIDOID, OIDOID};
	const Datum values[] = {Int32GetDatum(queue_id),
							CStringGetTextDatum(kind),
							CStringGetTextDatum(f.function),
							ObjectIdGetDatum(f.role),
							CStringGetTextDatum(GetConfigOption("search_path", false, false)),
							PointerGetDatum(options),
							TimestampTzGetDatum(wall_now()),
							ObjectIdGetDatum(f.owner),
							ObjectIdGetDatum(f.function_oid)};
	pg::sql_as_owner(
		db.extension,
		psprintf("INSERT INTO tq.handler AS h (queue_id, kind, function, role, search_path, options, defined_at%s)"
				 " VALUES ($1, $2, $3, $4::regrole, $5, coalesce($6, '{}'), $7%s)"
				 " ON CONFLICT (queue_id, kind) DO UPDATE SET function = excluded.function, role = excluded.role,"
				 " search_path = excluded.search_path, options = excluded.options, defined_at = excluded.defined_at%s,"
				 " problem = NULL, problem_at = NULL, retry_at = NULL",
				 f.has_identity ? ", owner, function_oid" : "", f.has_identity ? ", $8::regrole, $9" : "",
				 f.has_identity ? ", owner = excluded.owner, function_oid = excluded.function_oid" : ""),
		{types, values, options != nullptr ? nullptr : "     n   ", f.has_identity ? 9 : 7});
}

} // namespace

HandlerOptions parse_handler_options(Jsonb *options)
{
	HandlerOptions o;
	if (!JB_ROOT_IS_OBJECT(options))
		pg::not_an_object("options", options);
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

const char *why_not_handled(const Db &db, int32 queue_id, const char *kind, const char **function)
{
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(queue_id), CStringGetTextDatum(kind != nullptr ? kind : "")};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT function, problem FROM tq.handler WHERE queue_id = $1 AND kind IN ($2, '') ORDER BY kind DESC",
			{types, values}, true, 1);
	const bool found = SPI_processed > 0;
	const char *problem = nullptr;
	if (found)
	{
		const MemoryContext inner = MemoryContextSwitchTo(scope.outside);
		const char *name = pg::spi_text(0, "function");
		*function = name != nullptr ? name : "";
		problem = pg::spi_text(0, "problem");
		MemoryContextSwitchTo(inner);
	}
	pg::leave_owner(scope);
	if (!found || problem != nullptr)
		return problem;
	if (std::min(guc::executors, guc::max_executors) == 0)
		return "tq.executors or tq.max_executors is 0";
	return nullptr;
}

PoolStatus pool_status() noexcept
{
	PoolStatus pool{};
	const int slot = find_slot(MyDatabaseId);
	for (int i = 0; slot >= 0 && i < executor_entries(); ++i)
	{
		const ExecutorView e = executor_view(slot, i);
		pool.present += e.worker.stage == Stage::ready;
		pool.busy += e.handler != 0;
	}
	return pool;
}

int64 broken_handlers(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT FROM tq.handler WHERE problem IS NOT NULL", {}, true, 0);
	const auto n = static_cast<int64>(SPI_processed);
	pg::leave_owner(scope);
	return n;
}

// queue, kind, handler, options
TQ_FUNCTION(tq_handle)
{
	require_writable("tq_handle()");
	const char *queue = text_required(fcinfo, 0, "queue");
	const char *kind = kind_or_empty(fcinfo);
	require(fcinfo, 2, "handler");
	const Oid function = PG_GETARG_OID(2);
	Jsonb *options = jsonb_value(fcinfo, 3, "options", options_limit());
	if (options != nullptr)
		static_cast<void>(parse_handler_options(options));
	Db &db = database(fcinfo);
	const int32 queue_id = number_to_manage(db, queue);
	// the handler sees the contents of the jobs, as a worker would
	static_cast<void>(queue_with_right(db, queue, kConsume));
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(db.extension, &facts))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"tq\" does not exist")));
	const char *search_path = GetConfigOption("search_path", false, false);
	if (strlen(search_path) > kSearchPathLimit.bytes)
		pg::raise_too_large("search_path", strlen(search_path), kSearchPathLimit);
	const HandlerFunction f = checked_function(function, job_type_in(get_func_namespace(fcinfo->flinfo->fn_oid)));
	require_login(f.role);
	require_capacity(db, queue_id, kind, f.role);
	write_handler(db, queue_id, kind, f, options);
	record_action(
		db, "handle", queue_id, 0,
		Facts().add("kind", *kind != '\0' ? kind : nullptr).add("function", f.function).add("options", options));
	PG_RETURN_VOID();
}

// queue, kind
TQ_FUNCTION(tq_unhandle)
{
	require_writable("tq_unhandle()");
	const char *queue = text_required(fcinfo, 0, "queue");
	const char *kind = kind_or_empty(fcinfo);
	Db &db = database(fcinfo);
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(number_to_manage(db, queue)), CStringGetTextDatum(kind)};
	if (pg::sql_as_owner(db.extension, "DELETE FROM tq.handler WHERE queue_id = $1 AND kind = $2",
						 {types, values}) == 0)
	{
		const char *perhaps = perhaps_kind(db, DatumGetInt32(values[0]), kind);
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						kind[0] != '\0' ? errmsg("queue \"%s\" has no handler for kind \"%s\"", queue, kind)
										: errmsg("queue \"%s\" has no handler for every kind", queue),
						errhint("%stq_handlers shows what handlers there are.", perhaps)));
	}
	record_action(db, "unhandle", DatumGetInt32(values[0]), 0, Facts().add("kind", *kind != '\0' ? kind : nullptr));
	PG_RETURN_VOID();
}

// Trigger on tq.handler: schedulers and executors read the table again after the transaction commits.
TQ_FUNCTION(tq_handler_changed)
{
	static_cast<void>(pg::trigger_call(fcinfo, "tq.handler_changed", TRIGGER_EVENT_AFTER));
	mark_handlers();
	PG_RETURN_POINTER(nullptr);
}

} // namespace tq
