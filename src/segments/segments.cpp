#include "segments/segments.hpp"

extern "C"
{
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "utils/fmgrprotos.h"
}

#include "guc.hpp"
#include "journal/terminal_states.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"
#include "pg/wal.hpp"

namespace tq
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

// Whether an id is too close to the last one to draw ids above it.
constexpr bool too_great(int64 id) { return id > journal::kLastId - (int64{1} << 40); }

[[noreturn]] void no_ids_left()
{
	ereport(ERROR,
			(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED), errmsg("no job ids are left"),
			 errdetail("Ids are below 2^53, and a job has one that is so great that none above it can be drawn."),
			 errhint("Such a row was written by hand: delete it, and VACUUM its table.")));
}

// Draws a block of ids from the sequence: (value - increment, value]. Flushes the WAL record that reserves it, before
// the caller uses an id (R2). nextval writes one record for several blocks, so another session may have written it.
void draw_block(int64 *first, int64 *end)
{
	const Oid oid = sequence_oid("job_id_seq");
	HeapTuple tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(oid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", oid);
	const int64 increment = reinterpret_cast<Form_pg_sequence>(GETSTRUCT(tuple))->seqincrement;
	ReleaseSysCache(tuple);
	const int64 value = nextval_internal(oid, false);
	TQ_WAIT_POINT("draw-before-flush");
	pg::flush_sequence(oid);
	*first = value - increment + 1;
	*end = value + 1;
	if (value > journal::kLastId)
		no_ids_left();
}

// Draws a block of ids that are all greater than `above`. Sets the sequence forward if it is far behind: a dump has
// restored rows before it, or ids were written by hand. The lock admits one process at a time. A second one would set
// the sequence back, behind blocks that sessions have drawn. These sessions need no lock for nextval. The margin covers
// the blocks that they draw until setval runs.
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
		const Oid types[] = {INT8OID};
		const Datum values[] = {Int64GetDatum(above + kMargin * block)};
		pg::sql_as_owner(db.extension, "SELECT setval('tq.job_id_seq', $1)", {types, values});
	}
	UnlockRelationOid(oid, ShareUpdateExclusiveLock);
}

// Makes it the block that sessions draw from. Drops it if another process has installed one that still has ids, or a
// later one.
void install_block(Db &db, int64 first, int64 end)
{
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	if (first >= db.id_limit.load() && db.next_id.load() >= db.id_limit.load())
	{
		db.next_id.store(first);
		db.id_limit.store(end);
	}
	LWLockRelease(map_lock(db));
}

// The states in tq.segment.ended, a list of event types. Null or an unknown type gives kAnyEnd.
uint8 ends_of_text(const char *types) noexcept
{
	uint32 ended = types != nullptr ? 0 : kAnyEnd;
	for (; types != nullptr && *types != '\0'; ++types)
	{
		const auto *known = std::find_if(std::begin(journal::kTerminalStates), std::end(journal::kTerminalStates),
										 [types](const auto &s) { return static_cast<char>(s.event) == *types; });
		ended |= known != std::end(journal::kTerminalStates) ? 1U << static_cast<int>(known->state) : kAnyEnd;
	}
	return static_cast<uint8>(ended);
}

// The SQL of 0.1.0 lacks it.
bool has_ends_column()
{
	const Oid table = get_relname_relid("segment", get_namespace_oid("tq", false));
	return get_atttype(table, get_attnum(table, "ended")) == TEXTOID;
}

// The numbered segments in tq.segment; a time is 0 for null.
struct SegmentRow
{
	int32 number;
	TimestampTz opened_at, sealed_at, finished_at;
	uint8 ended;
};

int read_segment_rows(const Db &db, SegmentRow **out)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(has_ends_column()
				? "SELECT number, opened_at, sealed_at, finished_at, ended FROM tq.segment"
				: "SELECT number, opened_at, sealed_at, finished_at, NULL::text AS ended FROM tq.segment",
			{}, true, 0);
	const auto n = static_cast<int>(SPI_processed);
	auto *rows =
		static_cast<SegmentRow *>(MemoryContextAllocZero(scope.outside, sizeof(SegmentRow) * static_cast<Size>(n + 1)));
	for (int i = 0; i < n; ++i)
	{
		const auto row = static_cast<uint64>(i);
		rows[i].number = pg::spi_int4(row, "number", -1);
		rows[i].opened_at = pg::spi_time(row, "opened_at", 0);
		rows[i].sealed_at = pg::spi_time(row, "sealed_at", 0);
		rows[i].finished_at = pg::spi_time(row, "finished_at", 0);
		rows[i].ended = ends_of_text(pg::spi_text(row, "ended"));
	}
	pg::leave_owner(scope);
	*out = rows;
	return n;
}

// Segment 0 is always usable, even without its triggers after a restore.
bool is_usable(const journal::SegmentTables &s) noexcept
{
	return s.complete || (s.tables.number == 0 && OidIsValid(s.tables.event));
}

} // namespace

void record_ends(int32 number, uint8 ended)
{
	if (!has_ends_column())
		return;
	char ends[std::size(journal::kTerminalStates) + 1] = {};
	char *end = ends;
	for (const journal::TerminalState &s : journal::kTerminalStates)
		if ((ended & 1U << static_cast<int>(s.state)) != 0)
			*end++ = static_cast<char>(s.event);
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(number), CStringGetTextDatum(ends)};
	const char nulls[] = {' ', ended == kAnyEnd ? 'n' : ' ', '\0'};
	pg::sql("UPDATE tq.segment SET ended = $2 WHERE number = $1", {types, values, nulls}, false, 0);
}

