// tq_schedule, tq_unschedule, tq_schedule_pause, tq_schedule_resume, tq_schedule_run.
// Regime: PG. Locks: a heavyweight lock on the schedule's name to the end of the transaction, so that those who change one come one after
// the other; the scheduler does not take it.
#include "api/args.hpp"
#include "api/job_options.hpp"
#include "api/schedule.hpp"
#include "live/activation.hpp"
#include "live/attach.hpp"
#include "live/load.hpp"
#include "live/queue_changes.hpp"
#include "live/schedule_changes.hpp"
#include "live/xact.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"

namespace tq::api
{

namespace
{

using live::Db;
using live::engine;

void lock_schedule(const char *name)
{
	const Oid table = get_relname_relid("schedule", get_namespace_oid("tq", false));
	LockDatabaseObject(table, static_cast<Oid>(core::hash_name(name)), 0, ExclusiveLock);
}

// False if there is none of that name.
bool read_schedule(const Db &db, const char *name, ScheduleRow *row)
{
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TEXTOID};
	const Datum values[] = {CStringGetTextDatum(name)};
	pg::sql("SELECT " TQ_SCHEDULE_COLUMNS " FROM tq.schedule s WHERE s.name = $1", 1, types, values, nullptr, true, 1);
	const bool found = SPI_processed > 0;
	if (found)
	{
		const MemoryContext inner = MemoryContextSwitchTo(caller);
		*row = row_of(0);
		MemoryContextSwitchTo(inner);
	}
	pg::leave_owner(scope);
	return found;
}

void require_change(Db &db, const ScheduleRow &row)
{
	if (!has_right(db, live::rights(db), GetUserId(), row, live::kManage))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for schedule \"%s\"", row.name),
				 errdetail("It belongs to another role, and the privilege manage on its queue is missing.")));
}

// The schedule of that name, which the caller may change, with its name locked.
ScheduleRow schedule_to_change(FunctionCallInfo fcinfo, Db **db)
{
	const char *name = text_required(fcinfo, 0, "name");
	*db = &live::database(fcinfo);
	ScheduleRow row{};
	for (int locked = 0; locked < 2; ++locked)
	{
		if (!read_schedule(**db, name, &row))
			ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("schedule \"%s\" does not exist", name),
							errhint("The view tq_schedules lists those that there are.")));
		require_change(**db, row);
		if (locked == 0)
			lock_schedule(name); // only now: who has no business here holds nobody up
	}
	return row;
}

// Runs one statement on the schedule of that name; $2 is the time.
void write(const Db &db, const char *sql, const char *name, TimestampTz now)
{
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID};
	const Datum values[] = {CStringGetTextDatum(name), TimestampTzGetDatum(now)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(sql, strstr(sql, "$2") != nullptr ? 2 : 1, types, values, nullptr, false, 0);
	pg::leave_owner(scope);
}

bool same_text(const char *a, const char *b) noexcept
{
	return a == b || (a != nullptr && b != nullptr && strcmp(a, b) == 0);
}

bool same_interval(const Interval *a, const Interval *b)
{
	return a == b || (a != nullptr && b != nullptr &&
					  DatumGetBool(DirectFunctionCall2(interval_eq, IntervalPGetDatum(a), IntervalPGetDatum(b))));
}

bool same_times(const ScheduleRow &a, const ScheduleRow &b)
{
	return same_text(a.cron, b.cron) && same_interval(a.every, b.every) && same_text(a.timezone, b.timezone) &&
		   a.starts_at == b.starts_at && a.ends_at == b.ends_at;
}

