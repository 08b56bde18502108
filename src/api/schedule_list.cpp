// What the view tq_schedules shows.
// Regime: PG; reads the tables through SPI as the extension's owner. Locks: none.
#include "api/schedule.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "pg/data_error.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"

namespace tq::api
{

namespace
{

constexpr int kColumns = 21;

enum class ScheduleState : uint8
{
	active,
	paused,
	held,	 // the database is a copy
	ended,	 // no time is left
	invalid, // written by hand
};
constexpr const char *kStates[] = {"active", "paused", "held", "ended", "invalid"};

// What is not in the row itself. What is wrong with a row is told in the place of its last error.
ScheduleState state_of(const live::Db &db, const ScheduleRow &row, Micros base, Micros *next, const char **error)
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
	if (db.dormant.load())
		return ScheduleState::held;
	*next = found;
	return found == core::kNever ? ScheduleState::ended : ScheduleState::active;
}

void put_row(const live::Db &db, uint64 i, const ScheduleRow &row, bool with_payload, ReturnSetInfo *rs)
{
	Datum v[kColumns];
	bool null[kColumns];
	HeapTuple tuple = SPI_tuptable->vals[i];
	TupleDesc desc = SPI_tuptable->tupdesc;
	const auto copy = [&](int to, int from) { v[to] = SPI_getbinval(tuple, desc, from + 1, &null[to]); };
	const auto extra = [&](int to, int from) { copy(to, kScheduleColumns + from); };
	// name, queue, kind, payload, cron, every, timezone, catch_up, overlap, options, owner
	constexpr int kFrom[] = {0, 1, 3, 2, 4, 5, 6, 7, 8, 9, 12};
	for (int c = 0; c < static_cast<int>(lengthof(kFrom)); ++c)
		copy(c, kFrom[c]);
	null[3] = null[3] || !with_payload;
	null[9] = !with_payload; // headers are among them
	bool isnull = true;
	const Datum base = SPI_getbinval(tuple, desc, kScheduleColumns + 1, &isnull);
	Micros next = core::kNever;
	const char *error = nullptr;
	const Micros reached = fired_until(row, isnull ? journal::kNoTime : DatumGetTimestampTz(base), live::wall_now());
	const ScheduleState state = state_of(db, row, reached, &next, &error);
	v[11] = CStringGetTextDatum(kStates[static_cast<int>(state)]);
	null[11] = false;
	v[12] = TimestampTzGetDatum(next);
	null[12] = next == core::kNever || !IS_VALID_TIMESTAMP(next);
	// last_at, last_job_id, last_outcome, missed, last_error, defined_at, starts_at, ends_at
	extra(13, 1);
	extra(14, 2);
	extra(15, 3);
	extra(16, 4);
	extra(17, 5);
	if (error != nullptr)
	{
		v[17] = CStringGetTextDatum(error);
		null[17] = false;
	}
	extra(18, 6);
	copy(19, 10);
	copy(20, 11);
	tuplestore_putvalues(rs->setResult, rs->setDesc, v, null);
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// tq.schedules(), behind tq_schedules
TQ_FUNCTION(tq_list_schedules)
{
	live::Db &db = live::database(fcinfo);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	const Oid user = GetUserId();
	const live::Rights mine = live::rights(db);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TIMESTAMPTZOID};
	const Datum values[] = {TimestampTzGetDatum(live::wall_now())};
	pg::sql("SELECT " TQ_SCHEDULE_COLUMNS "," TQ_SCHEDULE_SEEN ","
			" l.fire_at, l.job_id, l.outcome,"
			" greatest(least(s.missed + coalesce((SELECT sum(f.missed) FROM tq.schedule_fire f WHERE f.schedule = s.name), 0), 1e18), 0)::bigint,"
			" s.last_error, s.defined_at"
			" FROM tq.schedule s LEFT JOIN LATERAL (SELECT * FROM tq.schedule_fire f WHERE f.schedule = s.name AND "
			"f.fire_at <= $1"
			"  ORDER BY f.fire_at DESC LIMIT 1) l ON true ORDER BY s.name",
			1, types, values, nullptr, true, 0);
	const uint64 rows = SPI_processed;
	for (uint64 i = 0; i < rows; ++i)
	{
		const ScheduleRow row = row_of(i);
		if (has_right(db, mine, user, row, live::kManage | live::kMonitor))
			put_row(db, i, row, has_right(db, mine, user, row, live::kMayRead), rs);
	}
	pg::leave_owner(scope);
	return static_cast<Datum>(0);
}
