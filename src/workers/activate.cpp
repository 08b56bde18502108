// tq_activate, tq_deactivate: the switch of a database between active and inactive (database/activation.hpp). Both stop
// the workers and drop the live state. The next scheduler, or the next call, loads it as after a restart.
// Regime: PG. Locks: ddl_lock_tag of the database; all tables of the schema tq in ShareRowExclusiveLock, or tq.meta in
// ExclusiveLock; all to the end of the transaction.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "handlers/handler_function.hpp"
#include "journal/journal.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "queues/stored_roles.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "transaction/pending.hpp"
#include "transaction/queue_changes.hpp"
#include "workers/lifecycle_hooks.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/rows.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "commands/dbcommands.h"
}

namespace tq
{

namespace
{

// Rows that lack others, one for each. A job that was moved has a row in its old segment, too, with an event 'm' there.
constexpr const char *kDamage =
	"WITH gone AS (SELECT j.tableoid, j.id, 'its queue is missing' AS problem FROM tq.job j"
	"  WHERE NOT EXISTS (SELECT FROM tq.queue q WHERE q.id = j.queue_id)"
	" UNION ALL SELECT j.tableoid, j.id, 'it waits for parents, but tq.dependency does not name them' FROM tq.job j"
	"  WHERE j.depends_on IS NOT NULL AND NOT EXISTS (SELECT FROM tq.dependency d WHERE d.child_id = j.id)"
	"  AND NOT EXISTS (SELECT FROM tq.batch b WHERE b.id = j.id)"
	"  AND NOT EXISTS (SELECT FROM tq.event e WHERE e.job_id = j.id AND e.type = 'u')),"
	"damage AS (SELECT g.tableoid, g.id, g.problem FROM gone g WHERE coalesce((SELECT e.type FROM tq.event e"
	"  WHERE e.job_id = g.id AND e.type <> ALL ('{o,k,a,u,S}') ORDER BY e.step DESC LIMIT 1), 'n')"
	"  <> ALL ('{s,d,b,x,e,p,m}')"
	" UNION ALL SELECT DISTINCT e.tableoid, e.job_id, 'an event of a job that is missing' FROM tq.event e"
	"  WHERE NOT EXISTS (SELECT FROM tq.job j WHERE j.id = e.job_id)"
	" UNION ALL SELECT d.tableoid, d.child_id, 'a dependency of a job that is missing' FROM tq.dependency d"
	"  WHERE NOT EXISTS (SELECT FROM tq.job j WHERE j.id = d.child_id)"
	" UNION ALL SELECT d.tableoid, d.child_id, 'it depends on job ' || d.parent_id || ', which is missing'"
	"  FROM tq.dependency d WHERE d.parent_id > 0 AND d.state IS NULL"
	"  AND NOT EXISTS (SELECT FROM tq.job j WHERE j.id = d.parent_id)%s)"
	" SELECT c.relname::text AS relation, d.id, d.problem FROM damage d JOIN pg_class c ON c.oid = d.tableoid"
	" ORDER BY 1, 2, 3";

// Part of kDamage. The next queue that gets the id would inherit these rows. A schedule creates its queue, so it needs
// none.
constexpr const char *kSettings = " UNION ALL SELECT s.tableoid, s.queue_id, 'a setting of a queue that is missing'"
								  " FROM tq.%s s WHERE s.queue_id <> 0"
								  " AND NOT EXISTS (SELECT FROM tq.queue q WHERE q.id = s.queue_id)";
constexpr const char *kSettingTables[] = {"acl", "handler", "group_setting", "subscription"};

bool is_setting(const char *relation) noexcept
{
	return std::any_of(std::begin(kSettingTables), std::end(kSettingTables),
					   [relation](const char *name) noexcept { return strcmp(name, relation) == 0; });
}

const char *damage_query()
{
	StringInfoData settings;
	initStringInfo(&settings);
	for (const char *name : kSettingTables)
		if (OidIsValid(get_relname_relid(name, get_namespace_oid("tq", false)))) // 0.1.0 lacks some
			appendStringInfo(&settings, kSettings, name);
	return psprintf(kDamage, settings.data);
}

struct Damage
{
	uint64 n;
	const char **relations;
	int64 *ids;
	const char **problems;
};

// In the caller's memory.
Damage read_damage(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(damage_query(), {}, true, 0);
	const MemoryContext inner = MemoryContextSwitchTo(scope.outside);
	Damage found{};
	found.n = SPI_processed;
	found.relations = static_cast<const char **>(palloc(sizeof(char *) * (found.n + 1)));
	found.problems = static_cast<const char **>(palloc(sizeof(char *) * (found.n + 1)));
	found.ids = static_cast<int64 *>(palloc(sizeof(int64) * (found.n + 1)));
	for (uint64 i = 0; i < found.n; ++i)
	{
		found.relations[i] = pstrdup(pg::spi_text(i, "relation"));
		found.problems[i] = pstrdup(pg::spi_text(i, "problem"));
		found.ids[i] = pg::spi_int8(i, "id");
	}
	MemoryContextSwitchTo(inner);
	pg::leave_owner(scope);
	return found;
}

[[noreturn]] void refuse_damage(const Damage &found)
{
	constexpr uint64 kShown = 10;
	StringInfoData list;
	initStringInfo(&list);
	for (uint64 i = 0; i < std::min(found.n, kShown); ++i)
		appendStringInfo(&list, "%s%s, %s " INT64_FORMAT ": %s", i > 0 ? "; " : "", found.relations[i],
						 is_setting(found.relations[i]) ? "queue" : "job", found.ids[i], found.problems[i]);
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("rows of tq are missing: " UINT64_FORMAT " others refer to them", found.n),
					errdetail("%s%s.", list.data, found.n > kShown ? "; and more" : ""),
					errhint("Restore them. Or look at all with tq_activate(dry_run => true), and end these jobs with "
							"tq_activate(discard => true).")));
}

