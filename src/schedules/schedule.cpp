#include "schedules/schedule.hpp"

extern "C"
{
#include "utils/fmgrprotos.h"
#include "utils/json.h"
}

#include "queues/queue_names.hpp"
#include "api/args.hpp"
#include "jobs/job_options.hpp"
#include "schedules/schedule_next.hpp"
#include "api/sizes.hpp"
#include "pg/json_values.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"
#include "pg/zone.hpp"

namespace tq
{

namespace
{

using pg::Named;

constexpr const char *kCatchUps[] = {"none", "latest", "all", nullptr};								 // as core::CatchUp
constexpr const char *kOverlaps[] = {"allow", "skip", "cancel", nullptr};							 // as Overlap
constexpr const char *kOutcomes[] = {"fired", "skipped", "missed", "duplicate", "denied", "manual"}; // as FireOutcome

// Keys of tq_schedule's options that are arguments of tq_enqueue or options of the schedule itself. All other keys are
// options of tq_enqueue.
constexpr const char *kKeys[] = {"delay",  "end",	"expires_in",	"group_key",	"headers",
								 "jitter", "late",	"max_attempts", "max_catch_up", "priority",
								 "retry",  "start", "timeout",		"unique_key",	"unique_mode"};
constexpr const char *kFire = "schedule"; // key in the job's headers, see headers_of()

// Options that make no sense for jobs that repeat.
bool only_for_one_job(const char *key) noexcept
{
	return strcmp(key, "on_parent_failure") == 0 || strcmp(key, "batch") == 0;
}

bool is_own_key(const char *key) noexcept
{
	for (const char *k : kKeys)
		if (strcmp(k, key) == 0)
			return true;
	return false;
}

int by_name(const void *a, const void *b)
{
	return strcmp(*static_cast<const char *const *>(a), *static_cast<const char *const *>(b));
}

const char *const *known_keys()
{
	static const char **known = nullptr;
	if (known != nullptr)
		return known;
	const char *const *of_job = job_option_names();
	size_t n = 0;
	while (of_job[n] != nullptr)
		++n;
	const Size bytes = sizeof(char *) * (n + lengthof(kKeys) + 1);
	known = static_cast<const char **>(MemoryContextAlloc(TopMemoryContext, bytes));
	size_t k = 0;
	for (const char *key : kKeys)
		known[k++] = key;
	for (size_t i = 0; i < n; ++i)
		if (!only_for_one_job(of_job[i]))
			known[k++] = of_job[i];
	qsort(known, k, sizeof(char *), by_name);
	known[k] = nullptr;
	return known;
}

int word_of(const char *what, const char *word, const char *const *words)
{
	for (int i = 0; words[i] != nullptr; ++i)
		if (strcmp(word, words[i]) == 0)
			return i;
	pg::unknown_word(psprintf("unknown %s \"%s\"", what, word), word, "Known are", words);
}

text *text_in(const Named &at, const JsonbValue &v)
{
	if (v.type != jbvString)
		pg::bad_value(at, v, "It must be a string.");
	return cstring_to_text_with_len(v.val.string.val, v.val.string.len);
}

Jsonb *object_in(const Named &at, const JsonbValue &v)
{
	if (v.type != jbvBinary || !JsonContainerIsObject(v.val.binary.data))
		pg::bad_value(at, v, "It must be a JSON object.");
	return JsonbValueToJsonb(const_cast<JsonbValue *>(&v));
}

// A text without an offset is in the time zone.
TimestampTz time_in(const Named &at, const JsonbValue &v, const char *timezone)
{
	if (v.type != jbvString)
		pg::bad_value(at, v, "It must be a string with a time, such as \"2026-12-24 18:00\".");
	const int level = NewGUCNestLevel();
	static_cast<void>(
		set_config_option("TimeZone", timezone, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false));
	const TimestampTz t = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(pg::string_of(v)),
																  ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
	AtEOXact_GUC(true, level);
	if (TIMESTAMP_NOT_FINITE(t))
		pg::bad_value(at, v, "It must be finite; leave it out if there is no such bound.");
	return t;
}

void parse_job_options(const ScheduleRow &row, Schedule *s)
{
	journal::JobRow &job = s->item.row;
	pg::Members m = pg::members_of(row.options, known_keys(), "options");
	bool others = false;
	while (pg::next_member(&m))
	{
		const char *key = m.key;
		const JsonbValue &v = m.value;
		const Named at{"option", key};
		others = others || !is_own_key(key);
		if (strcmp(key, "delay") == 0)
			s->delay = pg::duration_in(at, v, 0, pg::kLongest);
		else if (strcmp(key, "expires_in") == 0)
			s->expires_in = pg::duration_in(at, v, 1000, pg::kLongest);
		else if (strcmp(key, "group_key") == 0)
			check_row_name(key, job.group_key = text_in(at, v), kGroupKeyMax);
		else if (strcmp(key, "headers") == 0)
			job.headers = object_in(at, v);
		else if (strcmp(key, "jitter") == 0)
			s->jitter = pg::duration_in(at, v, 0, pg::kLongest);
		else if (strcmp(key, "late") == 0)
			s->late = pg::duration_in(at, v, 0, pg::kLongest);
		else if (strcmp(key, "max_attempts") == 0)
			job.max_attempts = static_cast<int32>(pg::integer_in(at, v, 1, 65535));
		else if (strcmp(key, "max_catch_up") == 0)
			s->max_catch_up = static_cast<int>(pg::integer_in(at, v, 1, kMostCaughtUp));
		else if (strcmp(key, "priority") == 0)
			job.priority = static_cast<int32>(pg::integer_in(at, v, PG_INT16_MIN, PG_INT16_MAX));
		else if (strcmp(key, "retry") == 0)
			job.retry = checked_retry(object_in(at, v));
		else if (strcmp(key, "timeout") == 0)
			job.timeout = pg::duration_in(at, v, 1000, pg::kLongest);
		else if (strcmp(key, "unique_key") == 0)
			check_key(key, s->item.unique_key = text_in(at, v), kUniqueKeyMax);
		else if (strcmp(key, "unique_mode") == 0)
			s->item.mode = parse_unique_mode(text_in(at, v));
	}
	if (job.headers != nullptr &&
		getKeyJsonValueFromContainer(&job.headers->root, kFire, static_cast<int>(strlen(kFire)), nullptr) != nullptr)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("headers of a schedule must not have the key \"%s\"", kFire),
						errdetail("There its jobs find the name of the schedule and the time that they are for.")));
	if (!others)
		return;
	// the other keys, as tq_enqueue parses them
	Datum own[lengthof(kKeys)];
	for (size_t i = 0; i < lengthof(kKeys); ++i)
		own[i] = CStringGetTextDatum(kKeys[i]);
	const ArrayType *keys = construct_array(own, lengthof(kKeys), TEXTOID, -1, false, TYPALIGN_INT);
	const Datum rest = DirectFunctionCall2(jsonb_delete_array, JsonbPGetDatum(row.options), PointerGetDatum(keys));
	parse_options(DatumGetJsonbP(rest), &job, &s->item.unique_for);
}

