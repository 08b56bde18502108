#include "live/segments.hpp"

extern "C"
{
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "utils/fmgrprotos.h"
}

#include "guc.hpp"
#include "live/load.hpp"
#include "pg/owner.hpp"

namespace tq::live
{

namespace
{

Oid sequence_oid(const char *name)
{
	const Oid schema = get_namespace_oid("tq", false);
	const Oid oid = get_relname_relid(name, schema);
	if (!OidIsValid(oid))
		elog(ERROR, "sequence tq.%s is missing", name);
	return oid;
}

constexpr int64 kLastId = (int64{1} << 53) - 1; // as the tables' own check

// So near to the last one that no ids are drawn above it.
constexpr bool too_great(int64 id) { return id > kLastId - (int64{1} << 40); }

[[noreturn]] void no_ids_left()
{
	ereport(ERROR, (errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED), errmsg("no job ids are left"),
					errdetail("Ids are below 2^53, and a job has one that is so great that none above it can be drawn."),
					errhint("Such a row was written by hand: delete it, and VACUUM its table.")));
}

void check_ids_again(Db &db) noexcept { db.ids_checked.store(db.outside_changes.load() - 1); }

// Draws a block of ids from the sequence: (value - increment, value]. Its WAL record is on disk before any of them is used (R2).
void draw_block(int64 *first, int64 *end)
{
	const Oid oid = sequence_oid("job_id_seq");
	HeapTuple tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(oid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", oid);
	const int64 increment = reinterpret_cast<Form_pg_sequence>(GETSTRUCT(tuple))->seqincrement;
	ReleaseSysCache(tuple);
	const XLogRecPtr before = XactLastRecEnd;
	const int64 value = nextval_internal(oid, false);
	if (XactLastRecEnd != before)
		XLogFlush(XactLastRecEnd);
	*first = value - increment + 1;
	*end = value + 1;
	if (value > kLastId)
		no_ids_left();
}

// Draws a block of ids that are all greater than `above`. A sequence far behind (a dump's rows came before it, or ids were written by
// hand) is set, by one process at a time, since a second one would set it back under those who draw meanwhile; the margin is for
// them. nextval does not conflict with this lock.
void draw_block_above(const Db &db, int64 above, int64 *first, int64 *end)
{
	constexpr int64 kNear = 100, kMargin = 1000; // blocks
	if (too_great(above))
		no_ids_left();
	draw_block(first, end);
	if (*first > above)
		return;
	const Oid oid = sequence_oid("job_id_seq");
	LockRelationOid(oid, ShareUpdateExclusiveLock);
	for (draw_block(first, end); *first <= above; draw_block(first, end))
	{
		const int64 block = *end - *first;
		if ((above - *first) / block <= kNear)
			continue;
		const pg::OwnerScope scope = pg::enter_owner(db.extension);
		const Oid types[] = {INT8OID};
		const Datum values[] = {Int64GetDatum(above + kMargin * block)};
		pg::sql("SELECT setval('tq.job_id_seq', $1)", 1, types, values, nullptr, false, 1);
		pg::leave_owner(scope);
	}
	UnlockRelationOid(oid, ShareUpdateExclusiveLock);
}

// Takes the block unless somebody else's came first and is not used up.
void install_block(Db &db, int64 first, int64 end, bool keep_rest)
{
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	const bool used_up = db.next_id.load() >= db.id_limit.load();
	if (first >= db.id_limit.load() && (used_up || !keep_rest))
	{
		db.next_id.store(first);
		db.id_limit.store(end);
	}
	LWLockRelease(map_lock(db));
}

// What tq.segment says of numbered segments; 0 for null times.
struct Registered
{
	int32 number;
	TimestampTz opened_at, sealed_at, finished_at;
};

int read_registry(const Db &db, Registered **out)
{
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT number, opened_at, sealed_at, finished_at FROM tq.segment", 0, nullptr, nullptr, nullptr, true, 0);
	const auto n = static_cast<int>(SPI_processed);
	auto *rows = static_cast<Registered *>(MemoryContextAllocZero(caller, sizeof(Registered) * static_cast<Size>(n + 1)));
	for (int i = 0; i < n; ++i)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;
		bool isnull = false;
		rows[i].number = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull));
		TimestampTz *times[] = {&rows[i].opened_at, &rows[i].sealed_at, &rows[i].finished_at};
		for (int k = 0; k < 3; ++k)
		{
			const Datum d = SPI_getbinval(tuple, desc, k + 2, &isnull);
			*times[k] = isnull ? 0 : DatumGetTimestampTz(d);
		}
	}
	pg::leave_owner(scope);
	*out = rows;
	return n;
}