// Cancels the jobs and deletes the other rows. The resolver takes missing parents as ended.
void discard(const Db &db, const Damage &found)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	for (uint64 i = 0; i < found.n; ++i)
	{
		const char *relation = found.relations[i];
		const Oid types[] = {INT8OID, TEXTOID, TIMESTAMPTZOID};
		const Datum values[] = {Int64GetDatum(found.ids[i]), CStringGetTextDatum(found.problems[i]),
								TimestampTzGetDatum(wall_now())};
		if (strncmp(relation, "job_", 4) == 0)
			pg::sql(psprintf("INSERT INTO tq.event_%s (job_id, at, step, type, reason) SELECT $1, $3, least(coalesce("
							 "(SELECT max(step) FROM tq.event WHERE job_id = $1), 0), 2147483646) + 1, 'x', $2"
							 // after the greatest step there is no other
							 " ON CONFLICT (job_id, step) DO UPDATE SET at = $3, type = 'x', reason = $2",
							 relation + 4),
					{types, values}, false, 0);
		else if (strncmp(relation, "event_", 6) == 0)
			pg::sql(psprintf("DELETE FROM tq.%s WHERE job_id = $1 AND $2 IS NOT NULL AND $3 IS NOT NULL", relation),
					{types, values}, false, 0);
		else if (is_setting(relation))
			pg::sql(psprintf("DELETE FROM tq.%s s WHERE queue_id = $1 AND $2 IS NOT NULL AND $3 IS NOT NULL"
							 " AND NOT EXISTS (SELECT FROM tq.queue q WHERE q.id = s.queue_id)",
							 relation),
					{types, values}, false, 0);
		else
			pg::sql("DELETE FROM tq.dependency d WHERE child_id = $1 AND $2 IS NOT NULL AND $3 IS NOT NULL"
					" AND NOT EXISTS (SELECT FROM tq.job j WHERE j.id = $1)",
					{types, values}, false, 0);
	}
	pg::leave_owner(scope);
}

// Processes that have tq's tables open for writing or DDL; their rows are not visible yet. Excludes autovacuum and tq.
// Null if there are none.
const char *processes_that_write(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::server_sql(
		"SELECT string_agg(DISTINCT coalesce('process ' || l.pid, 'a prepared transaction'), ', ') AS found"
		" FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
		" WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind IN ('r', 'p') AND l.pid IS DISTINCT FROM "
		"pg_backend_pid()"
		" AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
		" AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock')"
		" AND coalesce(a.backend_type, '') !~ '^(tq |autovacuum)'",
		1);
	const char *found = pg::outside(scope, [] { return pg::spi_text(0, "found"); });
	pg::leave_owner(scope);
	return found;
}