int64 read_bounds(const pg::Array<journal::SegmentTables> &list, int64 *low, int64 *high)
{
	int64 greatest = 0;
	int before = -1; // the last numbered segment with rows
	for (int i = 0; i < list.n; ++i)
	{
		low[i] = high[i] = 0;
		if (!is_usable(list[i]) || !journal::segment_bounds(list[i].tables, &low[i], &high[i]))
			continue;
		greatest = std::max(greatest, high[i]);
		if (list[i].tables.number == 0)
			continue;
		if (before >= 0 && low[i] <= high[before])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the ids of segments %d and %d are not apart", list[before].tables.number,
							list[i].tables.number),
					 errdetail("Their jobs have the ids %lld to %lld and %lld to %lld, so an id does not tell the "
							   "segment.", static_cast<long long>(low[before]), static_cast<long long>(high[before]),
							   static_cast<long long>(low[i]), static_cast<long long>(high[i])),
					 errhint("Call tq_deactivate(), move the rows that were written by hand to tq.job_0 and "
							 "tq.event_0, and call tq_activate().")));
		before = i;
	}
	return greatest;
}

void ensure_mapped(Db &db)
{
	if (db.load_state.load() != static_cast<uint32>(LoadState::none))
		return;
	const pg::Array<journal::SegmentTables> list = journal::list_segments();
	const auto n = static_cast<int>(list.n);
	auto *low = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(n + 1)));
	auto *high = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(n + 1)));
	auto *mapped = static_cast<bool *>(palloc0(sizeof(bool) * static_cast<Size>(n + 1)));
	SegmentRow *registered = nullptr;
	const int nregistered = read_segment_rows(db, &registered);
	int open = -1;
	const int64 greatest = read_bounds(list, low, high);
	for (int i = 0; i < n; ++i)
	{
		mapped[i] = is_usable(list[i]); // tq_health() names the others
		open = mapped[i] ? i : open;	// the youngest complete one
	}
	const auto nmapped = static_cast<int>(std::count(mapped, mapped + n, true));
	if (nmapped > guc::max_segments)
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						errmsg("database has %d segments, more than tq.max_segments", nmapped),
						errhint("Raise tq.max_segments and restart the server.")));
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	if (db.load_state.load() == static_cast<uint32>(LoadState::none)) // else another process was faster
	{
		db.greatest_id.store(greatest);
		db.next_id.store(greatest + 1);
		db.id_limit.store(greatest + 1); // the first call that needs ids draws a block
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
			s.last_id = i == open ? PG_INT64_MAX : high[i]; // 0 without rows: an empty range
			s.opened_at = s.sealed_at = wall_now();
			s.finished_at = 0;
			uint8 ended = kAnyEnd;
			for (int k = 0; k < nregistered; ++k)
				if (registered[k].number == s.number)
				{
					s.opened_at = registered[k].opened_at;
					s.sealed_at = registered[k].sealed_at != 0 ? registered[k].sealed_at : s.sealed_at;
					if (registered[k].finished_at != 0 && i != open)
					{
						s.finished_at = registered[k].finished_at;
						s.state = SegmentState::finished;
						ended = registered[k].ended;
					}
				}
			s.forget_counts();
			s.ended.store(ended);
			// a load does not count a finished segment; the janitor does before it drops the segment
			s.dead.store(s.state == SegmentState::finished ? kDeadUnknown : 0);
			if (i == open)
				db.open = db.nsegments;
			++db.nsegments;
		}
		db.load_state.store(static_cast<uint32>(LoadState::mapped));
	}
	LWLockRelease(map_lock(db));
}

namespace
{

// Whether the segment still accepts these ids. The caller has locked its job table. Before that, no lock protected the
// segment: the janitor may have sealed it, then finished or dropped it. No load would read rows written there.
bool still_takes(const Db &db, const Drawn &d) noexcept
{
	LWLockAcquire(map_lock(db), LW_SHARED);
	SegmentSlot &s = segment_at(db, d.slot);
	const bool same = s.number == d.tables.number && s.job == d.tables.job;
	const bool ok = same && (s.state == SegmentState::open || s.state == SegmentState::sealed);
	if (same && !ok) // a slot with another segment has new counters
		s.rows.fetch_sub(d.count);
	LWLockRelease(map_lock(db));
	return ok;
}

} // namespace

Drawn draw_ids(Db &db, int n)
{
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		Drawn d{};
		LWLockAcquire(map_lock(db), LW_SHARED);
		const bool open = db.open < db.nsegments && segment_at(db, db.open).state == SegmentState::open;
		d.first = db.next_id.fetch_add(n); // beyond id_limit if the block is used up
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
			// The first job of segment 0 also wakes the scheduler, so that the janitor opens a numbered segment soon.
			// Ended jobs of segment 0 leave dead rows.
			const bool first = d.tables.number == 0 && rows == d.count;
			if (first || (rows - d.count < guc::segment_rows && rows >= guc::segment_rows))
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
		draw_block_above(db, db.greatest_id.load(), &first, &end);
		TQ_WAIT_POINT("block-after-draw");
		install_block(db, first, end);
	}
}

} // namespace tq
