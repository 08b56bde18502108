// Workers and DDL. A worker is a session of its database. It would make DROP DATABASE, CREATE DATABASE ... TEMPLATE,
// ALTER DATABASE ... RENAME and SET TABLESPACE fail, and it would outlive DROP EXTENSION. The hooks ask the workers to
// exit and keep the launcher from starting others until the transaction ends, by commit or rollback. Then the launcher
// reads the catalogs.
//
//   what                                where it is seen                 waits for the workers?
//   DROP DATABASE                       object access, below core's lock yes
//   CREATE DATABASE ... TEMPLATE x      ProcessUtility                   yes
//   ALTER DATABASE x RENAME             ProcessUtility                   yes
//   ALTER DATABASE x SET TABLESPACE     ProcessUtility                   yes
//   DROP EXTENSION tq, also by CASCADE  object access                    no: the drop's lock has waited for them
//   CREATE, ALTER EXTENSION (any)       object access                    no: wakes the launcher at commit
//   CREATE DATABASE, other ALTER        object access                    no: wakes the launcher at commit
//   tq_activate(), tq_deactivate()      the call                         yes
//   functions dropped or altered        object access, ProcessUtility    no: holds handlers, see functions_changed
//
// Regime: PG. Locks: ddl_lock_tag(database) in ShareLock to the end of the transaction, ddl_lock_tag(InvalidOid) in
// RowExclusiveLock if it is prepared, rows of tq.handler, "tq workers" inside slots.hpp. Raises: before the DDL and
// before PREPARE TRANSACTION (cancel, out of lock memory, permission); after a statement that changed functions, what
// hold_changed_handlers() raises. The transaction callback never does.
#include "workers/lifecycle_hooks.hpp"

#include "guc.hpp"
#include "database/activation.hpp"
#include "handlers/handler_function.hpp"
#include "journal/journal.hpp"
#include "processes/slots.hpp"
#include "processes/worker.hpp"
#include "pg/prelude.hpp"

extern "C"
{
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "nodes/parsenodes.h"
}

namespace tq
{

namespace
{

// Core waits this long for the sessions of a database before it gives up.
constexpr int kStopTimeoutMs = 5000;
// How long a worker may take to see its stop flag, before it gets SIGTERM.
constexpr int kGraceMs = 500;
// How long an executor may take to release its job. It gets a second SIGTERM then, and its attempt counts.
constexpr int kReleaseMs = 3000;

// A request_check() that is due when the transaction ends.
struct Check
{
	Oid database;
	bool after_abort; // workers were stopped, so a rollback matters too
};
constexpr int kMaxChecks = 8;

struct Hooks
{
	object_access_hook_type next_object_access = nullptr;
	ProcessUtility_hook_type next_process_utility = nullptr;
	// Databases that the launcher must check when this transaction ends. Of fixed size, because the callback must not
	// allocate. A rolled-back savepoint leaves its entries, which costs one check.
	Check checks[kMaxChecks] = {};
	int nchecks = 0;
	// A statement under way has dropped or altered a function, or altered a schema. At its end the handlers whose
	// function has changed are held (handlers/handler_function.hpp), in the same transaction. So a rollback undoes
	// both, no crash comes between them, and a dump has both or neither.
	bool functions_changed = false;
	// The CREATE DATABASE under way copies a database in which tq is active.
	bool copies_active = false;
};
Hooks state;

void check_at_end(Oid database, bool after_abort) noexcept
{
	for (int i = 0; i < state.nchecks; i++)
		if (state.checks[i].database == database || !OidIsValid(state.checks[i].database))
		{
			state.checks[i].after_abort |= after_abort;
			return;
		}
	if (state.nchecks == kMaxChecks)
	{
		// They do not fit: check all databases.
		state.checks[0] = {InvalidOid, true};
		state.nchecks = 1;
		return;
	}
	state.checks[state.nchecks++] = {database, after_abort};
}

void transaction_ends(XactEvent event, void *) noexcept
{
	state.functions_changed = false;
	if (state.nchecks == 0)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			for (int i = 0; i < state.nchecks; i++)
			{
				if (event == XACT_EVENT_COMMIT || state.checks[i].after_abort)
					request_check(state.checks[i].database);
			}
			state.nchecks = 0;
			break;
		case XACT_EVENT_PREPARE:
			// The locks belong to the prepared transaction; the session that ends it wakes the launcher.
			state.nchecks = 0;
			break;
		default:
			break;
	}
}

// False if no workers can run (tq is not preloaded, or this is a standby), or if the catalogs cannot be read.
bool ddl_concerns_us() noexcept
{
	return gone_condition() != nullptr && IsUnderPostmaster && IsTransactionState() && !RecoveryInProgress();
}

// Keeps the launcher out of the database until this transaction ends, and makes it check then. The lock comes before
// the stop. The launcher marks an entry `starting` before it tests the lock, so either it sees this lock, or
// request_stop() sees its entry.
void lock_out_launcher(Oid database)
{
	LOCKTAG tag = ddl_lock_tag(database);

	check_at_end(database, true);
	(void)LockAcquire(&tag, ShareLock, false, false);
}

} // namespace

