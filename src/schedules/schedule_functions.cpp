// tq_schedule, tq_unschedule, tq_schedule_pause, tq_schedule_resume, tq_schedule_run.
// Regime: PG. Locks: a heavyweight lock on the schedule's name to the end of the transaction, so that changes of one
// schedule are serialized. A call that adds a schedule also locks its queue and the role against other calls that add
// some. The scheduler takes none of these.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/job_options.hpp"
#include "queues/actions.hpp"
#include "queues/queue_names.hpp"
#include "schedules/schedule.hpp"
#include "transaction/pending.hpp"
#include "pg/function.hpp"
#include "pg/near_words.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// Objects that a call locks to the end of the transaction, in this order.
enum class Locked : uint16
{
	name,
	queue, // by calls that add a schedule to the queue
	role,  // by calls that add a schedule of the role
};

void lock(Locked what, uint64 which)
{
	const Oid table = get_relname_relid("schedule", get_namespace_oid("tq", false));
	LockDatabaseObject(table, static_cast<Oid>(which), static_cast<uint16>(what), ExclusiveLock);
}

void lock_schedule(const char *name) { lock(Locked::name, core::hash_name(name)); }

// False if there is no schedule of that name.
bool read_schedule(const Db &db, const char *name, ScheduleRow *row)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TEXTOID};
	const Datum values[] = {CStringGetTextDatum(name)};
	pg::sql("SELECT " TQ_SCHEDULE_COLUMNS " FROM tq.schedule s WHERE s.name = $1", {types, values}, true, 1);
	const bool found = SPI_processed > 0;
	if (found)
		*row = pg::outside(scope, [] { return row_of(0, true); });
	pg::leave_owner(scope);
	return found;
}

void require_change(Db &db, const ScheduleRow &row, uint8 on_queue)
{
	if (!has_right(db, rights(db), GetUserId(), row, on_queue))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("permission denied for schedule \"%s\"", row.name),
				 errdetail("It belongs to another role, and the privilege %s on its queue is missing.",
						   names_of(on_queue))));
}

// The beginning of a hint: the nearest name among the schedules that the caller may see.
const char *perhaps_schedule(Db &db, const char *name)
{
	const Oid user = GetUserId();
	const Rights mine = rights(db);
	pg::Nearest near{name};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT s.name, s.queue, s.owner::oid::regrole AS owner FROM tq.schedule s ORDER BY s.name", {}, true, 0);
	for (uint64 i = 0, rows = SPI_processed; i < rows; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		bool none = false;
		ScheduleRow row{};
		row.name = pg::spi_text(i, "name", kNameLimit.bytes);
		row.queue = pg::spi_text(i, "queue", kNameLimit.bytes);
		const Datum owner = pg::spi_value(i, "owner", REGROLEOID, &none);
		row.owner = none ? InvalidOid : DatumGetObjectId(owner);
		if (row.name != nullptr && row.queue != nullptr &&
			has_right(db, mine, user, row, kOperate | kManage | kInspect))
			pg::consider(&near, row.name);
	}
	pg::leave_owner(scope);
	return pg::perhaps(near);
}

// Reads the schedule of that name and locks its name. Raises unless the caller owns it or has the right on its queue.
ScheduleRow schedule_to_change(FunctionCallInfo fcinfo, uint8 on_queue, Db **db)
{
	const char *name = text_required(fcinfo, 0, "name");
	*db = &database(fcinfo);
	ScheduleRow row{};
	for (int locked = 0; locked < 2; ++locked)
	{
		if (!read_schedule(**db, name, &row))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("schedule \"%s\" does not exist", name),
					 errhint("%sThe view tq_schedules lists those that there are.", perhaps_schedule(**db, name))));
		require_change(**db, row, on_queue);
		if (locked == 0)
			lock_schedule(name); // only now: a caller without the right must not block others
	}
	return row;
}

// Runs one statement on the schedule of that name; $2 is the time.
void write(const Db &db, const char *sql, const char *name, TimestampTz now)
{
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID};
	const Datum values[] = {CStringGetTextDatum(name), TimestampTzGetDatum(now)};
	pg::sql_as_owner(db.extension, sql, {types, values});
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