core::Recurrence recurrence_of(const ScheduleRow &row)
{
	core::Recurrence r{};
	if ((row.cron != nullptr) == (row.every != nullptr))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg(row.cron != nullptr ? "cron and every cannot both be given" : "cron or every must be given")));
	r.zone = pg::core_zone(pg::find_zone(row.timezone));
	r.by_cron = row.cron != nullptr;
	if (r.by_cron)
		r.cron = cron_of(row.cron);
	else
		r.every = pg::interval_micros(row.every, "every", kShortestEvery);
	r.anchor = row.anchor;
	r.first = row.starts_at != journal::kNoTime ? row.starts_at : MIN_TIMESTAMP;
	r.last = row.ends_at != journal::kNoTime ? row.ends_at : core::kNever;
	if (row.starts_at != journal::kNoTime && row.ends_at != journal::kNoTime && row.ends_at < row.starts_at)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("end must not be before start"),
						errdetail("They are %s and %s.", pstrdup(timestamptz_to_str(row.ends_at)),
								  pstrdup(timestamptz_to_str(row.starts_at)))));
	return r;
}

// Adds {"schedule": {"name": ..., "fire_at": ...}} to the headers of the schedule.
Jsonb *headers_of(const Schedule &s, Micros fire_at)
{
	StringInfoData json;
	initStringInfo(&json);
	appendStringInfo(&json, "{\"%s\": {\"name\": ", kFire);
	escape_json(&json, s.name);
	const int utc = 0;
	appendStringInfo(&json, ", \"fire_at\": \"%s\"}}",
					 JsonEncodeDateTime(nullptr, TimestampTzGetDatum(fire_at), TIMESTAMPTZOID, &utc));
	const Datum own = DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
	if (s.item.row.headers == nullptr)
		return DatumGetJsonbP(own);
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat, JsonbPGetDatum(s.item.row.headers), own));
}

} // namespace