// Keeps writers out until the transaction ends. A writer that is at work raises an error.
void lock_tables(const Db &db)
{
	const char *found = processes_that_write(db);
	if (found != nullptr)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE), errmsg("the tables of tq are being written"),
						errdetail("They are written or changed by %s.", found),
						errhint("Call tq_activate() after the end of the restore.")));
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT string_agg('tq.' || quote_ident(relname), ', ' ORDER BY oid) AS tables FROM pg_class"
			" WHERE relnamespace = 'tq'::regnamespace AND relkind = 'r'",
			{}, true, 1);
	// waits for autovacuum
	static_cast<void>(set_config_option("lock_timeout", psprintf("%d", guc::load_timeout), PGC_USERSET, PGC_S_SESSION,
										GUC_ACTION_SAVE, true, 0, false));
	pg::sql(psprintf("LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE", pg::spi_text(0, "tables")), {}, false, 0);
	pg::leave_owner(scope);
}

// Raises an error if rows are in a segment whose ids are others.
void require_ranges()
{
	const pg::Array<journal::SegmentTables> list = journal::list_segments();
	auto *bounds = static_cast<int64 *>(palloc(sizeof(int64) * 2 * static_cast<Size>(list.n + 1)));
	static_cast<void>(read_bounds(list, bounds, bounds + list.n));
}

// Makes the registries agree with the tables. All segments count as unfinished: the first load reads them.
void repair(const Db &db)
{
	journal::enable_triggers(db.extension);
	journal::adopt_segments(db.extension);
	pg::Array<Datum> numbers;
	for (const journal::SegmentTables &s : journal::list_segments())
		numbers.append(CurrentMemoryContext, Int32GetDatum(s.tables.number));
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4ARRAYOID, TIMESTAMPTZOID};
	const Datum values[] = {PointerGetDatum(construct_array(numbers.data, static_cast<int>(numbers.n), INT4OID,
															sizeof(int32), true, TYPALIGN_INT)),
							TimestampTzGetDatum(wall_now())};
	pg::sql("DELETE FROM tq.segment WHERE number <> ALL ($1) AND $2 IS NOT NULL", {types, values}, false, 0);
	pg::sql("INSERT INTO tq.segment (number, opened_at) SELECT number, $2 FROM unnest($1) number WHERE number > 0"
			" ON CONFLICT (number) DO UPDATE SET finished_at = NULL WHERE segment.finished_at IS NOT NULL",
			{types, values}, false, 0);
	pg::sql("SELECT setval('tq.queue_id_seq', m) FROM (SELECT max(id) AS m FROM tq.queue) q"
			" WHERE m > (SELECT last_value FROM tq.queue_id_seq)",
			{}, false, 0);
	if (OidIsValid(get_relname_relid("audit_id_seq", get_namespace_oid("tq", false)))) // 0.1.0 lacks it
		pg::sql("SELECT setval('tq.audit_id_seq', m) FROM (SELECT max(id) AS m FROM tq.audit) a"
				" WHERE m > (SELECT last_value FROM tq.audit_id_seq)",
				{}, false, 0);
	pg::leave_owner(scope);
}

// Returns the slot, which is a new one: the live state that calls have loaded goes. Until the commit, calls of other
// sessions raise TQ009 and load nothing.
Db &activate(Db &before, bool discards)
{
	const Oid extension = before.extension;
	lock_out_workers(MyDatabaseId);
	lock_tables(before);
	release_db(before, MyDatabaseId, extension);
	Db &db = database_slot(extension);
	const char *segments = incomplete_segments();
	if (segments != nullptr)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("the restore is not complete"),
						errdetail("Indexes or triggers are missing on segments: %s.", segments),
						errhint("Complete the restore, or drop the tables that are left over, and try again.")));
	require_ranges();
	const Damage found = read_damage(db);
	if (found.n > 0 && !discards)
		refuse_damage(found);
	discard(db, found);
	repair(db);
	write_activation(db, true);
	ereport(LOG, (errmsg("tq: active in database \"%s\"", get_database_name(MyDatabaseId)),
				  found.n > 0 ? errdetail(UINT64_FORMAT " rows that lacked others were discarded.", found.n) : 0));
	return db;
}

// Whether an open transaction has changed a job or enqueued to a queue, or a call reads jobs in.
bool has_users(const Db &db) noexcept
{
	if (db.loader.load() != 0 || db.timer_loader.load() != 0 ||
		any_queue(db, [](uint16_t, const Queue &q) noexcept { return q.users.load() > 0; }))
		return true;
	const uint16_t d = index_of(db);
	for (core::Ref r = 0; r < engine.limits().entries; ++r)
	{
		const core::Entry &e = engine.entry(r);
		// an expired job that a claim has set aside waits for a scheduler, not for a transaction
		const bool marked = e.mark != core::Verb::none && e.owner != core::kNil;
		if (e.state != core::State::none && (marked || e.state == core::State::placeholder) &&
			engine.queue(e.queue).db == d)
			return true;
	}
	return false;
}

