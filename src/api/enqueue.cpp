// tq_enqueue, tq_enqueue_many, and the trigger behind tq_inbox.
// Regime: PG.
#include "api/args.hpp"
#include "api/enqueue.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/segments.hpp"
#include "live/xact.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"

namespace tq::api
{

void check_payload(const Jsonb *payload)
{
	const Size limit = static_cast<Size>(guc::max_payload) * 1024;
	if (VARSIZE(payload) > limit)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("payload is too large"),
						errdetail("It has %zu bytes; tq.max_payload is %zu.", static_cast<Size>(VARSIZE(payload)), limit),
						errhint("Keep large data in a table of its own and enqueue its key.")));
}

void check_headers(Jsonb *headers)
{
	if (headers != nullptr && !JB_ROOT_IS_OBJECT(headers))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("headers must be a JSON object")));
}

int32 default_priority(uint16_t queue) noexcept
{
	const int32 p = live::engine.queue(queue).settings.priority;
	return p != core::kUnset ? p : kDefaultPriority;
}

TimestampTz start_time(FunctionCallInfo fcinfo, int run_at, int delay)
{
	if (given(fcinfo, run_at) && given(fcinfo, delay))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_at and delay cannot both be given")));
	if (given(fcinfo, delay))
		return live::wall_now() + interval_or(fcinfo, delay, "delay", 0, 0);
	return time_or(fcinfo, run_at, "run_at", journal::kNoTime);
}

namespace
{

// Arguments that both forms have at other places.
struct Common
{
	int priority, run_at, delay, max_attempts, headers;
};

// Everything is checked before the queue is looked up: bad input must not leave a new queue behind. So a priority that is not given stays
// kUnset until the queue is known.
journal::JobRow common_row(FunctionCallInfo fcinfo, const Common &at)
{
	journal::JobRow row;
	row.priority = int_or(fcinfo, at.priority, "priority", core::kUnset, PG_INT16_MIN, PG_INT16_MAX);
	row.run_at = start_time(fcinfo, at.run_at, at.delay);
	row.max_attempts = int_or(fcinfo, at.max_attempts, "max_attempts", 0, 1, 65535);
	if (given(fcinfo, at.headers))
		row.headers = PG_GETARG_JSONB_P(at.headers);
	check_headers(row.headers);
	return row;
}

// Which mode is meant makes no difference without a unique key, but a wrong word is an error today already.
void check_unique_mode(FunctionCallInfo fcinfo, int i)
{
	if (!given(fcinfo, i))
		return;
	const char *mode = text_to_cstring(PG_GETARG_TEXT_PP(i));
	for (const char *known : {"skip", "ignore", "replace", "keep_run_at", "error"})
		if (strcmp(mode, known) == 0)
			return;
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown unique_mode \"%s\"", mode),
					errhint("Known modes are skip, ignore, replace, keep_run_at, error.")));
}

const char *checked_kind(text *kind)
{
	const char *name = text_to_cstring(kind);
	live::check_name("kind", name);
	return name;
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_enqueue)
{
	require_writable("tq_enqueue()");
	const char *name = text_required(fcinfo, 0, "queue");
	require(fcinfo, 1, "payload");
	live::Db &db = live::database(fcinfo);
	refuse(fcinfo, 6, "expires_at");
	refuse(fcinfo, 8, "retry");
	refuse(fcinfo, 9, "timeout");
	refuse(fcinfo, 10, "group_key");
	refuse(fcinfo, 11, "unique_key");
	refuse(fcinfo, 14, "depends_on");
	refuse(fcinfo, 15, "options");
	check_unique_mode(fcinfo, 12);
	EnqueueItem item{common_row(fcinfo, Common{3, 4, 5, 7, 13}), nullptr};
	if (given(fcinfo, 2))
	{
		item.row.kind = PG_GETARG_TEXT_PP(2);
		item.kind = checked_kind(item.row.kind);
	}
	item.row.payload = PG_GETARG_JSONB_P(1);
	check_payload(item.row.payload);
	const uint16_t queue = live::queue_for_enqueue(db, name);
	if (item.row.priority == core::kUnset)
		item.row.priority = default_priority(queue);
	int64 id = 0;
	enqueue(db, queue, &item, 1, &id);
	PG_RETURN_INT64(id);
}