// Segment 0 in any case: there is always one, whatever a restore has done to its triggers.
bool is_usable(const journal::SegmentTables &s) noexcept
{
	return s.complete || (s.tables.number == 0 && OidIsValid(s.tables.event));
}

} // namespace

bool is_recorded(const Db &db, int32 number)
{
	Registered *rows = nullptr;
	const int n = read_registry(db, &rows);
	return std::any_of(rows, rows + n, [number](const Registered &r) { return r.number == number; });
}

void ensure_mapped(Db &db)
{
	if (db.load_state.load() != static_cast<uint32>(LoadState::none))
		return;
	journal::SegmentTables *list = nullptr;
	const int n = journal::list_segments(&list);
	auto *low = static_cast<int64 *>(palloc0(sizeof(int64) * static_cast<Size>(n + 1)));
	auto *high = static_cast<int64 *>(palloc0(sizeof(int64) * static_cast<Size>(n + 1)));
	auto *mapped = static_cast<bool *>(palloc0(sizeof(bool) * static_cast<Size>(n + 1)));
	Registered *registered = nullptr;
	const int nregistered = read_registry(db, &registered);
	int open = -1;
	int64 greatest = 0;
	bool whole = true;
	for (int i = 0; i < n; ++i)
	{
		mapped[i] = is_usable(list[i]);
		whole = whole && mapped[i];
		if (mapped[i] && journal::segment_bounds(list[i].tables, &low[i], &high[i]))
			greatest = std::max(greatest, high[i]);
		else if (mapped[i] && list[i].tables.number != 0) // whose rows are yet to come from a dump is taken in when it has them
			mapped[i] = std::any_of(registered, registered + nregistered, [&](const Registered &r) { return r.number == list[i].tables.number; });
		open = mapped[i] ? i : open; // the youngest that is whole
	}
	const auto nmapped = static_cast<int>(std::count(mapped, mapped + n, true));
	if (nmapped > guc::max_segments)
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						errmsg("database has %d segments, more than tq.max_segments", nmapped),
						errhint("Raise tq.max_segments and restart the server.")));
	int64 first = 0, end = 0;
	// the jobs that are there are worked off all the same, and a read-only session can look at them; who draws looks again, and draws or
	// raises the error
	if (too_great(greatest) || XactReadOnly)
		check_ids_again(db);
	else
		draw_block_above(db, greatest, &first, &end);
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	if (db.load_state.load() == static_cast<uint32>(LoadState::none))
	{
		db.next_id.store(std::max(first, greatest + 1));
		db.id_limit.store(end);
		db.nsegments = 0;
		db.open = 0;
		for (int i = 0; i < n; ++i)
		{
			if (!mapped[i])
				continue;
			SegmentSlot &s = segment_at(db, db.nsegments);
			s.number = list[i].tables.number;
			s.job = list[i].tables.job;
			s.event = list[i].tables.event;
			s.state = i == open ? SegmentState::open : SegmentState::sealed;
			s.first_id = s.number == 0 ? 0 : low[i] != 0 ? low[i] : db.next_id.load();
			s.last_id = i == open ? PG_INT64_MAX : high[i];
			s.opened_at = s.sealed_at = wall_now();
			s.finished_at = 0;
			for (int k = 0; k < nregistered; ++k)
				if (registered[k].number == s.number)
				{
					s.opened_at = registered[k].opened_at;
					s.sealed_at = registered[k].sealed_at != 0 ? registered[k].sealed_at : s.sealed_at;
					if (registered[k].finished_at != 0 && i != open)
					{
						s.finished_at = registered[k].finished_at;
						s.state = SegmentState::finished;
					}
					whole = whole && (registered[k].finished_at == 0 || i != open); // it takes jobs again, which the janitor records
				}
			s.rows.store(0);
			s.live.store(0);
			s.delta.store(0);
			s.looked_at.store(0);
			s.dead.store(s.state == SegmentState::finished ? kDeadUnknown : 0); // the janitor looks before it drops
			if (i == open)
				db.open = db.nsegments;
			++db.nsegments;
		}
		if (!whole) // or a restore is under way, of which nothing was heard
			request_reload(db);
		db.load_state.store(static_cast<uint32>(LoadState::mapped));
	}
	LWLockRelease(map_lock(db));
}

