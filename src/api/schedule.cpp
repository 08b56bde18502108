#include "api/schedule.hpp"

extern "C"
{
#include "utils/fmgrprotos.h"
#include "utils/json.h"
}

#include "api/args.hpp"
#include "api/job_options.hpp"
#include "api/schedule_next.hpp"
#include "live/attach.hpp"
#include "live/retention.hpp"
#include "pg/json_values.hpp"
#include "pg/owner.hpp"
#include "pg/zone.hpp"

namespace tq::api
{

namespace
{

using pg::Named;

constexpr const char *kCatchUps[] = {"none", "latest", "all", nullptr};								 // as core::CatchUp
constexpr const char *kOverlaps[] = {"allow", "skip", "cancel", nullptr};							 // as Overlap
constexpr const char *kOutcomes[] = {"fired", "skipped", "missed", "duplicate", "denied", "manual"}; // as FireOutcome

// Those of tq_enqueue's arguments that have no place of their own in tq_schedule, and the schedule's own. All other keys are options of
// tq_enqueue.
constexpr const char *kKeys[] = {"delay",  "end",	"expires_in",	"group_key",	"headers",
								 "jitter", "late",	"max_attempts", "max_catch_up", "priority",
								 "retry",  "start", "timeout",		"unique_key",	"unique_mode"};
constexpr const char *kFire = "schedule"; // key in the job's headers

// What makes no sense for jobs that come again and again.
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
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown %s \"%s\"", what, word),
					errhint("Known are %s.", pg::listed(words))));
}

text *text_in(const Named &at, const JsonbValue &v)
{
	if (v.type != jbvString)
		pg::bad_value(at, "It must be a string.");
	return cstring_to_text_with_len(v.val.string.val, v.val.string.len);
}

Jsonb *object_in(const Named &at, const JsonbValue &v)
{
	if (v.type != jbvBinary || !JsonContainerIsObject(v.val.binary.data))
		pg::bad_value(at, "It must be a JSON object.");
	return JsonbValueToJsonb(const_cast<JsonbValue *>(&v));
}

// With the zone's clocks where the text has no offset.
TimestampTz time_in(const Named &at, const JsonbValue &v, const char *timezone)
{
	if (v.type != jbvString)
		pg::bad_value(at, "It must be a string with a time, such as \"2026-12-24 18:00\".");
	const int level = NewGUCNestLevel();
	static_cast<void>(
		set_config_option("TimeZone", timezone, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false));
	const TimestampTz t = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(pg::string_of(v)),
																  ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
	AtEOXact_GUC(true, level);
	if (TIMESTAMP_NOT_FINITE(t))
		pg::bad_value(at, "It must be finite; leave it out if there is no such bound.");
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
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("end must not be before start")));
	return r;
}

// {"schedule": {"name": ..., "fire_at": ...}} beside the headers that the schedule gives.
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
	live::check_name("name", row.name);
	live::check_name("queue", row.queue);
	s.name = row.name;
	s.queue = row.queue;
	s.owner = row.owner;
	s.revision = row.revision;
	s.paused = row.paused;
	s.times = recurrence_of(row);
	s.catch_up = static_cast<core::CatchUp>(word_of("catch_up", row.catch_up, kCatchUps));
	s.overlap = static_cast<Overlap>(word_of("overlap", row.overlap, kOverlaps));
	s.max_catch_up = 100;
	s.late = 60 * Micros{1000000};
	s.item.row.payload = row.payload;
	s.item.row.priority = core::kUnset;
	s.item.row.kind = row.kind;
	if (row.kind != nullptr)
	{
		s.item.kind = text_to_cstring(row.kind);
		check_row_name("kind", row.kind, core::kNameMax - 1);
	}
	if (!JB_ROOT_IS_OBJECT(row.options))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("options must be a JSON object")));
	parse_job_options(row, &s);
	return s;
}

void parse_bounds(Jsonb *options, const char *timezone, TimestampTz *start, TimestampTz *end)
{
	*start = *end = journal::kNoTime;
	if (!JB_ROOT_IS_OBJECT(options))
		return; // parse_schedule complains
	static_cast<void>(pg::find_zone(timezone));
	for (const char *key : {"start", "end"})
	{
		const JsonbValue *v = getKeyJsonValueFromContainer(&options->root, key, static_cast<int>(strlen(key)), nullptr);
		if (v != nullptr && v->type != jbvNull)
			*(*key == 's' ? start : end) = time_in(Named{"option", key}, *v, timezone);
	}
}