Schedule parse_schedule(const ScheduleRow &row)
{
	Schedule s{};
	check_name("name", row.name);
	check_name("queue", row.queue);
	s.name = row.name;
	s.queue = row.queue;
	s.owner = row.owner;
	s.revision = row.revision;
	s.paused = row.paused;
	s.times = recurrence_of(row);
	s.catch_up = static_cast<core::CatchUp>(word_of("catch_up", row.catch_up, kCatchUps));
	s.overlap = static_cast<Overlap>(word_of("overlap", row.overlap, kOverlaps));
	s.max_catch_up = 100;
	s.late = 60 * core::kSecond;
	s.item.row.payload = row.payload;
	s.item.row.priority = core::kUnset;
	s.item.row.kind = row.kind;
	if (row.kind != nullptr)
	{
		s.item.kind = text_to_cstring(row.kind);
		check_row_name("kind", row.kind, core::kNameMax - 1);
	}
	if (!JB_ROOT_IS_OBJECT(row.options))
		pg::not_an_object("options", row.options);
	parse_job_options(row, &s);
	return s;
}

void parse_bounds(Jsonb *options, const char *timezone, TimestampTz *start, TimestampTz *end)
{
	*start = *end = journal::kNoTime;
	if (!JB_ROOT_IS_OBJECT(options))
		return; // parse_schedule raises the error
	static_cast<void>(pg::find_zone(timezone));
	for (const char *key : {"start", "end"})
	{
		const JsonbValue *v = getKeyJsonValueFromContainer(&options->root, key, static_cast<int>(strlen(key)), nullptr);
		if (v != nullptr && v->type != jbvNull)
			*(*key == 's' ? start : end) = time_in(Named{"option", key}, *v, timezone);
	}
}

// Replaces a null in a column that must not be null by a value that parse_schedule() refuses.
ScheduleRow row_of(uint64 i, bool with_payload)
{
	// a row written by hand may hold more than any setting allows
	constexpr Size kMostOptions = 1048576 + 33554432; // with the headers
	constexpr Size kMostPayload = MaxAllocSize;
	const auto word = [i](const char *c) {
		const char *s = pg::spi_text(i, c, kTimeZoneLimit.bytes);
		return s != nullptr ? s : "";
	};
	const auto json = [i](const char *c, Size most) {
		Jsonb *j = pg::spi_jsonb(i, c, most);
		return j != nullptr ? j : DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("null")));
	};
	bool null = false;
	ScheduleRow r{};
	r.name = word("name");
	r.queue = word("queue");
	r.payload = with_payload ? json("payload", kMostPayload) : nullptr;
	const char *kind = pg::spi_text(i, "kind", kNameLimit.bytes);
	r.kind = kind != nullptr ? cstring_to_text(kind) : nullptr;
	r.cron = pg::spi_text(i, "cron", kCronLimit.bytes);
	const Datum every = pg::spi_value(i, "every", INTERVALOID, &null);
	if (!null)
	{
		auto *copy = static_cast<Interval *>(palloc(sizeof(Interval)));
		*copy = *DatumGetIntervalP(every);
		r.every = copy;
	}
	r.timezone = word("timezone");
	r.catch_up = word("catch_up");
	r.overlap = word("overlap");
	r.options = json("options", kMostOptions);
	r.starts_at = pg::spi_time(i, "starts_at", journal::kNoTime);
	r.ends_at = pg::spi_time(i, "ends_at", journal::kNoTime);
	const Datum owner = pg::spi_value(i, "owner", REGROLEOID, &null);
	r.owner = null ? InvalidOid : DatumGetObjectId(owner);
	r.anchor = pg::spi_time(i, "anchor", journal::kNoTime);
	r.fired_until = pg::spi_time(i, "fired_until", journal::kNoTime);
	r.revision = pg::spi_int8(i, "revision");
	r.paused = pg::spi_bool(i, "paused");
	return r;
}

