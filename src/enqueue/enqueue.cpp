// tq_enqueue, tq_enqueue_many, and the forms that also return the outcome: tq_enqueue_info, tq_enqueue_many_info.
// Regime: PG.
#include "enqueue/enqueue.hpp"

#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/parents.hpp"
#include "jobs/job_options.hpp"
#include "queues/policy.hpp"
#include "queues/queue_names.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/rows.hpp"

namespace tq
{

void check_headers(Jsonb *headers)
{
	if (headers != nullptr && !JB_ROOT_IS_OBJECT(headers))
		pg::not_an_object("headers", headers);
}

void fill_in(const Queue &q, Micros now, EnqueueItem *items, int n) noexcept
{
	const core::QueueSettings &s = q.settings;
	const auto priority = static_cast<int32>(priority_of(s).value);
	const Micros expires_in = expires_in_of(s).value;
	const Micros unique_for = unique_for_of(s).value;
	for (EnqueueItem *it = items; it < items + n; ++it)
	{
		if (it->row.priority == core::kUnset)
			it->row.priority = priority;
		if (it->unique_for == core::kUnset)
			it->unique_for = unique_for;
		// expires_in counts from the time at which the job may start; a job with parents gets the time when it is freed
		const Micros expires_at = expiry_from(std::max(it->row.run_at, now), expires_in);
		const bool waits = it->row.depends_on != nullptr;
		if (it->row.expires_at == journal::kNoTime && expires_at != core::kNever && !waits)
		{
			it->row.expires_at = expires_at;
			it->expires_in = expires_in;
		}
	}
}

namespace
{

TimestampTz start_time(FunctionCallInfo fcinfo, int run_at, int delay)
{
	if (given(fcinfo, run_at) && given(fcinfo, delay))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_at and delay cannot both be given")));
	if (given(fcinfo, delay))
		return wall_now() + interval_or(fcinfo, delay, "delay", 0, 0);
	return time_or(fcinfo, run_at, "run_at", journal::kNoTime);
}

// The positions of arguments that both functions have.
struct Arguments
{
	int priority, run_at, delay, expires_at, max_attempts, retry, timeout, group_key, unique_mode, headers, options;
};

// Infinity: the job never expires, even if its queue has expires_in.
TimestampTz expiry(FunctionCallInfo fcinfo, int i)
{
	const bool never = given(fcinfo, i) && TIMESTAMP_IS_NOEND(PG_GETARG_TIMESTAMPTZ(i));
	return never ? PG_GETARG_TIMESTAMPTZ(i) : time_or(fcinfo, i, "expires_at", journal::kNoTime);
}

// Checks every argument before the queue is looked up, so that bad input does not create a queue. A priority that is
// not given stays kUnset until the queue is known.
EnqueueItem common_item(FunctionCallInfo fcinfo, const Arguments &at)
{
	EnqueueItem item{};
	journal::JobRow &row = item.row;
	row.priority = int_or(fcinfo, at.priority, "priority", core::kUnset, PG_INT16_MIN, PG_INT16_MAX);
	row.run_at = start_time(fcinfo, at.run_at, at.delay);
	row.expires_at = expiry(fcinfo, at.expires_at);
	row.max_attempts = int_or(fcinfo, at.max_attempts, "max_attempts", 0, 1, 65535);
	if (given(fcinfo, at.retry))
		row.retry = checked_retry(jsonb_value(fcinfo, at.retry, "retry", options_limit()));
	row.timeout = interval_or(fcinfo, at.timeout, "timeout", 0, 1000);
	if (given(fcinfo, at.group_key))
	{
		row.group_key = text_value(fcinfo, at.group_key, "group_key", kGroupKeyLimit);
		check_row_name("group_key", row.group_key, kGroupKeyMax);
	}
	if (given(fcinfo, at.unique_mode))
		item.mode = parse_unique_mode(text_value(fcinfo, at.unique_mode, "unique_mode", kWordLimit));
	row.headers = jsonb_value(fcinfo, at.headers, "headers", headers_limit());
	check_headers(row.headers);
	if (given(fcinfo, at.options))
	{
		parse_options(jsonb_value(fcinfo, at.options, "options", options_limit()), &row, &item.unique_for);
		check_option_target(*current_db(), row.options);
	}
	return item;
}

const char *checked_kind(text *kind)
{
	check_row_name("kind", kind, core::kNameMax - 1);
	return text_to_cstring(kind);
}

} // namespace

void check_times(const journal::JobRow &row)
{
	if (row.expires_at != journal::kNoTime && row.run_at != journal::kNoTime && row.expires_at <= row.run_at)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("expires_at must be after the time at which the job may start"),
						errdetail("They are %s and %s.", pstrdup(timestamptz_to_str(row.expires_at)),
								  pstrdup(timestamptz_to_str(row.run_at)))));
}