ScheduleRow row_of(uint64 i)
{
	HeapTuple tuple = SPI_tuptable->vals[i];
	TupleDesc desc = SPI_tuptable->tupdesc;
	bool null[kScheduleColumns];
	Datum v[kScheduleColumns];
	for (int c = 0; c < kScheduleColumns; ++c)
		v[c] = SPI_getbinval(tuple, desc, c + 1, &null[c]);
	const auto string = [&](int c) { return null[c] ? nullptr : text_to_cstring(DatumGetTextPP(v[c])); };
	const auto time = [&](int c) { return null[c] ? journal::kNoTime : DatumGetTimestampTz(v[c]); };
	ScheduleRow r{};
	r.name = string(0);
	r.queue = string(1);
	r.payload = DatumGetJsonbPCopy(v[2]);
	r.kind = null[3] ? nullptr : DatumGetTextPCopy(v[3]);
	r.cron = string(4);
	if (!null[5])
	{
		auto *every = static_cast<Interval *>(palloc(sizeof(Interval)));
		*every = *DatumGetIntervalP(v[5]);
		r.every = every;
	}
	r.timezone = string(6);
	r.catch_up = string(7);
	r.overlap = string(8);
	r.options = DatumGetJsonbPCopy(v[9]);
	r.starts_at = time(10);
	r.ends_at = time(11);
	r.owner = DatumGetObjectId(v[12]);
	r.anchor = time(13);
	r.fired_until = time(14);
	r.revision = DatumGetInt64(v[15]);
	r.paused = DatumGetBool(v[16]);
	return r;
}

bool has_right(live::Db &db, const live::Rights &rights, Oid role, const ScheduleRow &row, uint8 on_queue)
{
	if (has_privs_of_role(role, row.owner))
		return true;
	uint16_t slot = live::find_queue(db, row.queue);
	if (slot == live::kNoQueue && live::read_queues(db, row.queue) > 0) // before the first load
		slot = live::find_queue(db, row.queue);
	return slot != live::kNoQueue ? rights.may(live::engine.queue(slot), on_queue)
								  : (rights.everywhere & on_queue) != 0;
}

core::JobId put_job(live::Db &db, const Schedule &s, Micros fire_at, Micros now, bool *made)
{
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(s.owner)))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("the role that schedule \"%s\" belongs to does not exist", s.name),
						errhint("Define the schedule again.")));
	EnqueueItem item = s.item;
	// what is caught up counts from now: else the random part would spread nothing
	constexpr Micros kInTime = 1000000;
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
	const uint16_t queue = live::queue_for_enqueue(db, s.queue);
	int64 id = 0;
	enqueue(db, queue, &item, 1, &id);
	SetUserIdAndSecContext(user, security);
	*made = item.made;
	return id;
}

bool can_record_fire(const live::Db &db, const Schedule &s)
{
	const Oid types[] = {TEXTOID, INT8OID};
	const Datum values[] = {CStringGetTextDatum(s.name), Int64GetDatum(s.revision)};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("SELECT FROM tq.schedule WHERE name = $1 AND revision = $2 FOR KEY SHARE SKIP LOCKED", 2, types, values, nullptr, false, 0);
	const bool yes = SPI_processed > 0;
	pg::leave_owner(scope);
	return yes;
}

bool record_fire(const live::Db &db, const Schedule &s, Micros fire_at, Micros now, core::JobId job, int64 missed,
				 FireOutcome outcome)
{
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TEXTOID, INT8OID};
	const Micros kept_until = now + live::retention_of_queue(live::find_queue(db, s.queue)).finished;
	const Datum values[] = {CStringGetTextDatum(s.name),
							TimestampTzGetDatum(fire_at),
							Int64GetDatum(job),
							TimestampTzGetDatum(now),
							TimestampTzGetDatum(kept_until),
							Int64GetDatum(missed),
							CStringGetTextDatum(kOutcomes[static_cast<int>(outcome)]),
							Int64GetDatum(s.revision)};
	const char nulls[] = {' ', ' ', job != 0 ? ' ' : 'n', ' ', job != 0 ? ' ' : 'n', ' ', ' ', ' ', '\0'};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	// whoever drops the schedule in an open transaction is not waited for
	pg::sql("INSERT INTO tq.schedule_fire (schedule, fire_at, job_id, at, kept_until, missed, outcome)"
			" SELECT s.name, $2, $3, $4, $5, $6, $7 FROM tq.schedule s WHERE s.name = $1 AND s.revision = $8"
			" FOR KEY SHARE SKIP LOCKED ON CONFLICT DO NOTHING",
			8, types, values, nulls, false, 0);
	const bool recorded = SPI_processed > 0;
	pg::leave_owner(scope);
	return recorded;
}

} // namespace tq::api
