#include "segments/reopening.hpp"

#include "segments/segments.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// Sets tq.segment.finished_at to null, in the caller's owner scope. False if it was null, or if another
// transaction has locked the row: a session does not wait for it (P4).
bool clear_finished_at(int32 number)
{
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(number)};
	pg::sql("WITH free AS (SELECT number FROM tq.segment WHERE number = $1 AND finished_at IS NOT NULL"
			" FOR UPDATE SKIP LOCKED)"
			" UPDATE tq.segment s SET finished_at = NULL FROM free WHERE s.number = free.number",
			{types, values}, false, 0);
	return SPI_processed > 0;
}

bool has_finished_at(int32 number)
{
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(number)};
	pg::sql("SELECT 1 FROM tq.segment WHERE number = $1 AND finished_at IS NOT NULL", {types, values}, false, 1);
	return SPI_processed > 0;
}

} // namespace

void reopen_segment(Db &db, int slot)
{
	journal::Segment tables;
	if (!tables_at(db, slot, &tables))
		return; // the caller raises the error
	LockRelationOid(tables.event, RowExclusiveLock);
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	SegmentSlot &s = segment_at(db, slot);
	const bool same = s.number == tables.number && s.event == tables.event; // it may have been dropped during the wait
	if (same)
	{
		// `dead` may lack jobs past their retention (forget_dead). If the revived job is one, it is subtracted twice,
		// and the count misses it when it dies again.
		if (s.number != 0 &&
			(s.state == SegmentState::finished || (s.state == SegmentState::sealed && s.dead.load() <= 0)))
			s.dead.store(kDeadUnknown);
		s.ended.store(kAnyEnd);
		// This session's lock keeps the janitor from finishing it again. If no job lives in it afterwards, the janitor
		// finishes it later.
		if (s.state == SegmentState::finished)
			s.state = SegmentState::sealed;
	}
	LWLockRelease(map_lock(db));
	if (!same)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("segment %d has just been dropped", tables.number),
				 errdetail("The job was in it; another segment has taken its slot in memory."), errhint("Try again.")));
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	if (!clear_finished_at(tables.number) && has_finished_at(tables.number)) // another transaction has locked the row
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("segment %d is being opened again by another transaction", tables.number),
						errdetail("A job of it that had ended is being retried there."),
						errhint("Try again when that transaction has ended.")));
	pg::leave_owner(scope);
}

} // namespace tq
