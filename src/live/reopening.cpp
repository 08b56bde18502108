#include "live/reopening.hpp"

#include "guc.hpp"
#include "live/segments.hpp"
#include "pg/owner.hpp"

namespace tq::live
{

namespace
{

// Map lock held exclusively. Whoever holds a lock on one of its tables keeps the janitor from finishing it again; if nothing lives in it in
// the end, the janitor does.
bool unfinish(SegmentSlot &s) noexcept
{
	if (s.state != SegmentState::finished)
		return false;
	s.state = SegmentState::sealed;
	return true;
}

// The segment of a table in a map; null if it has none.
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

// What was written past tq was never counted, so how many of its dead there are is not known any more.
void unfinish_written(SegmentSlot &s) noexcept
{
	static_cast<void>(unfinish(s));
	if (s.number != 0)
		s.dead.store(kDeadUnknown);
}

// False if memory knows that the segment of this table never was finished. Else it is not any more, as far as memory knows of it.
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
			was = was || s->finished_at != 0; // it stays when the segment is opened again
		}
		LWLockRelease(map_lock(db));
	}
	return was || !known;
}

// The triggers of this table were off. Whoever wrote to it has committed, but may not have left its lock yet.
void untold(Oid table, void *arg)
{
	const Db &db = *static_cast<Db *>(arg);
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	if (SegmentSlot *s = slot_of_table(db, table))
		unfinish_written(*s);
	LWLockRelease(map_lock(db));
}

// In an owner's scope: segments that memory has as finished and tq.segment has not. Who wrote into one before there was a map had his
// commit to come when it was made.
void unfinish_unrecorded(const Db &db)
{
	pg::sql("SELECT number FROM tq.segment WHERE finished_at IS NULL", 0, nullptr, nullptr, nullptr, false, 0);
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		bool isnull = false;
		const int32 number = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
		for (int k = 0; k < db.nsegments; ++k)
			if (segment_at(db, k).number == number && segment_at(db, k).state == SegmentState::finished)
				unfinish_written(segment_at(db, k));
		LWLockRelease(map_lock(db));
	}
}

// In an owner's scope; returns how many. Whoever has such a row is not waited for (P4).
uint64 unrecord(Datum *numbers, int n)
{
	const Oid types[] = {INT4ARRAYOID};
	const Datum values[] = {PointerGetDatum(construct_array(numbers, n, INT4OID, sizeof(int32), true, TYPALIGN_INT))};
	pg::sql("WITH free AS (SELECT number FROM tq.segment WHERE number = ANY ($1) AND finished_at IS NOT NULL"
			" FOR UPDATE SKIP LOCKED)"
			" UPDATE tq.segment s SET finished_at = NULL FROM free WHERE s.number = free.number",
			1, types, values, nullptr, false, 0);
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
	const bool same = s.number == tables.number && s.event == tables.event; // while we waited it may have been dropped
	if (same)
	{
		// letters whose time was over have been taken off the count, and one of them may be what is brought back, to die again
		if (s.number != 0 && (s.state == SegmentState::finished || (s.state == SegmentState::sealed && s.dead.load() <= 0)))
			s.dead.store(kDeadUnknown);
		static_cast<void>(unfinish(s));
	}
	LWLockRelease(map_lock(db));
	if (!same)
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("segment %d has just been dropped", tables.number),
						errdetail("The job was in it; another segment has its place in memory."), errhint("Try again.")));
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID};
	Datum values[] = {Int32GetDatum(tables.number)};
	const bool opened = unrecord(values, 1) > 0;
	pg::sql("SELECT 1 FROM tq.segment WHERE number = $1 AND finished_at IS NOT NULL", 1, types, values, nullptr, false,
			1);
	if (!opened && SPI_processed > 0)
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("segment %d is being opened again by another transaction", tables.number),
						errdetail("A job of it that had ended is being retried there."),
						errhint("Try again when that transaction has ended.")));
	pg::leave_owner(scope);
}

void reopen_written(Oid table)
{
	// the triggers of logical replication fire for each row
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
		// By the table, of which memory need not know yet. Whoever has the row is waited for, as by any UPDATE: should he open the segment and
		// then roll back, or the server crash before his commit, it would be finished with what we have written.
		const pg::OwnerScope scope = pg::enter_owner(extension);
		const Oid types[] = {OIDOID};
		const Datum values[] = {ObjectIdGetDatum(table)};
		pg::sql("UPDATE tq.segment s SET finished_at = NULL FROM pg_class c"
				" WHERE c.oid = $1 AND c.relname IN ('job_' || s.number, 'event_' || s.number) AND s.finished_at IS NOT NULL",
				1, types, values, nullptr, false, 0);
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

} // namespace tq::live
