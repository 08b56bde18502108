#include "retention/old_changes.hpp"

#include "guc.hpp"
#include "processes/work_transaction.hpp"
#include "pg/array.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

constexpr int64 kBatch = 10000;
constexpr Micros kLongestGap = 3600 * core::kSecond; // between marks

// The queues with changes, and the time until which they keep them.
struct Kept
{
	pg::Array<Datum> ids;
	pg::Array<Datum> until; // timestamptz
	Micros shortest = 10 * 365 * 86400 * core::kSecond;
	Micros longest = 0;
};

// A queue without the setting keeps nothing.
void collect(const Db &db, MemoryContext context, Micros now, Kept *kept)
{
	for_queues(db, [context, now, kept](uint16_t, const Queue &q) {
		const Micros keep = q.settings.change_retention_ms * 1000;
		if (keep <= 0)
			return;
		kept->ids.append(context, Int32GetDatum(q.id));
		kept->until.append(context, TimestampTzGetDatum(now - keep));
		kept->shortest = std::min(kept->shortest, keep);
		kept->longest = std::max(kept->longest, keep);
	});
}

// A change is deleted by the end of its transaction, not by its time: a transaction that was open for long has readers
// that have not seen it. So a mark notes which transactions have ended by now.
void mark(Micros now, const Kept &kept)
{
	const Oid types[] = {TIMESTAMPTZOID, TIMESTAMPTZOID};
	const Micros gap = std::min(kept.shortest / 8, kLongestGap);
	const Datum recent[] = {TimestampTzGetDatum(now), TimestampTzGetDatum(now - gap)};
	const Datum passed[] = {TimestampTzGetDatum(now), TimestampTzGetDatum(now - kept.longest)};
	pg::sql("INSERT INTO tq.change_mark (at, snapshot) SELECT $1, pg_current_snapshot()"
			" WHERE NOT EXISTS (SELECT FROM tq.change_mark WHERE at > $2 AND at <= $1)",
			{types, recent}, false, 0);
	// the newest of those that all queues have passed stays, and none of the future after a clock was set back
	pg::sql("DELETE FROM tq.change_mark WHERE at > $1"
			" OR at < (SELECT max(at) FROM tq.change_mark WHERE at <= $2)",
			{types, passed}, false, 0);
}

// Deletes a batch; true if there may be more. Notes first what readers with an older cursor miss from here on.
bool delete_batch(Datum ids, Datum until)
{
	const Oid types[] = {INT4ARRAYOID, TIMESTAMPTZARRAYOID, INT8OID};
	const Datum values[] = {ids, until, Int64GetDatum(kBatch)};
	// the queues in tq.change, by an index scan that skips from one to the next
	pg::sql("WITH RECURSIVE present (id) AS ("
			"  SELECT min(queue_id) FROM tq.change"
			"  UNION ALL"
			"  SELECT (SELECT min(c.queue_id) FROM tq.change c WHERE c.queue_id > present.id) FROM present"
			"  WHERE present.id IS NOT NULL"
			"), due AS ("
			// a queue that is gone, or records no more, keeps nothing
			"  SELECT p.id, CASE WHEN k.id IS NULL THEN pg_current_snapshot() ELSE"
			"    (SELECT snapshot FROM tq.change_mark WHERE at <= k.until ORDER BY at DESC LIMIT 1) END AS snapshot"
			"  FROM present p LEFT JOIN unnest($1, $2) AS k (id, until) ON k.id = p.id"
			// memory learns of a setting after the row is committed
			"  WHERE p.id IS NOT NULL AND (k.id IS NOT NULL OR NOT EXISTS ("
			"    SELECT FROM tq.queue q WHERE q.id = p.id AND q.settings ->> 'change_retention' ~ '[1-9]'))"
			"), old AS ("
			"  SELECT c.place, c.xid, d.id, d.snapshot FROM due d CROSS JOIN LATERAL ("
			"    SELECT ctid AS place, xid FROM tq.change WHERE queue_id = d.id AND xid < pg_snapshot_xmax(d.snapshot)"
			"      AND pg_visible_in_snapshot(xid, d.snapshot) ORDER BY xid LIMIT $3) c"
			"  LIMIT $3"
			"), noted AS ("
			"  INSERT INTO tq.change_log AS l (queue_id, deleted, last)"
			"  SELECT DISTINCT ON (id) id, snapshot, xid FROM old ORDER BY id, xid DESC"
			"  ON CONFLICT (queue_id) DO UPDATE SET last = greatest(l.last, excluded.last), deleted = CASE"
			"    WHEN pg_snapshot_xmax(l.deleted) > pg_snapshot_xmax(excluded.deleted) THEN l.deleted"
			"    ELSE excluded.deleted END"
			") DELETE FROM tq.change USING old WHERE tq.change.ctid = old.place",
			{types, values}, false, 0);
	return SPI_processed >= kBatch;
}