namespace
{

// Rows came from outside (a restore): no id of theirs is drawn again, even before the janitor has looked at them. Whoever is not to draw
// need not know that no ids are left.
void check_ids(Db &db, bool draws)
{
	const uint32 changes = db.outside_changes.load();
	if (changes == db.ids_checked.load())
		return;
	journal::SegmentTables *list = nullptr;
	const int n = journal::list_segments(&list);
	int64 greatest = 0, first = 0, end = 0;
	for (int i = 0; i < n; ++i)
	{
		int64 low = 0, high = 0;
		if (is_usable(list[i]) && journal::segment_bounds(list[i].tables, &low, &high))
			greatest = std::max(greatest, high);
	}
	if (!draws && too_great(greatest))
		return;
	// the sequence itself may have been set forward by the restore, so a block is drawn in any case
	draw_block_above(db, greatest, &first, &end);
	install_block(db, first, end, false);
	db.ids_checked.store(changes);
}

} // namespace

namespace
{

// The table is locked: does the segment still take these ids? Before it was, the segment may have been sealed and, since nothing of it was
// committed yet, finished or even dropped; what is written there would not be read again.
bool still_takes(const Db &db, const Drawn &d) noexcept
{
	LWLockAcquire(map_lock(db), LW_SHARED);
	SegmentSlot &s = segment_at(db, d.slot);
	const bool same = s.number == d.tables.number && s.job == d.tables.job;
	const bool ok = same && (s.state == SegmentState::open || s.state == SegmentState::sealed);
	if (same && !ok)
		s.rows.fetch_sub(d.count);
	LWLockRelease(map_lock(db));
	return ok;
}

} // namespace

Drawn draw_ids(Db &db, int n)
{
	check_ids(db, true);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		Drawn d{};
		LWLockAcquire(map_lock(db), LW_SHARED);
		const bool open = db.open < db.nsegments && segment_at(db, db.open).state == SegmentState::open;
		d.first = db.next_id.fetch_add(n);
		const int64 limit = db.id_limit.load();
		d.count = static_cast<int>(std::clamp<int64>(limit - d.first, 0, n));
		if (d.count > 0 && !open)
		{
			LWLockRelease(map_lock(db));
			ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("no segment takes jobs"),
							errdetail("Not even tq.job_0 and tq.event_0 were there when the segments were looked up."),
							errhint("Restore the tables of schema \"tq\" from a dump, and restart the server.")));
		}
		if (d.count > 0)
		{
			d.slot = db.open;
			SegmentSlot &s = segment_at(db, d.slot);
			d.tables = tables_of(s);
			const int64 rows = s.rows.fetch_add(d.count) + d.count;
			LWLockRelease(map_lock(db));
			if (rows - d.count < guc::segment_rows && rows >= guc::segment_rows)
				wake_scheduler(db);
			TQ_WAIT_POINT("draw-before-lock");
			LockRelationOid(d.tables.job, RowExclusiveLock);
			if (still_takes(db, d))
				return d;
			UnlockRelationOid(d.tables.job, RowExclusiveLock);
			continue;
		}
		LWLockRelease(map_lock(db));
		int64 first = 0, end = 0;
		draw_block(&first, &end);
		TQ_WAIT_POINT("block-after-draw");
		install_block(db, first, end, true);
	}
}

void raise_ids(Db &db) { check_ids(db, false); }

void raise_ids(Db &db, int64 above)
{
	int64 first = 0, end = 0;
	if (above < db.next_id.load())
		return;
	if (too_great(above))
		return check_ids_again(db);
	draw_block_above(db, above, &first, &end);
	install_block(db, first, end, false);
}

} // namespace tq::live