// New calls already raise TQ009.
void wait_for_users(const Db &db)
{
	const core::Micros until = steady_now() + guc::load_timeout * core::Micros{1000};
	for (;;)
	{
		const char *found = processes_that_write(db);
		if (found == nullptr && !has_users(db))
			return;
		if (steady_now() >= until)
			ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE), errmsg("tq is in use by open transactions"),
							errdetail("%s.", found != nullptr ? psprintf("Tables of tq are locked by %s", found)
															  : "Their transactions hold jobs"),
							errhint("End these transactions, and try again.")));
		nap(100);
	}
}

void warn_of_roles(const Db &db)
{
	if (const char *names = missing_roles(db); names != nullptr)
		ereport(WARNING, (errmsg("roles that tq names do not exist here: %s", names),
						  errhint("Create them, and call tq_activate() again. Until then these rows have no effect.")));
}

void refuse_in_use(const char *function)
{
	if (op_count() > 0 || has_bulks() || queue_changes_pending())
		ereport(ERROR, (errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
						errmsg("%s cannot be called in a transaction that has used tq", function),
						errhint("Call it in a transaction of its own.")));
}

} // namespace

// discard, dry_run; the function of 0.1.0 has no arguments and no result
TQ_FUNCTION(tq_activate)
{
	require_writable("tq_activate()");
	const bool discards = PG_NARGS() > 0 && given(fcinfo, 0) && PG_GETARG_BOOL(0);
	const bool dry_run = PG_NARGS() > 1 && given(fcinfo, 1) && PG_GETARG_BOOL(1);
	Db &before = database_slot(fcinfo);
	require_right_everywhere(before, "function tq_activate", kManage);
	static constexpr pg::ColumnSpec kColumns[] = {{"relation", TEXTOID}, {"id", INT8OID}, {"problem", TEXTOID}};
	const bool returns_rows = PG_NARGS() > 0;
	const pg::RowSet rows = returns_rows ? pg::begin_rows(fcinfo, pg::row_shape(kColumns)) : pg::RowSet{};
	const Activation was = activation_of(before);
	if (was == Activation::inactive && (dry_run || discards))
	{
		const Damage found = read_damage(before);
		for (uint64 i = 0; returns_rows && i < found.n; ++i)
		{
			Datum values[] = {CStringGetTextDatum(found.relations[i]), Int64GetDatum(found.ids[i]),
							  CStringGetTextDatum(found.problems[i])};
			bool nulls[] = {false, false, false};
			rows.put(values, nulls);
		}
	}
	if (was == Activation::unused && !dry_run)
		note_use(before);
	const bool activates = was == Activation::inactive && !dry_run;
	if (activates)
		refuse_in_use("tq_activate()");
	Db &db = activates ? activate(before, discards) : before;
	const bool resolves = !dry_run && resolve_roles(db) > 0;
	if (activates || resolves)
	{
		bind_handlers(db.extension, get_func_namespace(fcinfo->flinfo->fn_oid), !activates);
		record_action(db, "activate", kAllQueues);
	}
	warn_of_roles(db);
	return static_cast<Datum>(0);
}

TQ_FUNCTION(tq_deactivate)
{
	require_writable("tq_deactivate()");
	Db &db = database_slot(fcinfo);
	require_right_everywhere(db, "function tq_deactivate", kManage);
	refuse_in_use("tq_deactivate()");
	if (activation_of(db) != Activation::active)
		PG_RETURN_VOID();
	lock_out_workers(MyDatabaseId);
	LockRelationOid(get_relname_relid("meta", get_namespace_oid("tq", false)), ExclusiveLock);
	db.active.store(false); // after a rollback the next call reads the table
	TQ_WAIT_POINT("deactivate-before-users");
	wait_for_users(db);
	write_activation(db, false);
	record_action(db, "deactivate", kAllQueues);
	ereport(LOG, (errmsg("tq: inactive in database \"%s\" from now on", get_database_name(MyDatabaseId))));
	release_db(db, MyDatabaseId, db.extension); // gives the slot back, even if the transaction then rolls back
	TQ_WAIT_POINT("deactivate-after-release");
	PG_RETURN_VOID();
}

} // namespace tq