bool has_right(Db &db, const Rights &rights, Oid role, const ScheduleRow &row, uint8 on_queue)
{
	if (has_privs_of_role(role, row.owner))
		return true;
	const uint16_t slot = find_or_read(db, row.queue); // before the first load, a queue may have only its row
	return slot != kNoQueue ? rights.may(engine.queue(slot), on_queue) : (rights.everywhere & on_queue) != 0;
}

core::JobId put_job(Db &db, const Schedule &s, Micros fire_at, Micros now, bool *made)
{
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(s.owner)))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), // the scheduler records the time as denied
						errmsg("the role that schedule \"%s\" belongs to does not exist", s.name),
						errhint(OidIsValid(s.owner) ? "Define the schedule again."
													: "Create the role and call tq_activate().")));
	EnqueueItem item = s.item;
	// a time that is caught up counts from now: otherwise the jitter would spread nothing
	constexpr Micros kInTime = core::kSecond;
	const Micros start =
		(now - fire_at < kInTime ? fire_at : now) + s.delay + core::spread(core::hash_name(s.name), fire_at, s.jitter);
	if (start > now)
		item.row.run_at = start;
	if (s.expires_in > 0)
		item.row.expires_at = std::max(start, now) + s.expires_in;
	item.row.headers = headers_of(s, fire_at);
	Oid user = InvalidOid;
	int security = 0;
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(s.owner, security | SECURITY_LOCAL_USERID_CHANGE);
	const uint16_t queue = queue_for_enqueue(db, s.queue);
	int64 id = 0;
	enqueue(db, queue, &item, 1, &id);
	SetUserIdAndSecContext(user, security); // after an error, the abort does it
	*made = item.made;
	return id;
}

pg::OwnerScope enter_schedules(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	static_cast<void>(
		set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false));
	return scope;
}

bool can_record_fire(const Db &db, const Schedule &s)
{
	static pg::Statement free{
		"SELECT FROM tq.schedule WHERE name = $1 AND revision = $2 FOR KEY SHARE SKIP LOCKED", 2, {TEXTOID, INT8OID}};
	Datum values[] = {CStringGetTextDatum(s.name), Int64GetDatum(s.revision)};
	const pg::OwnerScope scope = enter_schedules(db);
	const bool yes = pg::run(free, values, nullptr) > 0;
	pg::leave_owner(scope);
	return yes;
}

bool record_fire(const Db &db, const Schedule &s, const Fire &fire)
{
	// SKIP LOCKED: does not wait for a transaction that is dropping the schedule
	static pg::Statement record{
		"INSERT INTO tq.schedule_fire (schedule, fire_at, job_id, at, missed, outcome)"
		" SELECT s.name, $2, $3, $4, $5, $6 FROM tq.schedule s WHERE s.name = $1 AND s.revision = $7"
		" FOR KEY SHARE SKIP LOCKED ON CONFLICT DO NOTHING",
		7,
		{TEXTOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, INT8OID, TEXTOID, INT8OID}};
	Datum values[] = {CStringGetTextDatum(s.name),
					  TimestampTzGetDatum(fire.at),
					  Int64GetDatum(fire.job),
					  TimestampTzGetDatum(fire.now),
					  Int64GetDatum(fire.missed),
					  CStringGetTextDatum(kOutcomes[static_cast<int>(fire.outcome)]),
					  Int64GetDatum(s.revision)};
	const char nulls[] = {' ', ' ', fire.job != 0 ? ' ' : 'n', ' ', ' ', ' ', ' ', '\0'};
	const pg::OwnerScope scope = enter_schedules(db);
	const bool recorded = pg::run(record, values, nulls) > 0;
	pg::leave_owner(scope);
	return recorded;
}

} // namespace tq
