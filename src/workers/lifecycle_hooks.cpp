// Workers and DDL. A worker is a session of its database, so DROP DATABASE, CREATE DATABASE ... TEMPLATE, ALTER
// DATABASE ... RENAME and SET TABLESPACE would fail because of it, and DROP EXTENSION would leave it behind. The
// hooks ask the workers to go and keep the launcher from starting others until the transaction is over,
// whichever way it ends; what is right then, the launcher reads from the catalogs.
//
//   what                                where it is seen                 waits for the workers?
//   DROP DATABASE                       object access, below core's lock yes
//   CREATE DATABASE ... TEMPLATE x      ProcessUtility                   yes
//   ALTER DATABASE x RENAME             ProcessUtility                   yes
//   ALTER DATABASE x SET TABLESPACE     ProcessUtility                   yes
//   DROP EXTENSION tq, also by CASCADE  object access                    no, its locks have waited for them
//   CREATE, ALTER EXTENSION (any)       object access                    rings at commit
//   CREATE DATABASE, other ALTER        object access                    rings at commit
//   a segment's table, index, trigger   ProcessUtility                   asks the janitor to compare, at commit
//
// Regime: PG. Locks: ddl_lock_tag(database) in ShareLock to the end of the transaction, ddl_lock_tag(InvalidOid) in
// RowExclusiveLock if it is prepared, "tq workers" inside slots.hpp. Raises: before the DDL and before PREPARE
// TRANSACTION only (cancel, out of lock memory); the transaction callback never does.
#include "pg/prelude.hpp"

#include "journal/journal.hpp"
#include "live/load.hpp"
#include "workers/lifecycle_hooks.hpp"
#include "workers/slots.hpp"
#include "workers/worker.hpp"

extern "C"
{
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
}