namespace
{

constexpr pg::ColumnSpec kInfo[] = {{"id", INT8OID}, {"outcome", TEXTOID}};

// An item with its id: 0 if the function returns null for it.
pg::RowValues info_of(const EnqueueItem &item, int64 id)
{
	pg::RowValues r;
	r.add(Int64GetDatum(id), id == 0);
	r.add_text(!item.made ? "skipped" : item.row.origin != 0 ? "replaced" : "created");
	return r;
}

// Writes the parents that the jobs wait for, and the batch that they join. Replaced jobs are passed on so that a circle
// of waiting jobs is refused.
void write_dependencies(Db &db, const Waiting &waiting, const EnqueueItem *items, const int64 *ids, int n)
{
	const auto list = [n] {
		return static_cast<core::JobId *>(palloc(sizeof(core::JobId) * static_cast<Size>(std::max(n, 1))));
	};
	auto *elements = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(std::max(n, 1))));
	Made m{list(), 0, list(), 0, list(), elements, 0};
	for (int i = 0; i < n; ++i)
	{
		if (items[i].made)
			m.made[m.nmade++] = ids[i];
		else
			m.holders[m.nholders++] = items[i].holder;
		if (items[i].made && items[i].row.origin != 0)
		{
			m.elements[m.nreplaced] = items[i].element;
			m.replaced[m.nreplaced++] = items[i].row.origin;
		}
	}
	write_waiting(db, waiting, m);
}

// queue, payload, kind, priority, run_at, delay, expires_at, max_attempts, retry, timeout, group_key, unique_key,
// unique_mode, headers, depends_on, options
EnqueueItem enqueue_one(FunctionCallInfo fcinfo, const char *function, int64 *id)
{
	require_writable(function);
	const char *name = text_required(fcinfo, 0, "queue");
	require(fcinfo, 1, "payload");
	Db &db = database(fcinfo);
	EnqueueItem item = common_item(fcinfo, Arguments{3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15});
	check_times(item.row);
	if (given(fcinfo, 11))
	{
		item.unique_key = text_value(fcinfo, 11, "unique_key", kUniqueKeyLimit);
		check_key("unique_key", item.unique_key, kUniqueKeyMax);
	}
	if (given(fcinfo, 2))
	{
		item.row.kind = text_value(fcinfo, 2, "kind", kNameLimit);
		item.kind = checked_kind(item.row.kind);
	}
	item.row.payload = jsonb_value(fcinfo, 1, "payload", payload_limit());
	const Waiting waiting = read_waiting(db, fcinfo, 14, &item.row);
	const uint16_t queue = queue_for_enqueue(db, name);
	enqueue(db, queue, &item, 1, id);
	write_dependencies(db, waiting, &item, id, 1);
	return item;
}

struct Enqueued
{
	int n;
	EnqueueItem *items;
	int64 *ids;
};