// Stops the workers and waits until they are out of the database, for as long as core would wait. If they do not exit
// in time, the DDL fails with core's own message, which is right: the database is being accessed.
void lock_out_workers(Oid database)
{
	const core::Micros start = steady_now();
	Force force = Force::none;

	lock_out_launcher(database);
	request_stop(database, force);
	ConditionVariablePrepareToSleep(gone_condition());
	while (!all_gone(database))
	{
		const core::Micros waited = steady_now() - start;

		if (waited >= kStopTimeoutMs * core::Micros{1000})
		{
			ereport(LOG, (errmsg("tq workers did not leave database %u within %d ms", database, kStopTimeoutMs)));
			break;
		}
		const Force due = waited >= kReleaseMs * core::Micros{1000} ? Force::all
						  : waited >= kGraceMs * core::Micros{1000} ? Force::all_but_releasing
																	: Force::none;
		if (due != force)
			request_stop(database, force = due);
		(void)ConditionVariableTimedSleep(gone_condition(), 100, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

namespace
{

// Core checks permissions after this hook. Without this check, any role could make the workers of any database
// restart by requesting DDL that core then refuses.
bool owns_database(Oid database)
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	Oid owner;

	if (!HeapTupleIsValid(tuple))
		return false;
	owner = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple))->datdba;
	ReleaseSysCache(tuple);
	return has_privs_of_role(GetUserId(), owner);
}

bool is_active_in(Oid database) noexcept
{
	for (int i = 0; i < guc::max_databases; ++i)
		if (const Db &db = db_at(i); db.used && db.database == database && db.active.load())
			return true;
	return false;
}

void report_copy(const char *name)
{
	ereport(NOTICE, (errmsg("tq is inactive in database \"%s\": it is a copy", name),
					 errhint("In that database, call SELECT tq_activate() to process the copied jobs again.")));
}

void lock_out_workers_of(const char *name)
{
	Oid database;

	if (name == nullptr)
		return;
	// It may be the session's own database: that can be a template, and core refuses the other cases.
	database = get_database_oid(name, true);
	if (OidIsValid(database) && owns_database(database))
		lock_out_workers(database);
}

DefElem *find_option(List *options, const char *name) noexcept
{
	ListCell *cell;

	foreach (cell, options)
	{
		auto option = static_cast<DefElem *>(lfirst(cell));

		if (strcmp(option->defname, name) == 0)
			return option;
	}
	return nullptr;
}

// Core locks the extension before it checks who may drop it, and ALTER ... DEPENDS ON EXTENSION checks nothing. Workers
// stay away from an extension with such a lock. So a role that does not own it is refused here, before the lock. False:
// it is not installed.
bool require_extension_owner(ExtensionRow *row)
{
	if (!find_extension(row))
		return false;
	if (!has_privs_of_role(GetUserId(), row->owner))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_EXTENSION, "tq");
	return true;
}

// A worker in a long transaction holds the extension's lock, and DROP EXTENSION is about to wait for it. So the worker
// is asked to exit early. This function need not wait, because the drop waits for the lock. A segment that a restore
// has made becomes part of the extension, so that the drop includes it.
void before_drop_extension(const DropStmt *statement)
{
	ListCell *cell;
	ExtensionRow row;

	foreach (cell, statement->objects)
	{
		if (strcmp(strVal(lfirst(cell)), "tq") != 0)
			continue;
		if (!require_extension_owner(&row))
			return;
		lock_out_launcher(MyDatabaseId);
		request_stop(MyDatabaseId, Force::long_running);
		journal::adopt_segments(row.oid);
		return;
	}
}

// A prepared transaction outlives the session and the server. The session that ends it finds the lock.
void mark_prepared_ddl()
{
	LOCKTAG tag = ddl_lock_tag(InvalidOid);

	(void)LockAcquire(&tag, RowExclusiveLock, false, false);
}