// Forgets queues that are gone; true if nothing is left to do later.
bool tidy(bool records)
{
	pg::sql("DELETE FROM tq.change_log l WHERE queue_id <> 0"
			" AND NOT EXISTS (SELECT FROM tq.queue q WHERE q.id = l.queue_id)"
			" AND NOT EXISTS (SELECT FROM tq.change c WHERE c.queue_id = l.queue_id)",
			{}, false, 0);
	if (records)
		return false;
	pg::sql("SELECT 1 FROM tq.change", {}, true, 1);
	if (SPI_processed > 0)
		return false;
	pg::sql("DELETE FROM tq.change_mark", {}, false, 0);
	return true;
}

void not_clean(int, Datum arg) { reinterpret_cast<Db *>(DatumGetPointer(arg))->changes_clean.store(false); }

} // namespace

bool changes_wanted(const Db &db) noexcept { return !db.changes_clean.load() && db.changes_due.load() <= mono_now(); }

bool delete_old_changes(const WorkerContext &context, Db &db)
{
	const MemoryContext pass = AllocSetContextCreate(CurrentMemoryContext, "tq changes", ALLOCSET_SMALL_SIZES);
	const Micros now = wall_now();
	Kept kept;
	db.changes_clean.store(true); // a session that writes a row from here on clears it
	volatile bool stay = true;
	volatile bool clean = false;
	PG_ENSURE_ERROR_CLEANUP(not_clean, PointerGetDatum(&db));
	collect(db, pass, now, &kept);
	TQ_WAIT_POINT("changes-after-collect");
	for (bool more = true; more && !stop_requested();)
	{
		stay = begin_work(context, "tq: deleting old changes");
		if (!stay)
			break;
		if (!OidIsValid(get_relname_relid("change", get_namespace_oid("tq", true)))) // tables of 0.1.0
		{
			end_work();
			clean = true;
			break;
		}
		const pg::OwnerScope scope = pg::enter_owner(context.extension);
		mark(now, kept);
		const auto n = static_cast<int>(kept.ids.n);
		ArrayType *ids = construct_array(kept.ids.data, n, INT4OID, sizeof(int32), true, TYPALIGN_INT);
		ArrayType *until = construct_array(kept.until.data, n, TIMESTAMPTZOID, sizeof(TimestampTz), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE);
		more = delete_batch(PointerGetDatum(ids), PointerGetDatum(until));
		clean = !more && tidy(n > 0);
		pg::leave_owner(scope);
		TQ_WAIT_POINT("changes-before-commit");
		end_work(true);
	}
	PG_END_ENSURE_ERROR_CLEANUP(not_clean, PointerGetDatum(&db));
	if (!clean)
		db.changes_clean.store(false);
	const Micros pause = std::max(60 * guc::naptime * Micros{1000}, 20 * (wall_now() - now));
	db.changes_due.store(mono_now() + std::min(pause, std::max(kept.shortest / 8, guc::naptime * Micros{1000})));
	MemoryContextDelete(pass);
	return stay;
}

} // namespace tq