// queue, payloads, kind, priority, run_at, delay, expires_at, max_attempts, retry, timeout, group_key, unique_mode,
// headers, depends_on, options, kinds, priorities, run_ats, unique_keys, group_keys
Enqueued enqueue_each(FunctionCallInfo fcinfo, const char *function)
{
	require_writable(function);
	const char *name = text_required(fcinfo, 0, "queue");
	int n = 0, nk = 0, np = 0, nr = 0, nu = 0, ng = 0;
	Datum *payloads = array_required(fcinfo, 1, "payloads", JSONBOID, &n);
	Db &db = database(fcinfo);
	// a null element means the call's common value
	bool *kinds_null = nullptr, *priorities_null = nullptr, *run_ats_null = nullptr, *keys_null = nullptr,
		 *groups_null = nullptr;
	Datum *kinds = array_with_nulls(fcinfo, 15, "kinds", TEXTOID, &kinds_null, &nk);
	Datum *priorities = array_with_nulls(fcinfo, 16, "priorities", INT4OID, &priorities_null, &np);
	Datum *run_ats = array_with_nulls(fcinfo, 17, "run_ats", TIMESTAMPTZOID, &run_ats_null, &nr);
	Datum *unique_keys = array_with_nulls(fcinfo, 18, "unique_keys", TEXTOID, &keys_null, &nu);
	Datum *group_keys = array_with_nulls(fcinfo, 19, "group_keys", TEXTOID, &groups_null, &ng);
	if (kinds != nullptr)
		same_length("payloads", n, "kinds", nk);
	if (priorities != nullptr)
		same_length("payloads", n, "priorities", np);
	if (run_ats != nullptr)
		same_length("payloads", n, "run_ats", nr);
	if (unique_keys != nullptr)
		same_length("payloads", n, "unique_keys", nu);
	if (group_keys != nullptr)
		same_length("payloads", n, "group_keys", ng);
	EnqueueItem common = common_item(fcinfo, Arguments{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14});
	text *kind = text_value(fcinfo, 2, "kind", kNameLimit);
	common.row.kind = kind;
	common.kind = kind != nullptr ? checked_kind(kind) : nullptr;
	const Waiting waiting = read_waiting(db, fcinfo, 13, &common.row);

	auto *items = static_cast<EnqueueItem *>(palloc(sizeof(EnqueueItem) * static_cast<Size>(std::max(n, 1))));
	auto *ids = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(std::max(n, 1))));
	const auto fill = [&](int i) {
		EnqueueItem &it = items[i];
		it = common;
		it.element = i + 1;
		it.row.payload = pg::checked_jsonb("payload", payloads[i], payload_limit());
		if (kinds != nullptr && !kinds_null[i])
		{
			pg::check_size("kind", kinds[i], kNameLimit);
			it.row.kind = DatumGetTextPP(kinds[i]);
			it.kind = checked_kind(it.row.kind);
		}
		if (priorities != nullptr && !priorities_null[i])
		{
			it.row.priority = DatumGetInt32(priorities[i]);
			if (it.row.priority < PG_INT16_MIN || it.row.priority > PG_INT16_MAX)
				ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
								errmsg("priorities is out of range: %d", it.row.priority),
								errdetail("Each element must be between %d and %d.", PG_INT16_MIN, PG_INT16_MAX)));
		}
		if (run_ats != nullptr && !run_ats_null[i])
		{
			it.row.run_at = DatumGetTimestampTz(run_ats[i]);
			if (TIMESTAMP_NOT_FINITE(it.row.run_at))
				ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
								errmsg("run_ats must be finite: %s", timestamptz_to_str(it.row.run_at))));
		}
		if (unique_keys != nullptr && !keys_null[i])
		{
			it.unique_key = DatumGetTextPP(unique_keys[i]);
			check_key("unique_keys", it.unique_key, kUniqueKeyMax);
		}
		if (group_keys != nullptr && !groups_null[i])
		{
			it.row.group_key = DatumGetTextPP(group_keys[i]);
			check_row_name("group_keys", it.row.group_key, kGroupKeyMax);
		}
		check_times(it.row);
	};
	for (int i = 0; i < n; ++i)
		for_element(i + 1, [&] { fill(i); });
	const uint16_t queue = queue_for_enqueue(db, name);
	enqueue(db, queue, items, n, ids);
	write_dependencies(db, waiting, items, ids, n);
	return {n, items, ids};
}

} // namespace

TQ_FUNCTION(tq_enqueue)
{
	int64 id = 0;
	enqueue_one(fcinfo, "tq_enqueue()", &id);
	if (id == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(id);
}

TQ_FUNCTION(tq_enqueue_info)
{
	int64 id = 0;
	const pg::RowType type = pg::returned_row(fcinfo, pg::row_shape(kInfo));
	const EnqueueItem item = enqueue_one(fcinfo, "tq_enqueue_info()", &id);
	pg::RowValues r = info_of(item, id);
	return pg::row_datum(type, r.values, r.nulls);
}

TQ_FUNCTION(tq_enqueue_many)
{
	const auto [n, items, ids] = enqueue_each(fcinfo, "tq_enqueue_many()");
	auto *datums = static_cast<Datum *>(palloc(sizeof(Datum) * static_cast<Size>(std::max(n, 1))));
	auto *nulls = static_cast<bool *>(palloc(sizeof(bool) * static_cast<Size>(std::max(n, 1))));
	for (int i = 0; i < n; ++i)
	{
		datums[i] = Int64GetDatum(ids[i]);
		nulls[i] = ids[i] == 0;
	}
	int dims[] = {n}, bounds[] = {1};
	PG_RETURN_ARRAYTYPE_P(
		construct_md_array(datums, nulls, n > 0 ? 1 : 0, dims, bounds, INT8OID, sizeof(int64), true, TYPALIGN_DOUBLE));
}

TQ_FUNCTION(tq_enqueue_many_info)
{
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kInfo));
	const auto [n, items, ids] = enqueue_each(fcinfo, "tq_enqueue_many_info()");
	for (int i = 0; i < n; ++i)
	{
		pg::RowValues r = info_of(items[i], ids[i]);
		rows.put(r);
	}
	return static_cast<Datum>(0);
}

} // namespace tq