void record(const Db &db, const char *action, const ScheduleRow &row)
{
	const uint16_t slot = find_queue(db, row.queue);
	record_action(db, action, slot != kNoQueue ? engine.queue(slot).id : kAllQueues, 0,
				  Facts().add("schedule", row.name));
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
	// The first revision differs from every revision of a dropped schedule of the same name. The scheduler may still be
	// working on that one (record_fire).
	pg::sql_as_owner(
		db.extension,
		"INSERT INTO tq.schedule AS s (name, queue, payload, kind, cron, every, timezone, catch_up, overlap, options,"
		" starts_at, ends_at, owner, anchor, fired_until, defined_at, revision, paused)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::regrole, $14, $15, $16, "
		"pg_current_xact_id()::text::bigint << 20, false)"
		" ON CONFLICT (name) DO UPDATE SET queue = $2, payload = $3, kind = $4, cron = $5, every = $6, timezone = $7,"
		" catch_up = $8, overlap = $9, options = $10, starts_at = $11, ends_at = $12, owner = $13::regrole,"
		" anchor = $14,"
		" fired_until = $15, defined_at = $16, revision = s.revision + 1, last_error = NULL",
		{types, values, nulls});
}

// Counts the other schedules of the same queue or role, at most `most`. A call that adds one meanwhile waits for the
// lock.
int64 count_others(const Db &db, const char *sql, const ScheduleRow &r, int most)
{
	const Oid types[] = {TEXTOID, INT4OID, TEXTOID, OIDOID};
	const Datum values[] = {CStringGetTextDatum(r.name), Int32GetDatum(most), CStringGetTextDatum(r.queue),
							ObjectIdGetDatum(r.owner)};
	const pg::OwnerScope scope = enter_schedules(db);
	pg::sql(sql, {types, values}, true, 1);
	const int64 n = pg::spi_int8(0, "count");
	pg::leave_owner(scope);
	return n;
}

// Keeps the number of schedules of a queue and of a role within the settings, even if many transactions add some at the
// same time. If a limit is lowered, existing schedules stay and can be replaced.
void require_capacity(const Db &db, const ScheduleRow &r, const ScheduleRow *former)
{
	const int of_queue = guc::max_schedules_per_queue, of_role = guc::max_schedules_per_role;
	if (of_queue > 0 && (former == nullptr || strcmp(former->queue, r.queue) != 0))
	{
		lock(Locked::queue, core::hash_name(r.queue));
		if (count_others(
				db,
				"SELECT count(*) FROM (SELECT FROM tq.schedule WHERE queue = $3 AND name <> $1 AND $4 > 0 LIMIT $2) x",
				r, of_queue) >= of_queue)
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("too many schedules for queue \"%s\"", r.queue),
					 errdetail("It has at least %d; tq.max_schedules_per_queue allows %d.", of_queue, of_queue),
					 errhint("Drop some with tq_unschedule, or have a superuser raise tq.max_schedules_per_queue.")));
	}
	if (of_role > 0 && (former == nullptr || former->owner != r.owner))
	{
		lock(Locked::role, r.owner);
		if (count_others(db,
						 "SELECT count(*) FROM (SELECT FROM tq.schedule WHERE owner = $4 AND name <> $1 AND $3 <> '' "
						 "LIMIT $2) x",
						 r, of_role) >= of_role)
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("too many schedules of role \"%s\"", GetUserNameFromId(r.owner, false)),
					 errdetail("It has at least %d; tq.max_schedules_per_role allows %d.", of_role, of_role),
					 errhint("Drop some with tq_unschedule, or have a superuser raise tq.max_schedules_per_role.")));
	}
}

const char *text_or(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit, const char *otherwise)
{
	return given(fcinfo, i) ? text_or_null(fcinfo, i, name, limit) : otherwise;
}

