#include "database/restoring.hpp"

#include "guc.hpp"
#include "journal/journal.hpp"
#include "segments/segments.hpp"
#include "shmem/waiting.hpp"
#include "pg/errors.hpp"

extern "C"
{
#include "catalog/pg_db_role_setting.h"
}

namespace tq
{

namespace
{

// The lowest bits of Db::restoring are the result of the last check; the others count changes. So a check that began
// before a change stores no result.
constexpr uint32 kUnknown = 0, kOff = 1, kOn = 2, kAnswer = 3;

bool is_on(Datum settings)
{
	static constexpr char kName[] = "tq.restoring=";
	ArrayIterator each = array_create_iterator(DatumGetArrayTypeP(settings), 0, nullptr);
	Datum setting = 0;
	bool isnull = false, on = false;
	while (array_iterate(each, &setting, &isnull))
	{
		const char *line = isnull ? "" : TextDatumGetCString(setting);
		if (strncmp(line, kName, sizeof(kName) - 1) == 0)
			static_cast<void>(parse_bool(line + sizeof(kName) - 1, &on));
	}
	array_free_iterator(each);
	return on;
}

// With a latest snapshot: the invalidations of a commit come after its callbacks.
bool read_setting()
{
	Relation rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(MyDatabaseId));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(InvalidOid));
	SysScanDesc scan = systable_beginscan(rel, DbRoleSettingDatidRolidIndexId, true, snapshot, 2, keys);
	HeapTuple tuple = systable_getnext(scan);
	bool isnull = true;
	const Datum settings = HeapTupleIsValid(tuple)
							   ? heap_getattr(tuple, Anum_pg_db_role_setting_setconfig, RelationGetDescr(rel), &isnull)
							   : 0;
	const bool on = !isnull && is_on(settings);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return on;
}

Db *slot_here() noexcept
{
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
			return &db_at(i);
	return nullptr;
}

} // namespace

bool is_restoring(Db &db)
{
	for (;;)
	{
		uint32 seen = db.restoring.load();
		if ((seen & kAnswer) != kUnknown)
			return (seen & kAnswer) == kOn;
		const uint32 answer = read_setting() ? kOn : kOff;
		db.restoring.compare_exchange_strong(seen, seen | answer);
	}
}

bool may_be_restoring(const Db &db) noexcept { return (db.restoring.load() & kAnswer) != kOff; }

void refuse_while_restoring()
{
	Db *db = slot_here();
	if (db != nullptr ? is_restoring(*db) : read_setting())
		ereport(ERROR,
				(errcode(kErrNotLoaded), errmsg("this database is being restored"),
				 errdetail("The setting tq.restoring of the database is on; until its end queues cannot be used."),
				 errhint("Call tq_restore_end() when the restore is complete.")));
}

void restoring_changed(Oid database) noexcept
{
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
	{
		Db &db = db_at(i);
		if (!db.used || (OidIsValid(database) && db.database != database))
			continue;
		for (uint32 seen = db.restoring.load(); !db.restoring.compare_exchange_weak(seen, (seen | kAnswer) + 1);)
			;
		wake_scheduler(db);
	}
}

bool restore_seen_within(const Db &db, Micros length) noexcept
{
	const Micros since = db.outside_changed_at.load(), now = wall_now();
	return since <= now && now < since + length;
}

bool restore_may_be_under_way(const Db &db) noexcept
{
	return may_be_restoring(db) || db.outside_changes.load() != db.outside_adopted.load() ||
		   restore_seen_within(db, 600 * core::kSecond);
}

bool copy_is_coming(const Db &db) noexcept
{
	return db.dormant.load() && db.outside_changes.load() != 0 && restore_may_be_under_way(db);
}

const char *incomplete_segments(const Db &db)
{
	journal::SegmentTables *list = nullptr;
	const int n = journal::list_segments(&list);
	StringInfoData numbers;
	initStringInfo(&numbers);
	for (int i = 0; i < n; ++i)
		if (!list[i].complete && !is_mapped(db, list[i].tables.job))
			appendStringInfo(&numbers, "%s%d", numbers.len > 0 ? ", " : "", list[i].tables.number);
	return numbers.len > 0 ? numbers.data : nullptr;
}

void forget_last_change(Db &db) noexcept { db.outside_changed_at.store(0); }

} // namespace tq