bool prepared_ddl_exists()
{
	LOCKTAG tag = ddl_lock_tag(InvalidOid);

	if (LockAcquire(&tag, ShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ShareLock, false);
	return false;
}

void before_statement(Node *statement, ProcessUtilityContext context)
{
	// Core refuses such a statement in a transaction block; then no worker needs to exit.
	bool alone = context == PROCESS_UTILITY_TOPLEVEL && !IsTransactionBlock();

	switch (nodeTag(statement))
	{
		case T_CreatedbStmt:
			if (alone)
			{
				auto option = find_option(reinterpret_cast<CreatedbStmt *>(statement)->options, "template");
				const char *source = option != nullptr && option->arg != nullptr ? defGetString(option) : "template1";

				state.copies_active = is_active_in(get_database_oid(source, true));
				// The default template need not be marked as a template; then it has workers like any other database.
				lock_out_workers_of(source);
			}
			break;
		case T_AlterDatabaseStmt:
			if (alone)
			{
				auto alter = reinterpret_cast<AlterDatabaseStmt *>(statement);

				if (find_option(alter->options, "tablespace") != nullptr)
					lock_out_workers_of(alter->dbname);
			}
			break;
		case T_RenameStmt: {
			auto rename = reinterpret_cast<RenameStmt *>(statement);

			if (rename->renameType == OBJECT_DATABASE)
				lock_out_workers_of(rename->subname);
		}
		break;
		case T_DropStmt:
			if (reinterpret_cast<DropStmt *>(statement)->removeType == OBJECT_EXTENSION)
				before_drop_extension(reinterpret_cast<DropStmt *>(statement));
			break;
		case T_AlterObjectDependsStmt:
			if (strcmp(strVal(reinterpret_cast<AlterObjectDependsStmt *>(statement)->extname), "tq") == 0)
			{
				ExtensionRow row;
				static_cast<void>(require_extension_owner(&row));
			}
			break;
		case T_TransactionStmt:
			if (reinterpret_cast<TransactionStmt *>(statement)->kind == TRANS_STMT_PREPARE && state.nchecks > 0)
				mark_prepared_ddl();
			break;
		default:
			break;
	}
}

bool ends_prepared_transaction(Node *statement) noexcept
{
	if (!IsA(statement, TransactionStmt))
		return false;
	switch (reinterpret_cast<TransactionStmt *>(statement)->kind)
	{
		case TRANS_STMT_COMMIT_PREPARED:
		case TRANS_STMT_ROLLBACK_PREPARED:
			return true;
		default:
			return false;
	}
}

void process_utility(PlannedStmt *planned, const char *query, bool read_only_tree, ProcessUtilityContext context,
					 ParamListInfo params, QueryEnvironment *environment, DestReceiver *dest,
					 QueryCompletion *completion)
{
	// Computed before the statement, because the tree may be freed afterwards.
	const char *database = IsA(planned->utilityStmt, CreatedbStmt)
							   ? pstrdup(reinterpret_cast<CreatedbStmt *>(planned->utilityStmt)->dbname)
							   : nullptr;
	bool wakes_launcher = ends_prepared_transaction(planned->utilityStmt) && ddl_concerns_us() && prepared_ddl_exists();

	state.copies_active = false;
	if (ddl_concerns_us())
		before_statement(planned->utilityStmt, context);

	if (state.next_process_utility != nullptr)
		state.next_process_utility(planned, query, read_only_tree, context, params, environment, dest, completion);
	else
		standard_ProcessUtility(planned, query, read_only_tree, context, params, environment, dest, completion);

	if (state.copies_active)
		report_copy(database);
	state.copies_active = false;
	if (state.functions_changed && ddl_concerns_us())
	{
		ExtensionRow row;

		state.functions_changed = false;
		CommandCounterIncrement();
		if (find_extension(&row) && is_active_here(row.oid))
			hold_changed_handlers(row.oid, row.schema);
	}
	// The prepared transaction may have been about any database; this session does not know which.
	if (wakes_launcher)
		request_check(InvalidOid);
}

void on_extension(ObjectAccessType access, Oid extension)
{
	if (access == OAT_POST_CREATE || access == OAT_POST_ALTER)
	{
		// A new row is not visible yet, so its name is not known. Such statements are rare.
		check_at_end(MyDatabaseId, false);
	}
	else if (access == OAT_DROP)
	{
		char *name = get_extension_name(extension);

		if (name != nullptr && strcmp(name, "tq") == 0)
		{
			lock_out_launcher(MyDatabaseId);
			request_stop(MyDatabaseId, Force::none);
		}
	}
}

void on_database(ObjectAccessType access, Oid database)
{
	if (access == OAT_POST_CREATE || access == OAT_POST_ALTER)
	{
		// Also IS_TEMPLATE and ALLOW_CONNECTIONS.
		check_at_end(database, false);
	}
	else if (access == OAT_DROP && database != MyDatabaseId)
	{
		// dropdb() has checked permissions and holds the lock for which new sessions wait. It has neither counted nor
		// (WITH FORCE) terminated the sessions yet.
		lock_out_workers(database);
	}
}

void object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (state.next_object_access != nullptr)
		state.next_object_access(access, class_id, object_id, sub_id, arg);
	if (!ddl_concerns_us())
		return;
	if (class_id == ExtensionRelationId)
		on_extension(access, object_id);
	else if (class_id == DatabaseRelationId)
		on_database(access, object_id);
	else if (class_id == ProcedureRelationId)
		state.functions_changed = state.functions_changed || access == OAT_DROP || access == OAT_POST_ALTER;
	else if (class_id == NamespaceRelationId)
		state.functions_changed = state.functions_changed || access == OAT_POST_ALTER;
}

} // namespace

void install_hooks()
{
	if (IsBinaryUpgrade)
		return;
	state.next_object_access = object_access_hook;
	object_access_hook = object_access;
	state.next_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterXactCallback(transaction_ends, nullptr);
	set_launcher_call([] { request_check(MyDatabaseId); }); // src/database includes nothing of src/processes
}

} // namespace tq