// name, queue, payload, kind, cron, every, timezone, catch_up, overlap, options
ScheduleRow row_of_call(FunctionCallInfo fcinfo)
{
	ScheduleRow r{};
	r.name = text_required(fcinfo, 0, "name");
	r.queue = text_required(fcinfo, 1, "queue");
	require(fcinfo, 2, "payload");
	r.payload = jsonb_value(fcinfo, 2, "payload", payload_limit());
	r.kind = text_value(fcinfo, 3, "kind", kNameLimit);
	r.cron = text_or_null(fcinfo, 4, "cron", kCronLimit);
	r.every = given(fcinfo, 5) ? PG_GETARG_INTERVAL_P(5) : nullptr;
	r.timezone = text_or(fcinfo, 6, "timezone", kTimeZoneLimit, "UTC");
	r.catch_up = text_or(fcinfo, 7, "catch_up", kWordLimit, "latest");
	r.overlap = text_or(fcinfo, 8, "overlap", kWordLimit, "allow");
	r.options = given(fcinfo, 9) ? jsonb_value(fcinfo, 9, "options", schedule_options_limit())
								 : DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
	r.owner = GetUserId();
	parse_bounds(r.options, r.timezone, &r.starts_at, &r.ends_at);
	return r;
}

// `every` counts from `start`. Without `start`, the first time is one length after the definition. A definition with
// the same times keeps the anchor and the progress of the former one.
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

TQ_FUNCTION(tq_schedule)
{
	require_writable("tq_schedule()");
	ScheduleRow row = row_of_call(fcinfo);
	const core::Micros now = wall_now();
	place_in_time(&row, nullptr, now);
	const bool fires = core::next_time(parse_schedule(row).times, now) != core::kNever;
	Db &db = database(fcinfo);
	lock_schedule(row.name);
	ScheduleRow former{};
	const bool replaces = read_schedule(db, row.name, &former);
	if (replaces)
		require_change(db, former, kManage);
	// a definition with the same times may be repeated after the last of them
	if (!fires && !(replaces && same_times(row, former)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("schedule \"%s\" would never fire", row.name),
						errdetail("None of its times is between now and its end.")));
	check_option_target(db, row.options);
	static_cast<void>(queue_with_right(db, row.queue, kProduce));
	static_cast<void>(queue_for_enqueue(db, row.queue));
	require_capacity(db, row, replaces ? &former : nullptr);
	place_in_time(&row, replaces ? &former : nullptr, now);
	write_row(db, row, now);
	record(db, "schedule", row);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_unschedule)
{
	require_writable("tq_unschedule()");
	Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, kManage, &db);
	write(*db, "DELETE FROM tq.schedule WHERE name = $1", row.name, 0);
	write(*db, "DELETE FROM tq.schedule_fire WHERE schedule = $1", row.name, 0);
	record(*db, "unschedule", row);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_schedule_pause)
{
	require_writable("tq_schedule_pause()");
	Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, kOperate, &db);
	write(*db, "UPDATE tq.schedule SET paused = true, revision = revision + 1 WHERE name = $1 AND NOT paused", row.name,
		  0);
	record(*db, "schedule_pause", row);
	PG_RETURN_VOID();
}

// Times during the pause are not caught up.
TQ_FUNCTION(tq_schedule_resume)
{
	require_writable("tq_schedule_resume()");
	Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, kOperate, &db);
	write(*db,
		  "UPDATE tq.schedule SET paused = false, revision = revision + 1, fired_until = greatest(fired_until, $2)"
		  " WHERE name = $1 AND paused",
		  row.name, wall_now());
	record(*db, "schedule_resume", row);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_schedule_run)
{
	require_writable("tq_schedule_run()");
	Db *db = nullptr;
	const ScheduleRow row = schedule_to_change(fcinfo, kOperate, &db);
	const Schedule s = parse_schedule(row);
	const core::Micros now = wall_now();
	bool made = false;
	const core::JobId id = put_job(*db, s, now, now, &made);
	// does not use up a time of the schedule itself that is exactly now
	const core::JobId own = made ? id : 0;
	core::Micros at = core::next_time(s.times, now - 1) == now ? now + 1 : now;
	// another fire may have the same time
	while (!record_fire(*db, s, {.at = at, .now = now, .job = own, .outcome = FireOutcome::manual}))
		if (!can_record_fire(*db, s) || ++at > now + 100)
			ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
							errmsg("schedule \"%s\" is being changed or dropped", s.name)));
	// a new row version: the scheduler counts the rows of schedules that have changed
	write(*db, "UPDATE tq.schedule SET revision = revision WHERE name = $1", row.name, 0);
	record(*db, "schedule_run", row);
	if (id == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(id);
}

} // namespace tq