// queue, payloads, kind, priority, run_at, delay, expires_at, max_attempts, retry, timeout, group_key, unique_mode, headers,
// depends_on, options, kinds, priorities, run_ats, unique_keys, group_keys
TQ_FUNCTION(tq_enqueue_many)
{
	require_writable("tq_enqueue_many()");
	const char *name = text_required(fcinfo, 0, "queue");
	int n = 0, nk = 0, np = 0, nr = 0;
	Datum *payloads = array_required(fcinfo, 1, "payloads", JSONBOID, &n);
	live::Db &db = live::database(fcinfo);
	refuse(fcinfo, 6, "expires_at");
	refuse(fcinfo, 8, "retry");
	refuse(fcinfo, 9, "timeout");
	refuse(fcinfo, 10, "group_key");
	refuse(fcinfo, 13, "depends_on");
	refuse(fcinfo, 14, "options");
	refuse(fcinfo, 18, "unique_keys");
	refuse(fcinfo, 19, "group_keys");
	check_unique_mode(fcinfo, 11);
	// a null in one of these stands for what the whole call says
	bool *kinds_null = nullptr, *priorities_null = nullptr, *run_ats_null = nullptr;
	Datum *kinds = array_with_nulls(fcinfo, 15, "kinds", TEXTOID, &kinds_null, &nk);
	Datum *priorities = array_with_nulls(fcinfo, 16, "priorities", INT4OID, &priorities_null, &np);
	Datum *run_ats = array_with_nulls(fcinfo, 17, "run_ats", TIMESTAMPTZOID, &run_ats_null, &nr);
	if (kinds != nullptr)
		same_length("payloads", n, "kinds", nk);
	if (priorities != nullptr)
		same_length("payloads", n, "priorities", np);
	if (run_ats != nullptr)
		same_length("payloads", n, "run_ats", nr);
	const journal::JobRow common = common_row(fcinfo, Common{3, 4, 5, 7, 12});
	text *kind = given(fcinfo, 2) ? PG_GETARG_TEXT_PP(2) : nullptr;
	const char *kind_name = kind != nullptr ? checked_kind(kind) : nullptr;

	auto *items = static_cast<EnqueueItem *>(palloc(sizeof(EnqueueItem) * static_cast<Size>(std::max(n, 1))));
	auto *ids = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(std::max(n, 1))));
	for (int i = 0; i < n; ++i)
	{
		EnqueueItem &it = items[i];
		it = EnqueueItem{common, kind_name};
		it.row.kind = kind;
		it.row.payload = DatumGetJsonbP(payloads[i]);
		check_payload(it.row.payload);
		if (kinds != nullptr && !kinds_null[i])
		{
			it.row.kind = DatumGetTextPP(kinds[i]);
			it.kind = checked_kind(it.row.kind);
		}
		if (priorities != nullptr && !priorities_null[i])
		{
			it.row.priority = DatumGetInt32(priorities[i]);
			if (it.row.priority < PG_INT16_MIN || it.row.priority > PG_INT16_MAX)
				ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("priorities is out of range: %d", it.row.priority),
								errdetail("Each element must be between %d and %d.", PG_INT16_MIN, PG_INT16_MAX)));
		}
		if (run_ats != nullptr && !run_ats_null[i])
		{
			it.row.run_at = DatumGetTimestampTz(run_ats[i]);
			if (TIMESTAMP_NOT_FINITE(it.row.run_at))
				ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_ats must be finite")));
		}
	}
	const uint16_t queue = live::queue_for_enqueue(db, name);
	for (int i = 0; i < n; ++i)
		if (items[i].row.priority == core::kUnset)
			items[i].row.priority = default_priority(queue);
	enqueue(db, queue, items, n, ids);
	auto *datums = static_cast<Datum *>(palloc(sizeof(Datum) * static_cast<Size>(std::max(n, 1))));
	for (int i = 0; i < n; ++i)
		datums[i] = Int64GetDatum(ids[i]);
	PG_RETURN_ARRAYTYPE_P(construct_array(datums, n, INT8OID, sizeof(int64), true, TYPALIGN_DOUBLE));
}
