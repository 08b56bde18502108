// tq_restore_end: ends a restore announced by ALTER DATABASE ... SET tq.restoring = on (database/restoring.hpp).
// Regime: PG. Locks: see residency/recount.hpp.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "database/restoring.hpp"
#include "processes/slots.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "residency/recount.hpp"
#include "residency/restore_end.hpp"
#include "segments/segments.hpp"
#include "pg/errors.hpp"
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

void nap()
{
	static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

} // namespace

const char *processes_that_write(const Db &db)
{
	const MemoryContext caller = CurrentMemoryContext;
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
	const MemoryContext inner = MemoryContextSwitchTo(caller);
	const char *found = pg::spi_text(0, "found");
	MemoryContextSwitchTo(inner);
	pg::leave_owner(scope);
	MemoryContextSwitchTo(caller);
	return found;
}

namespace
{

void require_no_writers(const Db &db)
{
	const char *found = processes_that_write(db);
	if (found != nullptr)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE), errmsg("the restore is not complete"),
						errdetail("Tables of tq are being written or changed by %s.", found),
						errhint("Call tq_restore_end() after the end of the restore.")));
}

// Makes the janitor compare the segments and count the journal.
void take_in(Db &db)
{
	CountResult first{};
	while (db.load_state.load() != static_cast<uint32>(LoadState::loaded) && !load_or_count(db, &first))
		nap();
	const int64 audits = db.audits.load();
	db.tidying.until.store(0);
	db.reload.store(true);
	for (const core::Micros until = steady_now() + guc::load_timeout * core::Micros{1000};
		 db.audits.load() == audits || db.loader.load() != 0; nap())
	{
		const bool comes = db.scheduler.load() != 0 && request_janitor(MyDatabaseId);
		if (db.tidying.until.load() != 0 || (!comes && steady_now() >= until))
			ereport(ERROR,
					(errcode(kErrNotLoaded), errmsg("the janitor of this database could not read the restored tables"),
					 errhint("See the server log, and whether tq.workers is on; then try again.")));
	}
	if (db.outside_adopted.load() == db.outside_changes.load())
		return;
	const char *numbers = incomplete_segments(db);
	ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE), errmsg("the restore is not complete"),
					numbers != nullptr ? errdetail("Indexes or triggers are missing on segments: %s.", numbers)
									   : errdetail("Tables of tq have changed meanwhile, or are locked."),
					errhint("Complete the restore, or drop the tables that are left over, and try again.")));
}

// With the caller's rights, like the statement that set it.
void reset_setting()
{
	const char *database = get_database_name(MyDatabaseId);
	if (database == nullptr || SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "cannot reset tq.restoring");
	const int rc = SPI_execute(psprintf("ALTER DATABASE %s RESET tq.restoring", quote_identifier(database)), false, 0);
	if (rc < 0)
		elog(ERROR, "SPI failed: %s", SPI_result_code_string(rc));
	SPI_finish();
}

// What still waits for an administrator after the restore; null if nothing.
const char *what_is_held(const Db &db, const CountResult &count)
{
	StringInfoData text;
	initStringInfo(&text);
	const auto put = [&text](const char *what) { appendStringInfo(&text, "%s%s", text.len > 0 ? "; " : "", what); };
	if (read_identity(db) == Identity::copy)
		put("schedules and executors, until tq_activate()");
	if (count.unknown > 0)
		put(psprintf("%lld jobs of unknown queues", static_cast<long long>(count.unknown)));
	if (count.orphans > 0)
		put(psprintf("%lld blocked jobs that no parent frees", static_cast<long long>(count.orphans)));
	return text.len > 0 ? text.data : nullptr;
}

} // namespace
} // namespace tq

using namespace tq;

TQ_FUNCTION(tq_restore_end)
{
	PreventCommandIfReadOnly("tq_restore_end()");
	Db &db = database(fcinfo);
	require_right_everywhere(db, "tq_restore_end", kManage);
	static constexpr pg::ColumnSpec kColumns[] = {
		{"jobs", INT8OID}, {"unfinished", INT8OID}, {"segments", INT4OID}, {"held", TEXTOID}};
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kColumns));
	const bool restoring = is_restoring(db);
	require_no_writers(db);
	take_in(db);
	CountResult count{};
	while (!load_or_count(db, &count))
		nap();
	require_no_writers(db);
	if (db.outside_adopted.load() != db.outside_changes.load())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE), errmsg("the restore is not complete"),
						errdetail("Tables of tq have changed meanwhile."), errhint("Try again.")));
	if (restoring)
		reset_setting(); // the workers and other sessions see it when this transaction commits
	forget_last_change(db);
	record_action(db, "restore_end", kAllQueues);
	db.reload.store(true); // the janitor has skipped empty segments
	journal::SegmentTables *list = nullptr;
	const int segments = journal::list_segments(&list);
	const char *held = what_is_held(db, count);
	ereport(LOG, (errmsg("tq: restore complete: %lld jobs, %lld of them unfinished, in %d segments",
						 static_cast<long long>(count.jobs), static_cast<long long>(count.unfinished), segments),
				  held != nullptr ? errdetail("Held: %s.", held) : 0));
	Datum values[] = {Int64GetDatum(count.jobs), Int64GetDatum(count.unfinished), Int32GetDatum(segments),
					  held != nullptr ? CStringGetTextDatum(held) : static_cast<Datum>(0)};
	bool nulls[] = {false, false, false, held == nullptr};
	rows.put(values, nulls);
	return static_cast<Datum>(0);
}
