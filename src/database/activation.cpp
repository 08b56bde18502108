#include "database/activation.hpp"

#include "guc.hpp"
#include "database/attach.hpp"
#include "journal/journal.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/errors.hpp"
#include "pg/extension.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "commands/dbcommands.h"
}

namespace tq
{

namespace
{

Oid table(const char *name) { return get_relname_relid(name, get_namespace_oid("tq", false)); }

// The SQL of 0.1.0 lacks it.
bool has_extension_column() { return get_attnum(table("meta"), "extension") != InvalidAttrNumber; }

// Runs a statement on tq.meta as the extension's owner, with $1 to $4: server, database, extension, time. Each of the
// statements names all four.
void on_meta(Oid extension, const char *statement, bool read_only)
{
	const Oid types[] = {INT8OID, OIDOID, OIDOID, TIMESTAMPTZOID};
	const Datum values[] = {Int64GetDatum(static_cast<int64>(GetSystemIdentifier())), ObjectIdGetDatum(MyDatabaseId),
							ObjectIdGetDatum(extension), TimestampTzGetDatum(wall_now())};
	pg::sql(statement, {types, values}, read_only, 0);
}

void insert_row(Oid extension)
{
	const pg::OwnerScope scope = pg::enter_owner(extension);
	on_meta(extension,
			has_extension_column() ? "INSERT INTO tq.meta (system_identifier, database, extension, activated_at)"
									 " VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
								   : "INSERT INTO tq.meta (system_identifier, database, activated_at)"
									 " SELECT $1, $2, $4 WHERE $3 IS NOT NULL ON CONFLICT DO NOTHING",
			false);
	pg::leave_owner(scope);
}

} // namespace

Activation read_activation(Oid extension)
{
	const pg::OwnerScope scope = pg::enter_owner(extension);
	// 0.1.0 wrote its row only after the first use, and did not name the extension. So a database in use whose tq.meta
	// is still empty is active.
	constexpr const char *kUsed = "EXISTS (SELECT FROM tq.queue) OR EXISTS (SELECT FROM tq.schedule)"
								  " OR EXISTS (SELECT FROM tq.job_0) OR EXISTS (SELECT FROM tq.event_0) OR"
								  " (SELECT count(*) > 1 FROM pg_inherits WHERE inhparent = 'tq.job'::regclass)";
	const char *here =
		has_extension_column()
			? "EXISTS (SELECT FROM tq.meta WHERE system_identifier = $1 AND database = $2 AND extension = $3)"
			: psprintf("$3 IS NULL OR EXISTS (SELECT FROM tq.meta WHERE system_identifier = $1 AND database = $2)"
					   " OR (NOT EXISTS (SELECT FROM tq.meta) AND (%s))",
					   kUsed);
	on_meta(extension, psprintf("SELECT %s AS here, %s AS used, $4 AS now", here, kUsed), true);
	const bool active = pg::spi_bool(0, "here"), used = pg::spi_bool(0, "used");
	pg::leave_owner(scope);
	return active ? Activation::active : used ? Activation::inactive : Activation::unused;
}

Activation activation_of(const Db &db) { return db.active.load() ? Activation::active : read_activation(db.extension); }

bool is_active_here(Oid extension)
{
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
	{
		const Db &db = db_at(i); // without the lock: `used` is set last
		if (db.used && db.database == MyDatabaseId && db.extension == extension && db.active.load())
			return true;
	}
	const Oid schema = get_namespace_oid("tq", true);
	return OidIsValid(schema) && OidIsValid(get_relname_relid("meta", schema)) &&
		   read_activation(extension) == Activation::active;
}

void refuse_inactive()
{
	ereport(ERROR, (errcode(kErrNotLoaded), errmsg("tq is inactive in this database"),
					errdetail("The database was restored, copied or upgraded, or tq_deactivate() was called."),
						errhint("When all rows are restored, call SELECT tq_activate().")));
}

namespace
{

void (*ask_launcher)() = nullptr;

// Records the use if the database is unused and no other session writes to its tables; false otherwise. Keeps
// ShareRowExclusiveLock on some tables until the transaction ends. So a restore that begins now waits, and is refused.
bool record_use(Db &db)
{
	// "job": a restore may be creating segments
	for (const char *name : {"meta", "queue", "schedule", "job_0", "event_0", "job"})
		if (!ConditionalLockRelationOid(table(name), ShareRowExclusiveLock))
			return false;
	if (read_activation(db.extension) != Activation::unused)
		return false;
	db.new_here.store(true);
	reserve_queue_change(db);
	insert_row(db.extension);
	note_database_change(QueueEdit::used);
	return true;
}

} // namespace

void set_launcher_call(void (*ask)()) { ask_launcher = ask; }

void require_still_active(const Db &db, Oid extension)
{
	const bool same = db.used && db.database == MyDatabaseId && db.extension == extension;
	if ((same && db.active.load()) || pg::extension_gone(extension)) // if it is gone, so are the tables to read
		return;
	if (read_activation(extension) == Activation::inactive)
		refuse_inactive();
	if (!same)
		ereport(ERROR, (errcode(kErrNotLoaded), errmsg("tq was deactivated in this database while the call waited"),
						errdetail("It is active again."), errhint("Try again.")));
}

void require_active(Db &db)
{
	if (db.active.load())
		return;
	if (database_change_here(QueueEdit::switched))
		ereport(ERROR, (errcode(kErrNotLoaded), errmsg("tq is being activated or deactivated in this database"),
						errdetail("tq_activate() and tq_deactivate() take effect when their transaction commits."),
						errhint("Commit, and try again.")));
	if (database_change_here(QueueEdit::used))
		return;
	// tq_deactivate() locks the table before it clears db.active. So this cannot set it again meanwhile.
	const Oid meta = table("meta");
	if (!ConditionalLockRelationOid(meta, RowShareLock))
		ereport(ERROR, (errcode(kErrNotLoaded), errmsg("tq is being deactivated in this database"),
						errdetail("Another session has locked tq.meta."), errhint("Try again in a moment.")));
	const Activation is = read_activation(db.extension);
	TQ_WAIT_POINT("activation-after-read");
	if (is == Activation::active)
		db.set_active();
	UnlockRelationOid(meta, RowShareLock);
	if (is == Activation::inactive)
		refuse_inactive();
	if (is == Activation::active && db.scheduler.load() == 0)
		ask_launcher(); // after a start of the server there may have been no slot for this database
}

void note_use(Db &db)
{
	// Looks every 5 ms whether a worker has recorded the use. After five seconds, or at once if no worker can, this
	// session tries itself. After ten seconds it raises an error.
	constexpr int kTries = 1000;
	for (int i = 0; !db.active.load(); ++i)
	{
		if (i % 20 == 0)
			require_active(db);
		if (database_change_here(QueueEdit::used))
			return;
		const bool itself = !guc::workers || i >= kTries || (i == 0 && pg::created_here(db.extension));
		if (itself && record_use(db))
			return;
		if (i >= 2 * kTries)
			ereport(ERROR, (errcode(kErrNotLoaded), errmsg("tq cannot become active in this database"),
							errdetail("Other sessions write to the tables of tq."),
							errhint("If this is a restore, call SELECT tq_activate() after its end.")));
		if (!itself)
		{
			db.first_use.store(true);
			TQ_WAIT_POINT("use-before-request");
			if (i % 200 == 0)
				ask_launcher();
		}
		nap(5);
	}
}

Stay may_stay(Oid extension)
{
	Db *db = find_db(extension);
	const bool asked = db != nullptr && db->first_use.exchange(false); // note_use() repeats the request while it waits
	const Activation is = read_activation(extension);
	TQ_WAIT_POINT("activation-read-by-worker");
	if (is == Activation::inactive)
		ereport(LOG, (errmsg("tq: inactive in database \"%s\": it was restored, copied or upgraded, or deactivated",
							 get_database_name(MyDatabaseId)),
					  errhint("When all rows are restored, call SELECT tq_activate().")));
	if (is == Activation::inactive || (is == Activation::unused && !asked))
		return Stay::no;
	db = find_or_make_slot(extension);
	if (db == nullptr)
		return Stay::full;
	if (is == Activation::active)
		require_active(*db);
	else if (!record_use(*db))
		return Stay::later;
	TQ_WAIT_POINT("activation-before-commit");
	return Stay::yes;
}

void write_activation(Db &db, bool active)
{
	reserve_queue_change(db);
	if (active)
	{
		insert_row(db.extension);
		note_database_change(QueueEdit::used);
		reserve_queue_change(db); // each note uses one
	}
	else
	{
		const pg::OwnerScope scope = pg::enter_owner(db.extension);
		on_meta(db.extension,
				"DELETE FROM tq.meta WHERE system_identifier = $1 AND database = $2 AND extension = $3"
				" AND $4 IS NOT NULL",
				false);
		pg::leave_owner(scope);
	}
	note_database_change(QueueEdit::switched);
}

const char *incomplete_segments()
{
	StringInfoData numbers;
	initStringInfo(&numbers);
	for (const journal::SegmentTables &s : journal::list_segments())
		if (!s.complete)
			appendStringInfo(&numbers, "%s%d", numbers.len > 0 ? ", " : "", s.tables.number);
	return numbers.len > 0 ? numbers.data : nullptr;
}

} // namespace tq
