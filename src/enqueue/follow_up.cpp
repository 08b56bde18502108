#include "enqueue/follow_up.hpp"

#include "api/args.hpp"
#include "api/names.hpp"
#include "api/sizes.hpp"
#include "database/attach.hpp"
#include "enqueue/enqueue.hpp"
#include "jobs/jobs_ended.hpp"
#include "queues/enqueue_limits.hpp"
#include "queues/follow_up_setting.hpp"
#include "queues/queue_names.hpp"
#include "queues/requester.hpp"
#include "queues/rights.hpp"
#include "queues/used_queues.hpp"
#include "segments/segments.hpp"
#include "transaction/pending.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/attempt.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "utils/fmgrprotos.h"
}

namespace tq
{

namespace
{

constexpr core::Micros kLogPause = 60000000;
constexpr char kReportHeader[] = "follows";

// A job that has ended, and its event.
struct Ended
{
	const journal::EventRow *row;
	// a copy: this transaction marks the entry, so no other one changes it
	core::Entry entry;
};

Jsonb *settings_in_row(const Db &db, int32 queue_id)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	static pg::Statement statement{"SELECT settings FROM tq.queue WHERE id = $1", 1, {INT4OID}};
	Datum values[] = {Int32GetDatum(queue_id)};
	Jsonb *settings = nullptr;
	if (pg::run(statement, values, nullptr, 1) > 0)
		settings = pg::outside(scope, [] { return pg::spi_jsonb(0, "settings"); });
	pg::leave_owner(scope);
	return settings;
}

bool read_row(Db &db, const core::Entry &e, bool want_payload, journal::JobRow *row)
{
	journal::Segment tables;
	ItemPointerData tid;
	ItemPointerSet(&tid, e.block, e.offset);
	return tables_at(db, e.segment, &tables) && journal::fetch_job(tables, &tid, e.id, want_payload, row);
}

// The option follow_up of the job itself; null if it has none.
const JsonbValue *own_word(Db &db, const core::Entry &e)
{
	journal::JobRow row;
	return e.has(core::kOwnOptions) && read_row(db, e, false, &row) ? follow_up_in(row.options) : nullptr;
}

// False if the job has no follow-up for this event.
bool find(Db &db, const Ended &ended, FollowUp *out)
{
	const uint8 bit = end_bit(ended.row->type);
	if (const JsonbValue *own = own_word(db, ended.entry))
	{
		if (own->type == jbvBool)
			return false;
		*out = parse_follow_up(*own, "option");
		return (out->on & bit) != 0;
	}
	const Queue &q = engine.queue(ended.entry.queue);
	const JsonbValue *v = (q.settings.followed & bit) != 0 ? follow_up_in(settings_in_row(db, q.id)) : nullptr;
	if (v == nullptr)
		return false;
	*out = parse_follow_up(*v, "setting");
	return (out->on & bit) != 0;
}

void add_key(JsonbParseState **state, const char *key)
{
	JsonbValue v;
	v.type = jbvString;
	v.val.string.val = const_cast<char *>(key);
	v.val.string.len = static_cast<int>(strlen(key));
	pushJsonbValue(state, WJB_KEY, &v);
}

void add_text(JsonbParseState **state, const char *key, const char *value)
{
	JsonbValue v;
	add_key(state, key);
	v.type = value != nullptr ? jbvString : jbvNull;
	v.val.string.val = const_cast<char *>(value);
	v.val.string.len = value != nullptr ? static_cast<int>(strlen(value)) : 0;
	pushJsonbValue(state, WJB_VALUE, &v);
}

void add_json(JsonbParseState **state, const char *key, Jsonb *value)
{
	JsonbValue v;
	add_key(state, key);
	if (!JB_ROOT_IS_SCALAR(value) || !JsonbExtractScalar(&value->root, &v))
	{
		v.type = jbvBinary;
		v.val.binary.data = &value->root;
		v.val.binary.len = static_cast<int>(VARSIZE(value) - VARHDRSZ);
	}
	pushJsonbValue(state, WJB_VALUE, &v);
}

// What a follow-up learns about the job: its payload, or the value of a header.
Jsonb *report_on(const Ended &ended, bool whole)
{
	const journal::EventRow &row = *ended.row;
	const Lane &lane = engine.lane(ended.entry.lane);
	const bool well = row.type == journal::EventType::succeeded;
	JsonbParseState *state = nullptr;
	JsonbValue v;
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
	add_key(&state, "job");
	v.type = jbvNumeric;
	v.val.numeric = int64_to_numeric(row.job_id);
	pushJsonbValue(&state, WJB_VALUE, &v);
	add_text(&state, "queue", engine.queue(ended.entry.queue).name);
	add_text(&state, "kind", lane.has_kind ? lane.kind : nullptr);
	add_text(&state, "state", name_of(row.type));
	if (row.reason != nullptr && whole)
		add_text(&state, "error", row.reason);
	// A detail without a lease is the resolver's record of the parents of a cancelled job.
	if (row.detail != nullptr && row.lease != 0 && whole)
		add_json(&state, well ? "result" : "detail", row.detail);
	if (!whole)
	{
		add_key(&state, "left_out");
		v.type = jbvBool;
		v.val.boolean = true;
		pushJsonbValue(&state, WJB_VALUE, &v);
	}
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));
}

uint16_t target_of(Db &db, const FollowUp &f)
{
	const uint16_t queue = find_queue(db, f.queue);
	if (queue == kNoQueue || !(engine.queue(queue).persisted || queue_created_here(queue)) || !use_queue(queue))
		ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("queue \"%s\" does not exist", f.queue)));
	return queue;
}

