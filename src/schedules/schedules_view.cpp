// The rows of the view tq_schedules.
// Regime: PG; reads the tables through SPI as the extension's owner. Locks: none.
#include "database/attach.hpp"
#include "queues/rights.hpp"
#include "schedules/schedule.hpp"
#include "pg/data_error.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/rows.hpp"
#include "pg/sizes.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

constexpr pg::ColumnSpec kSchedules[] = {
	{"name", TEXTOID},
	{"queue", TEXTOID},
	{"kind", TEXTOID},
	{"payload", JSONBOID},
	{"cron", TEXTOID},
	{"every", INTERVALOID},
	{"timezone", TEXTOID},
	{"catch_up", TEXTOID},
	{"overlap", TEXTOID},
	{"options", JSONBOID},
	{"owner", REGROLEOID},
	{"state", TEXTOID},
	{"next_at", TIMESTAMPTZOID},
	{"last_at", TIMESTAMPTZOID},
	{"last_job_id", INT8OID},
	{"last_outcome", TEXTOID},
	{"missed", INT8OID},
	{"last_error", TEXTOID},
	{"defined_at", TIMESTAMPTZOID},
	{"starts_at", TIMESTAMPTZOID},
	{"ends_at", TIMESTAMPTZOID},
};
constexpr int kColumns = std::size(kSchedules);
constexpr int kState = 11, kNextAt = 12, kLastError = 17;
constexpr Size kMostText = 2000; // bytes to show of a text

enum class ScheduleState : uint8
{
	active,
	paused,
	ended,	 // no time is left
	invalid, // a mistake in a row that was written by hand
};
constexpr const char *kStates[] = {"active", "paused", "ended", "invalid"};

// The columns that are not in the row itself. For an invalid row, the mistake replaces its last error.
ScheduleState state_of(const Db &db, const ScheduleRow &row, Micros base, Micros *next, const char **error)
{
	const MemoryContext context = CurrentMemoryContext;
	*next = core::kNever;
	*error = nullptr;
	volatile Micros found = core::kNever;
	PG_TRY();
	{
		found = core::next_time(parse_schedule(row).times, base);
	}
	PG_CATCH();
	{
		*error = pg::take_data_error(context)->message;
	}
	PG_END_TRY();
	if (*error != nullptr)
		return ScheduleState::invalid;
	if (row.paused)
		return ScheduleState::paused;
	*next = found;
	return found == core::kNever ? ScheduleState::ended : ScheduleState::active;
}

void put_row(const Db &db, uint64 i, const ScheduleRow &row, bool with_payload, const pg::RowSet &rows)
{
	Datum v[kColumns];
	bool null[kColumns];
	for (int c = 0; c < kColumns; ++c)
	{
		const Oid type = kSchedules[c].type;
		if (c == kState || c == kNextAt)
			continue;
		v[c] = pg::spi_value(i, kSchedules[c].name, type, &null[c]);
		null[c] = null[c] || (type == JSONBOID && !with_payload); // headers are part of the options
		if (!null[c] && type == JSONBOID)
			v[c] = JsonbPGetDatum(pg::cut_jsonb(v[c], journal::kMostShown));
		else if (!null[c] && type == TEXTOID) // a row written by hand may hold anything
			v[c] = PointerGetDatum(pg::cut_text(v[c], kMostText));
	}
	const TimestampTz base = pg::spi_time(i, "seen", journal::kNoTime);
	Micros next = core::kNever;
	const char *error = nullptr;
	const Micros reached = fired_until(row, base, wall_now());
	const ScheduleState state = state_of(db, row, reached, &next, &error);
	v[kState] = CStringGetTextDatum(kStates[static_cast<int>(state)]);
	null[kState] = false;
	v[kNextAt] = TimestampTzGetDatum(next);
	null[kNextAt] = next == core::kNever || !IS_VALID_TIMESTAMP(next);
	if (error != nullptr)
	{
		v[kLastError] = CStringGetTextDatum(error);
		null[kLastError] = false;
	}
	rows.put(v, null);
}

} // namespace

// tq.schedules(), behind tq_schedules
TQ_FUNCTION(tq_list_schedules)
{
	Db &db = database(fcinfo);
	const pg::RowSet set = pg::begin_rows(fcinfo, pg::row_shape(kSchedules));
	const Oid user = GetUserId();
	const Rights mine = rights(db);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TIMESTAMPTZOID};
	const Datum values[] = {TimestampTzGetDatum(wall_now())};
	pg::sql("SELECT " TQ_SCHEDULE_COLUMNS "," TQ_SCHEDULE_SEEN ","
			" l.fire_at AS last_at, l.job_id AS last_job_id, l.outcome AS last_outcome,"
			" greatest(least(s.missed + coalesce((SELECT sum(f.missed) FROM tq.schedule_fire f WHERE f.schedule = "
			"s.name), 0), 1e18), 0)::bigint AS missed,"
			" s.last_error, s.defined_at"
			" FROM tq.schedule s LEFT JOIN LATERAL (SELECT * FROM tq.schedule_fire f WHERE f.schedule = s.name AND "
			"f.fire_at <= $1"
			"  ORDER BY f.fire_at DESC LIMIT 1) l ON true ORDER BY s.name",
			{types, values}, true, 0);
	const uint64 rows = SPI_processed;
	const MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq schedule", ALLOCSET_DEFAULT_SIZES);
	for (uint64 i = 0; i < rows; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(each);
		const MemoryContext old = MemoryContextSwitchTo(each);
		const ScheduleRow row = row_of(i, false);
		if (has_right(db, mine, user, row, kOperate | kManage | kInspect))
			put_row(db, i, row, has_right(db, mine, user, row, kMayRead), set);
		MemoryContextSwitchTo(old);
	}
	MemoryContextDelete(each);
	pg::leave_owner(scope);
	return static_cast<Datum>(0);
}

} // namespace tq