void write_row(const Db &db, const ScheduleRow &r, TimestampTz now)
{
	const Oid types[] = {TEXTOID, TEXTOID,		  JSONBOID,		  TEXTOID,		 TEXTOID,		 INTERVALOID,
						 TEXTOID, TEXTOID,		  TEXTOID,		  JSONBOID,		 TIMESTAMPTZOID, TIMESTAMPTZOID,
						 OIDOID,  TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	const auto string = [](const char *s) { return s != nullptr ? CStringGetTextDatum(s) : static_cast<Datum>(0); };
	const Datum values[] = {string(r.name),
							string(r.queue),
							JsonbPGetDatum(r.payload),
							PointerGetDatum(r.kind),
							string(r.cron),
							PointerGetDatum(r.every),
							string(r.timezone),
							string(r.catch_up),
							string(r.overlap),
							JsonbPGetDatum(r.options),
							TimestampTzGetDatum(r.starts_at),
							TimestampTzGetDatum(r.ends_at),
							ObjectIdGetDatum(r.owner),
							TimestampTzGetDatum(r.anchor),
							TimestampTzGetDatum(r.fired_until),
							TimestampTzGetDatum(now)};
	char nulls[lengthof(values) + 1];
	memset(nulls, ' ', lengthof(values));
	nulls[lengthof(values)] = '\0';
	nulls[3] = r.kind != nullptr ? ' ' : 'n';
	nulls[4] = r.cron != nullptr ? ' ' : 'n';
	nulls[5] = r.every != nullptr ? ' ' : 'n';
	nulls[10] = r.starts_at != journal::kNoTime ? ' ' : 'n';
	nulls[11] = r.ends_at != journal::kNoTime ? ' ' : 'n';
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	// the first revision is none that a schedule of this name had that was dropped, which the scheduler may still be at (record_fire)
	pg::sql(
		"INSERT INTO tq.schedule AS s (name, queue, payload, kind, cron, every, timezone, catch_up, overlap, options,"
		" starts_at, ends_at, owner, anchor, fired_until, defined_at, revision, paused)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::regrole, $14, $15, $16, pg_current_xact_id()::text::bigint << 20, false)"
		" ON CONFLICT (name) DO UPDATE SET queue = $2, payload = $3, kind = $4, cron = $5, every = $6, timezone = $7,"
		" catch_up = $8, overlap = $9, options = $10, starts_at = $11, ends_at = $12, owner = $13::regrole,"
		" anchor = $14,"
		" fired_until = $15, defined_at = $16, revision = s.revision + 1, last_error = NULL",
		lengthof(values), types, values, nulls, false, 0);
	pg::leave_owner(scope);
}

// A schedule is a use of the queues: without it, those of a new extension would be held. Whether they are is not known before there was a
// scheduler.
void note_first_use(Db &db)
{
	if (live::read_identity(db) != live::Identity::fresh)
		return;
	live::reserve_queue_change(db);
	live::record_identity(db);
	live::QueueChange c{};
	c.edit = live::QueueEdit::activated;
	live::note_queue_change(c);
}

const char *text_or(FunctionCallInfo fcinfo, int i, const char *otherwise)
{
	return given(fcinfo, i) ? text_to_cstring(PG_GETARG_TEXT_PP(i)) : otherwise;
}

// name, queue, payload, kind, cron, every, timezone, catch_up, overlap, options
ScheduleRow row_of_call(FunctionCallInfo fcinfo)
{
	ScheduleRow r{};
	r.name = text_required(fcinfo, 0, "name");
	r.queue = text_required(fcinfo, 1, "queue");
	require(fcinfo, 2, "payload");
	r.payload = PG_GETARG_JSONB_P(2);
	check_payload(r.payload);
	r.kind = given(fcinfo, 3) ? PG_GETARG_TEXT_PP(3) : nullptr;
	r.cron = text_or_null(fcinfo, 4);
	r.every = given(fcinfo, 5) ? PG_GETARG_INTERVAL_P(5) : nullptr;
	r.timezone = text_or(fcinfo, 6, "UTC");
	r.catch_up = text_or(fcinfo, 7, "latest");
	r.overlap = text_or(fcinfo, 8, "allow");
	r.options =
		given(fcinfo, 9) ? PG_GETARG_JSONB_P(9) : DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
	r.owner = GetUserId();
	parse_bounds(r.options, r.timezone, &r.starts_at, &r.ends_at);
	return r;
}

// `every` counts from the start, or from one length after the definition; a definition with the same times changes nothing about them.
void place_in_time(ScheduleRow *r, const ScheduleRow *former, TimestampTz now)
{
	if (former != nullptr && same_times(*r, *former))
	{
		r->anchor = former->anchor;
		r->fired_until = former->fired_until;
		return;
	}
	r->anchor = r->starts_at != journal::kNoTime ? r->starts_at : now;
	r->fired_until = former != nullptr ? std::max(former->fired_until, now) : now;
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_schedule)
{
	require_writable("tq_schedule()");
	ScheduleRow row = row_of_call(fcinfo);
	const core::Micros now = live::wall_now();
	place_in_time(&row, nullptr, now);
	const bool fires = core::next_time(parse_schedule(row).times, now) != core::kNever;
	live::Db &db = live::database(fcinfo);
	lock_schedule(row.name);
	ScheduleRow former{};
	const bool replaces = read_schedule(db, row.name, &former);
	if (replaces)
		require_change(db, former);
	// who defines the same again may do so after the last time, too
	if (!fires && !(replaces && same_times(row, former)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("schedule \"%s\" would never fire", row.name),
						errdetail("None of its times is between now and its end.")));
	check_option_target(db, row.options); // last, since it may name a queue, as does the next
	static_cast<void>(live::queue_for_enqueue(db, row.queue));
	place_in_time(&row, replaces ? &former : nullptr, now);
	write_row(db, row, now);
	note_first_use(db);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_unschedule)
{
	require_writable("tq_unschedule()");
	live::Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, &db);
	write(*db, "DELETE FROM tq.schedule WHERE name = $1", row.name, 0);
	write(*db, "DELETE FROM tq.schedule_fire WHERE schedule = $1", row.name, 0);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_schedule_pause)
{
	require_writable("tq_schedule_pause()");
	live::Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, &db);
	write(*db, "UPDATE tq.schedule SET paused = true, revision = revision + 1 WHERE name = $1 AND NOT paused", row.name,
		  0);
	PG_RETURN_VOID();
}

// What would have fired during the pause is not caught up.
TQ_FUNCTION(tq_schedule_resume)
{
	require_writable("tq_schedule_resume()");
	live::Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, &db);
	write(*db,
		  "UPDATE tq.schedule SET paused = false, revision = revision + 1, fired_until = greatest(fired_until, $2)"
		  " WHERE name = $1 AND paused",
		  row.name, live::wall_now());
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_schedule_run)
{
	require_writable("tq_schedule_run()");
	live::Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, &db);
	const Schedule s = parse_schedule(row);
	const core::Micros now = live::wall_now();
	bool made = false;
	const core::JobId id = put_job(*db, s, now, now, &made);
	// a time of the schedule itself that is exactly now stays free
	const core::JobId own = made ? id : 0;
	core::Micros at = core::next_time(s.times, now - 1) == now ? now + 1 : now;
	while (!record_fire(*db, s, at, now, own, 0, FireOutcome::manual))
		if (++at > now + 1000)
			ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("schedule \"%s\" is being dropped", s.name)));
	live::mark_schedules(); // which job is the last one
	if (id == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(id);
}