namespace tq::workers
{

namespace
{

// Core waits as long for the sessions of a database before it gives up.
constexpr int kStopTimeoutMs = 5000;
// How long a worker has to see its stop flag before it is terminated.
constexpr int kGraceMs = 500;

object_access_hook_type next_object_access = nullptr;
ProcessUtility_hook_type next_process_utility = nullptr;

// Databases the launcher has to look at when this transaction ends. Backend-local, fixed size: the callback
// must not allocate. A savepoint that is rolled back leaves its entries behind, which costs a look.
struct Check
{
	Oid database;
	bool after_abort; // workers were stopped, so a rollback concerns them as well
};
constexpr int kMaxChecks = 8;
Check checks[kMaxChecks];
int check_count = 0;

void check_at_end(Oid database, bool after_abort) noexcept
{
	for (int i = 0; i < check_count; i++)
		if (checks[i].database == database || !OidIsValid(checks[i].database))
		{
			checks[i].after_abort |= after_abort;
			return;
		}
	if (check_count == kMaxChecks)
	{
		// More than fit: look at all of them.
		checks[0] = {InvalidOid, true};
		check_count = 1;
		return;
	}
	checks[check_count++] = {database, after_abort};
}

void transaction_ends(XactEvent event, void *) noexcept
{
	if (check_count == 0)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			for (int i = 0; i < check_count; i++)
				if (event == XACT_EVENT_COMMIT || checks[i].after_abort)
					request_check(checks[i].database);
			check_count = 0;
			break;
		case XACT_EVENT_PREPARE:
			// The locks go with the prepared transaction; who ends it rings.
			check_count = 0;
			break;
		default:
			break;
	}
}

bool ddl_concerns_us() noexcept
{
	return gone_condition() != nullptr && IsUnderPostmaster && IsTransactionState() && !RecoveryInProgress();
}

// Keep the launcher out of the database until this transaction ends, and have it look then. The lock comes
// before the stop: the launcher marks an entry `starting` before it tests the lock, so either it sees our
// lock, or request_stop() sees its entry.
void hold(Oid database)
{
	LOCKTAG tag = ddl_lock_tag(database);

	check_at_end(database, true);
	(void)LockAcquire(&tag, ShareLock, false, false);
}

// Stop the workers and wait until they are out of the database, for as long as core would wait. If they do not
// make it, the DDL fails with core's own message, which is right: the database is being accessed.
void hold_and_clear(Oid database)
{
	const core::Micros start = live::steady_now();
	bool terminated = false;

	hold(database);
	request_stop(database, Force::nobody);
	ConditionVariablePrepareToSleep(gone_condition());
	while (!all_gone(database))
	{
		const core::Micros waited = live::steady_now() - start;

		if (waited >= kStopTimeoutMs * core::Micros{1000})
		{
			ereport(LOG, (errmsg("tq workers did not leave database %u within %d ms", database, kStopTimeoutMs)));
			break;
		}
		if (!terminated && waited >= kGraceMs * core::Micros{1000})
		{
			request_stop(database, Force::everybody);
			terminated = true;
		}
		(void)ConditionVariableTimedSleep(gone_condition(), 100, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

// Core checks permissions after our hook; without this, anybody could make the workers of any database restart
// by asking for DDL he may not do.
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

void clear_by_name(const char *name)
{
	Oid database;

	if (name == nullptr)
		return;
	// May be one's own database: it can be a template, and core refuses the rest.
	database = get_database_oid(name, true);
	if (OidIsValid(database) && owns_database(database))
		hold_and_clear(database);
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

// A worker in the middle of a long transaction holds the extension's lock, which DROP EXTENSION is about to
// wait for. Ask for it in time; no need to wait, the lock does. What a restore has just made belongs to the extension, too.
void clear_for_drop_extension(const DropStmt *statement)
{
	ListCell *cell;
	ExtensionRow row;

	foreach (cell, statement->objects)
	{
		if (strcmp(strVal(lfirst(cell)), "tq") != 0)
			continue;
		if (find_extension(&row) && has_privs_of_role(GetUserId(), row.owner))
		{
			hold(MyDatabaseId);
			request_stop(MyDatabaseId, Force::long_running);
			journal::adopt_segments(row.oid);
		}
		return;
	}
}

// A prepared transaction outlives the session, and the server; whoever ends it finds the lock.
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
	// Core refuses those that cannot run in a transaction block; nobody has to go for that.
	bool alone = context == PROCESS_UTILITY_TOPLEVEL && !IsTransactionBlock();

	switch (nodeTag(statement))
	{
		case T_CreatedbStmt:
			if (alone)
			{
				auto option = find_option(reinterpret_cast<CreatedbStmt *>(statement)->options, "template");

				// The default need not be marked as a template, and then has workers like any other.
				clear_by_name(option != nullptr && option->arg != nullptr ? defGetString(option) : "template1");
			}
			break;
		case T_AlterDatabaseStmt:
			if (alone)
			{
				auto alter = reinterpret_cast<AlterDatabaseStmt *>(statement);

				if (find_option(alter->options, "tablespace") != nullptr)
					clear_by_name(alter->dbname);
			}
			break;
		case T_RenameStmt: {
			auto rename = reinterpret_cast<RenameStmt *>(statement);

			if (rename->renameType == OBJECT_DATABASE)
				clear_by_name(rename->subname);
		}
		break;
		case T_DropStmt:
			if (reinterpret_cast<DropStmt *>(statement)->removeType == OBJECT_EXTENSION)
				clear_for_drop_extension(reinterpret_cast<DropStmt *>(statement));
			break;
		case T_TransactionStmt:
			if (reinterpret_cast<TransactionStmt *>(statement)->kind == TRANS_STMT_PREPARE && check_count > 0)
				mark_prepared_ddl();
			break;
		default:
			break;
	}
}

// A restore makes a segment's tables, fills them, and only then gives them indexes and triggers, in any order: whichever
// comes last makes the segment whole (H6). Nobody else than an administrator does such things; the janitor knows of its own.
bool completes_segment(Node *statement)
{
	const RangeVar *table = nullptr;

	if (creating_extension || MyBgworkerEntry != nullptr)
		return false;
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			table = reinterpret_cast<AlterTableStmt *>(statement)->relation;
			break;
		case T_IndexStmt:
			table = reinterpret_cast<IndexStmt *>(statement)->relation;
			break;
		case T_CreateTrigStmt:
			table = reinterpret_cast<CreateTrigStmt *>(statement)->relation;
			break;
		case T_CopyStmt:
			// the registries have no triggers, and jobs of a queue whose row comes after them are of no use before
			if (reinterpret_cast<CopyStmt *>(statement)->is_from)
				table = reinterpret_cast<CopyStmt *>(statement)->relation;
			break;
		case T_DropStmt: {
			auto drop = reinterpret_cast<DropStmt *>(statement);

			if (drop->removeType == OBJECT_TABLE)
				table = makeRangeVarFromNameList(linitial_node(List, drop->objects));
		}
		break;
		default:
			break;
	}
	if (table == nullptr)
		return false;
	if (table->schemaname != nullptr)
		return strcmp(table->schemaname, "tq") == 0;

	const Oid relation = RangeVarGetRelid(table, NoLock, true);
	const char *schema = OidIsValid(relation) ? get_namespace_name(get_rel_namespace(relation)) : nullptr;

	return schema != nullptr && strcmp(schema, "tq") == 0;
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
	// The tree may be gone afterwards.
	bool ring_after = ends_prepared_transaction(planned->utilityStmt) && ddl_concerns_us() && prepared_ddl_exists();
	bool compare_after = ddl_concerns_us() && completes_segment(planned->utilityStmt);

	if (ddl_concerns_us())
		before_statement(planned->utilityStmt, context);

	if (next_process_utility != nullptr)
		next_process_utility(planned, query, read_only_tree, context, params, environment, dest, completion);
	else
		standard_ProcessUtility(planned, query, read_only_tree, context, params, environment, dest, completion);

	if (compare_after)
		live::mark_reload();
	// It may have been about any database, and this session does not know.
	if (ring_after)
		request_check(InvalidOid);
}

void on_extension(ObjectAccessType access, Oid extension)
{
	if (access == OAT_POST_CREATE || access == OAT_POST_ALTER)
	{
		// A new row is not visible yet, so its name is not known; such statements are rare enough.
		check_at_end(MyDatabaseId, false);
	}
	else if (access == OAT_DROP)
	{
		char *name = get_extension_name(extension);

		if (name != nullptr && strcmp(name, "tq") == 0)
		{
			hold(MyDatabaseId);
			request_stop(MyDatabaseId, Force::nobody);
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
		// dropdb() has checked permissions and holds the lock that new sessions wait for, but has neither
		// counted nor (WITH FORCE) terminated the sessions yet.
		hold_and_clear(database);
	}
}

void object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (next_object_access != nullptr)
		next_object_access(access, class_id, object_id, sub_id, arg);
	if (!ddl_concerns_us())
		return;
	if (class_id == ExtensionRelationId)
		on_extension(access, object_id);
	else if (class_id == DatabaseRelationId)
		on_database(access, object_id);
}

} // namespace

void install_hooks()
{
	if (IsBinaryUpgrade)
		return;
	next_object_access = object_access_hook;
	object_access_hook = object_access;
	next_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterXactCallback(transaction_ends, nullptr);
}

} // namespace tq::workers
