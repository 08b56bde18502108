#include "segments/reopening.hpp"

#include "guc.hpp"
#include "segments/segments.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// Map lock held exclusively. A session's lock on one of the segment's tables keeps the janitor from finishing it again.
// If no job lives in it afterwards, the janitor finishes it later.
bool unfinish(SegmentSlot &s) noexcept
{
	s.ended.store(kAnyEnd);
	if (s.state != SegmentState::finished)
		return false;
	s.state = SegmentState::sealed;
	return true;
}

// The segment of a table in a map, or null.
SegmentSlot *slot_of_table(const Db &db, Oid table) noexcept
{
	for (int i = 0; i < db.nsegments; ++i)
	{
		SegmentSlot &s = segment_at(db, i);
		if (s.state != SegmentState::free && (s.job == table || s.event == table))
			return &s;
	}
	return nullptr;
}

// Rows written outside tq were not counted, so the number of dead jobs is unknown.
void unfinish_written(SegmentSlot &s) noexcept
{
	static_cast<void>(unfinish(s));
	if (s.number != 0)
		s.dead.store(kDeadUnknown);
}

// Returns false if memory knows that this table's segment was never finished. Otherwise marks it unfinished in its map.
bool may_be_finished(Oid table) noexcept
{
	bool known = false, was = false;
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
	{
		Db &db = db_at(i);
		if (!db.used || db.database != MyDatabaseId)
			continue;
		LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
		if (SegmentSlot *s = slot_of_table(db, table))
		{
			unfinish_written(*s);
			known = true;
			was = was || s->finished_at != 0; // it stays set when the segment is reopened
		}
		LWLockRelease(map_lock(db));
	}
	return was || !known;
}

// The table's triggers were off. A transaction that wrote to it has committed, but may still hold its lock.
void untold(Oid table, void *arg)
{
	const Db &db = *static_cast<Db *>(arg);
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	if (SegmentSlot *s = slot_of_table(db, table))
		unfinish_written(*s);
	LWLockRelease(map_lock(db));
}

// Runs in an owner's scope. Reopens segments that are finished in memory but not in tq.segment: when the map was made,
// the transaction that wrote into the segment had not committed.
void unfinish_unrecorded(const Db &db)
{
	pg::sql("SELECT number FROM tq.segment WHERE finished_at IS NULL", {}, false, 0);
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		const int32 number = pg::spi_int4(i, "number", -1);
		LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
		for (int k = 0; k < db.nsegments; ++k)
			if (segment_at(db, k).number == number && segment_at(db, k).state == SegmentState::finished)
				unfinish_written(segment_at(db, k));
		LWLockRelease(map_lock(db));
	}
}

// Runs in an owner's scope; returns the number of rows. Skips rows that another transaction has locked (P4).
uint64 unrecord(Datum *numbers, int n)
{
	const Oid types[] = {INT4ARRAYOID};
	const Datum values[] = {PointerGetDatum(construct_array(numbers, n, INT4OID, sizeof(int32), true, TYPALIGN_INT))};
	pg::sql("WITH free AS (SELECT number FROM tq.segment WHERE number = ANY ($1) AND finished_at IS NOT NULL"
			" FOR UPDATE SKIP LOCKED)"
			" UPDATE tq.segment s SET finished_at = NULL FROM free WHERE s.number = free.number",
			{types, values}, false, 0);
	return SPI_processed;
}

} // namespace

void reopen_segment(Db &db, int slot)
{
	journal::Segment tables;
	if (!tables_at(db, slot, &tables))
		return;
	LockRelationOid(tables.event, RowExclusiveLock);
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	SegmentSlot &s = segment_at(db, slot);
	const bool same = s.number == tables.number && s.event == tables.event; // it may have been dropped during the wait
	if (same)
	{
		// The count excludes dead jobs past their retention. The revived job may be one of them, and may die again.
		if (s.number != 0 &&
			(s.state == SegmentState::finished || (s.state == SegmentState::sealed && s.dead.load() <= 0)))
			s.dead.store(kDeadUnknown);
		static_cast<void>(unfinish(s));
	}
	LWLockRelease(map_lock(db));
	if (!same)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("segment %d has just been dropped", tables.number),
				 errdetail("The job was in it; another segment has its place in memory."), errhint("Try again.")));
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID};
	Datum values[] = {Int32GetDatum(tables.number)};
	const bool opened = unrecord(values, 1) > 0;
	pg::sql("SELECT 1 FROM tq.segment WHERE number = $1 AND finished_at IS NOT NULL", {types, values}, false, 1);
	if (!opened && SPI_processed > 0)
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("segment %d is being opened again by another transaction", tables.number),
						errdetail("A job of it that had ended is being retried there."),
						errhint("Try again when that transaction has ended.")));
	pg::leave_owner(scope);
}

void reopen_written(Oid table)
{
	// Triggers fire for each row under logical replication.
	static FullTransactionId last_id;
	static SubTransactionId last_sub;
	static Oid last_table;
	const FullTransactionId id = GetTopFullTransactionIdIfAny();
	const SubTransactionId sub = GetCurrentSubTransactionId();
	if (!FullTransactionIdIsValid(id)) // a statement without rows
		return;
	if (FullTransactionIdEquals(id, last_id) && sub == last_sub && table == last_table)
		return;
	if (may_be_finished(table))
	{
		const Oid extension = get_extension_oid("tq", true);
		if (!OidIsValid(extension))
			return;
		TQ_WAIT_POINT("reopen-before-row");
		// Finds the row by the table, which memory may not know yet. Waits, like any UPDATE, for another transaction
		// that has locked the row. That transaction may have reopened the segment and roll back, or the server may
		// crash before its commit: without the wait, the segment would then be finished with the rows written here.
		const pg::OwnerScope scope = pg::enter_owner(extension);
		const Oid types[] = {OIDOID};
		const Datum values[] = {ObjectIdGetDatum(table)};
		pg::sql("UPDATE tq.segment s SET finished_at = NULL FROM pg_class c"
				" WHERE c.oid = $1 AND c.relname IN ('job_' || s.number, 'event_' || s.number) AND s.finished_at IS "
				"NOT NULL",
				{types, values}, false, 0);
		pg::leave_owner(scope);
	}
	last_id = id;
	last_sub = sub;
	last_table = table;
}

void reopen_untold(Db &db)
{
	journal::enable_triggers(db.extension, untold, &db);
	const auto max = static_cast<Size>(guc::max_segments);
	auto *tables = static_cast<journal::Segment *>(palloc(sizeof(journal::Segment) * max));
	auto *slots = static_cast<int *>(palloc(sizeof(int) * max));
	auto *numbers = static_cast<Datum *>(palloc(sizeof(Datum) * max));
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	unfinish_unrecorded(db);
	const int n = live_segments(db, tables, slots, guc::max_segments);
	for (int i = 0; i < n; ++i)
		numbers[i] = Int32GetDatum(tables[i].number);
	static_cast<void>(unrecord(numbers, n));
	pg::leave_owner(scope);
}

} // namespace tq
