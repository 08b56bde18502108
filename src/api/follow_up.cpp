#include "api/follow_up.hpp"

#include "api/enqueue.hpp"
#include "api/names.hpp"
#include "guc.hpp"
#include "live/admission.hpp"
#include "live/attach.hpp"
#include "live/queue_changes.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/xact.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"

extern "C"
{
#include "utils/resowner.h"
}

namespace tq::api
{

namespace
{

using live::engine;
using live::FollowUp;

constexpr char kKey[] = "follow_up";
constexpr core::Micros kLogPause = 60000000;

// A job that has ended, and the event that says so.
struct Ended
{
	const journal::EventRow *row;
	core::Entry entry; // copied: it is ours by its mark
};

const JsonbValue *member(Jsonb *object)
{
	if (object == nullptr || !JB_ROOT_IS_OBJECT(object))
		return nullptr;
	const JsonbValue *v = getKeyJsonValueFromContainer(&object->root, kKey, static_cast<int>(strlen(kKey)), nullptr);
	return v == nullptr || v->type == jbvNull ? nullptr : v;
}

Jsonb *settings_in_row(const live::Db &db, int32 queue_id)
{
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	static pg::Statement statement{"SELECT settings FROM tq.queue WHERE id = $1", 1, {INT4OID}};
	Datum values[] = {Int32GetDatum(queue_id)};
	Jsonb *settings = nullptr;
	if (pg::run(statement, values, nullptr, 1) > 0)
	{
		bool isnull = false;
		const Datum d = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
		const MemoryContext inner = MemoryContextSwitchTo(caller);
		settings = DatumGetJsonbPCopy(d);
		MemoryContextSwitchTo(inner);
	}
	pg::leave_owner(scope);
	return settings;
}

// What the job itself says; null: nothing.
const JsonbValue *own_word(live::Db &db, const core::Entry &e)
{
	journal::Segment tables;
	journal::JobRow row;
	ItemPointerData tid;
	ItemPointerSet(&tid, e.block, e.offset);
	if (!e.has(core::kOwnOptions) || !live::tables_at(db, e.segment, &tables) ||
		!journal::fetch_job(tables, &tid, e.id, false, &row))
		return nullptr;
	return member(row.options);
}

// False if nothing follows.
bool find(live::Db &db, const Ended &ended, FollowUp *out)
{
	const uint8 bit = live::end_bit(ended.row->type);
	if (const JsonbValue *own = own_word(db, ended.entry))
	{
		if (own->type == jbvBool)
			return false;
		*out = live::parse_follow_up(*own, "option");
		return (out->on & bit) != 0;
	}
	const live::Queue &q = engine.queue(ended.entry.queue);
	const JsonbValue *v = (q.settings.followed & bit) != 0 ? member(settings_in_row(db, q.id)) : nullptr;
	if (v == nullptr)
		return false;
	*out = live::parse_follow_up(*v, "setting");
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

Jsonb *payload_of(const Ended &ended, bool whole)
{
	const journal::EventRow &row = *ended.row;
	const live::Lane &lane = engine.lane(ended.entry.lane);
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
	if (row.detail != nullptr && whole)
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

uint16_t target_of(live::Db &db, const FollowUp &f)
{
	const uint16_t queue = live::find_queue(db, f.queue);
	if (queue == live::kNoQueue || !(engine.queue(queue).persisted || live::queue_created_here(queue)) || !live::use_queue(queue))
		ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("queue \"%s\" does not exist", f.queue)));
	return queue;
}

void enqueue_after(live::Db &db, const Ended &ended, const FollowUp &f, uint16_t queue)
{
	EnqueueItem item{};
	item.row.priority = f.priority;
	item.row.payload = payload_of(ended, true);
	if (VARSIZE(item.row.payload) > static_cast<Size>(guc::max_payload) * 1024)
		item.row.payload = payload_of(ended, false);
	item.kind = f.kind;
	if (f.kind != nullptr)
		item.row.kind = cstring_to_text(f.kind);
	item.row.run_at = item.row.expires_at = journal::kNoTime;
	int64 id = 0;
	enqueue(db, queue, &item, 1, &id, true);
}

void note_lost(live::Db &db, const Ended &ended, const ErrorData *error) noexcept
{
	const core::Micros now = live::mono_now();
	db.follow_ups_lost.fetch_add(1);
	core::Micros last = db.follow_up_logged_at.load();
	if ((last != 0 && last + kLogPause > now) || !db.follow_up_logged_at.compare_exchange_strong(last, now))
		return;
	ereport(LOG, (errmsg("tq: nothing follows job %lld: %s", static_cast<long long>(ended.row->job_id), error->message),
				  errhint("tq_health() counts them; the log shows one in a minute.")));
}

// What may go well if it is tried again: a lock, a deadlock, want of memory or disk, a cancelled statement. Then the end of the job fails, too.
bool may_pass(int code) noexcept
{
	switch (ERRCODE_TO_CATEGORY(code))
	{
		case ERRCODE_INSUFFICIENT_RESOURCES:
			return code != ERRCODE_CONFIGURATION_LIMIT_EXCEEDED; // which takes a restart
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
			return code == ERRCODE_LOCK_NOT_AVAILABLE;
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_TO_CATEGORY(ERRCODE_IO_ERROR): // which has no name of its own
			return true;
		default:
			return false;
	}
}

// In a subtransaction, so that what stays wrong does not keep the jobs from ending. False if something did.
bool try_all(live::Db &db, const Ended *list, int n)
{
	const MemoryContext outside = CurrentMemoryContext;
	const ResourceOwner owner = CurrentResourceOwner;
	volatile bool done = false;
	volatile int made = 0;
	auto *targets = static_cast<uint16_t *>(palloc(sizeof(uint16_t) * static_cast<Size>(n)));
	BeginInternalSubTransaction(nullptr);
	MemoryContextSwitchTo(outside);
	PG_TRY();
	{
		for (int i = 0; i < n; ++i)
		{
			FollowUp f;
			targets[i] = find(db, list[i], &f) ? target_of(db, f) : live::kNoQueue;
			if (targets[i] != live::kNoQueue)
				enqueue_after(db, list[i], f, targets[i]);
			made = i + 1;
		}
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(outside);
		ErrorData *error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction(); // whatever it was: a session that is left in it takes no more statements
		CurrentResourceOwner = owner;
		// a rollback does not give back what enqueue_rate has counted, but these are let in once more, each by itself
		for (int i = 0; i < made; ++i)
			if (targets[i] != live::kNoQueue)
				live::unpay(targets[i], 1);
		if (may_pass(error->sqlerrcode))
			ReThrowError(error);
		if (n == 1)
			note_lost(db, *list, error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outside);
	CurrentResourceOwner = owner;
	pfree(targets);
	return done;
}

} // namespace

bool may_follow(const core::Entry &e, journal::EventType type) noexcept
{
	const uint8 bit = live::end_bit(type);
	return bit != 0 && ((engine.queue(e.queue).settings.followed & bit) != 0 || e.has(core::kOwnOptions));
}

void follow_up(live::Db &db, const journal::EventRow *rows, int n)
{
	Ended *list = nullptr;
	int k = 0;
	for (int i = 0; i < n; ++i)
	{
		uint16_t queue = 0;
		const core::Ref ref = live::end_bit(rows[i].type) != 0 ? engine.find(live::index_of(db), rows[i].job_id, &queue) : core::kNil;
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

void check_target(live::Db &db, const FollowUp &f)
{
	const uint16_t slot = live::queue_with_right(db, f.queue, live::kProduce);
	if (engine.queue(slot).state == core::QueueState::creating && !engine.queue(slot).persisted)
		live::write_queue_row(db, slot);
}

// Those who set it do so one after the other, so that each sees what the others did.
void check_follow_up(live::Db &db, const char *queue, Jsonb *settings)
{
	const JsonbValue *v = member(settings);
	if (v == nullptr)
		return;
	const FollowUp f = live::parse_follow_up(*v, "setting");
	if (strcmp(f.queue, queue) != 0)
		check_target(db, f);
	LockDatabaseObject(get_relname_relid("queue", get_namespace_oid("tq", false)), static_cast<Oid>(core::hash_name("*")), 0,
					   ExclusiveLock);
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TEXTOID, TEXTOID};
	const Datum values[] = {CStringGetTextDatum(queue), CStringGetTextDatum(f.queue)};
	pg::sql("WITH RECURSIVE chain (name, path) AS (SELECT $2, ARRAY[$1, $2] UNION ALL"
			" SELECT n, path || n FROM chain c JOIN tq.queue q ON q.name = c.name,"
			" LATERAL (SELECT q.settings #>> '{follow_up,queue}') x (n) WHERE c.name <> $1 AND n IS NOT NULL AND n <> ALL (path[2:]))"
			" SELECT array_to_string(path, ' -> ') FROM chain WHERE name = $1",
			2, types, values, nullptr, true, 1);
	const char *circle =
		SPI_processed > 0 ? MemoryContextStrdup(caller, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1)) : nullptr;
	pg::leave_owner(scope);
	MemoryContextSwitchTo(caller);
	if (circle != nullptr)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("jobs of queue \"%s\" would follow themselves", queue),
						errdetail("The circle is %s.", circle)));
}

} // namespace tq::api