// The job's headers, with the report added; the report replaces a header of its name.
Jsonb *headers_with(Jsonb *headers, Jsonb *report)
{
	JsonbParseState *state = nullptr;
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, nullptr);
	add_json(&state, kReportHeader, report);
	Jsonb *added = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, nullptr));
	return headers == nullptr ? added
							  : DatumGetJsonbP(DirectFunctionCall2(jsonb_concat, JsonbPGetDatum(headers),
																   JsonbPGetDatum(added)));
}

bool fits(Jsonb *json, const pg::SizeLimit &limit) { return pg::size_of(JsonbPGetDatum(json)) <= limit.bytes; }

// The follow-up has the job's own payload. A report that does not fit beside the job's headers leaves the outcome out,
// or is left out itself.
void carry_payload(Db &db, const Ended &ended, const FollowUp &f, EnqueueItem *item)
{
	journal::JobRow row;
	if (!read_row(db, ended.entry, true, &row))
		elog(ERROR, "the row of job %lld is gone", static_cast<long long>(ended.row->job_id));
	item->row.payload = row.payload;
	item->row.headers = headers_with(row.headers, report_on(ended, f.outcome));
	if (!fits(item->row.headers, headers_limit()))
		item->row.headers = headers_with(row.headers, report_on(ended, false));
	if (!fits(item->row.headers, headers_limit()))
		item->row.headers = row.headers;
	if (f.kind == nullptr)
		item->row.kind = row.kind;
}

void enqueue_after(Db &db, const Ended &ended, const FollowUp &f, uint16_t queue)
{
	EnqueueItem item{};
	item.foreign = true;
	item.row.priority = f.priority;
	if (f.kind != nullptr)
		item.row.kind = cstring_to_text(f.kind);
	if (f.payload)
		carry_payload(db, ended, f, &item);
	else
	{
		item.row.payload = report_on(ended, f.outcome);
		if (!fits(item.row.payload, payload_limit()))
			item.row.payload = report_on(ended, false);
	}
	item.kind = item.row.kind != nullptr ? text_to_cstring(item.row.kind) : nullptr;
	int64 id = 0;
	enqueue(db, queue, &item, 1, &id, true);
}

void note_lost(Db &db, const Ended &ended, const ErrorData *error)
{
	const core::Micros now = mono_now();
	db.follow_ups_lost.fetch_add(1);
	core::Micros last = db.follow_up_logged_at.load();
	if ((last != 0 && last + kLogPause > now) || !db.follow_up_logged_at.compare_exchange_strong(last, now))
		return;
	// only in the server log: the client may have no right on the other queue
	ereport(LOG_SERVER_ONLY, (errmsg("tq: the follow-up of job %lld was not enqueued: %s",
									 static_cast<long long>(ended.row->job_id), error->message),
							  errhint("tq_health() counts them; the log shows one in a minute.")));
}

// Errors that may not occur again on a retry: a lock, a deadlock, lack of memory or disk, a cancelled statement. The
// end of the job then fails, too.
bool may_pass(int code) noexcept
{
	switch (ERRCODE_TO_CATEGORY(code))
	{
		case ERRCODE_INSUFFICIENT_RESOURCES:
			return code != ERRCODE_CONFIGURATION_LIMIT_EXCEEDED; // it lasts until a restart
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
			return code == ERRCODE_LOCK_NOT_AVAILABLE;
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_TO_CATEGORY(ERRCODE_IO_ERROR): // this category has no macro
			return true;
		default:
			return false;
	}
}

// Runs in a subtransaction, so that a lasting error does not keep the jobs from ending. False if there was an error.
bool try_all(Db &db, const Ended *list, int n)
{
	volatile int made = 0;
	auto *targets = static_cast<uint16_t *>(palloc(sizeof(uint16_t) * static_cast<Size>(n)));
	ErrorData *error = nullptr;
	const auto all = [&] {
		for (int i = 0; i < n; ++i)
		{
			FollowUp f;
			targets[i] = find(db, list[i], &f) ? target_of(db, f) : kNoQueue;
			if (targets[i] != kNoQueue)
				check_requester(db, f, targets[i]);
			if (targets[i] != kNoQueue)
				enqueue_after(db, list[i], f, targets[i]);
			made = i + 1;
		}
		return true;
	};
	if (attempt(all, &error) == Tried::failed)
	{
		// the rollback does not return what enqueue_rate counted, and the caller enqueues these again one by one
		for (int i = 0; i < made; ++i)
			if (targets[i] != kNoQueue)
				refund_enqueues(targets[i], 1);
		if (may_pass(error->sqlerrcode))
			ReThrowError(error);
		if (n == 1)
			note_lost(db, *list, error);
		FreeErrorData(error);
	}
	pfree(targets);
	return error == nullptr;
}

// Enqueues the follow-ups of those jobs that have ended.
void follow_up(Db &db, const journal::EventRow *rows, int n)
{
	Ended *list = nullptr;
	int k = 0;
	for (int i = 0; i < n; ++i)
	{
		uint16_t queue = 0;
		const core::Ref ref =
			end_bit(rows[i].type) != 0 ? engine.find(index_of(db), rows[i].job_id, &queue) : core::kNil;
		if (ref == core::kNil || !may_follow(engine.entry(ref), rows[i].type))
			continue;
		if (list == nullptr)
			list = static_cast<Ended *>(palloc(sizeof(Ended) * static_cast<Size>(n)));
		list[k++] = Ended{&rows[i], engine.entry(ref)};
	}
	if (k > 0 && !try_all(db, list, k) && k > 1)
		for (int i = 0; i < k; ++i)
			static_cast<void>(try_all(db, &list[i], 1));
	if (list != nullptr)
		pfree(list);
}

} // namespace

void register_follow_ups() { on_jobs_ended(follow_up); }

} // namespace tq
