#include "dependencies/retry_graph.hpp"

#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "dependencies/gathered.hpp"
#include "jobs/job_options.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/outcome_rights.hpp"
#include "queues/actions.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "pg/array.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/id_array.hpp"
#include "pg/json_values.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

using core::JobId;

// An ended job that has waited for its parents.
struct Waited
{
	int32 next_step = 0;		// 0: it has not ended, or has no parents
	bool for_parents = false;	// the resolver has cancelled it because of its parents
	bool freed = false;			// its parents had ended
	bool runs_anyway = false;	// on_parent_failure
	bool is_callback = false;	// of a batch
	ArrayType *depends_on = nullptr;
	Jsonb *detail = nullptr; // for_parents: of that event (resolver.cpp); freed: the outcomes that it was given
};

JsonbContainer *object_in(const JsonbValue *v)
{
	const bool some = v != nullptr && v->type == jbvBinary && JsonContainerIsObject(v->val.binary.data) &&
					  JsonContainerSize(v->val.binary.data) > 0;
	return some ? v->val.binary.data : nullptr;
}

// The parents in such a detail; null if there are none, as in a row written by hand.
JsonbContainer *parents_in(Jsonb *detail)
{
	if (detail == nullptr || !JB_ROOT_IS_OBJECT(detail))
		return nullptr;
	return object_in(getKeyJsonValueFromContainer(&detail->root, "parents", strlen("parents"), nullptr));
}

// Only the resolver appends such an event without a lease and with a detail.
bool is_for_parents(const journal::EventRow &e)
{
	return e.type == journal::EventType::cancelled && e.lease == 0 && parents_in(e.detail) != nullptr;
}

// As this transaction sees it, with its own changes.
Waited find_waited(const Db &db, JobId id)
{
	Waited out;
	if (op_count() > 0 || has_bulks())
		CommandCounterIncrement();
	static_cast<void>(find_in_segments(db, id, latest_snapshot, [&](const journal::Segment &tables, Snapshot snapshot) {
		journal::JobRow row;
		ItemPointerData tid;
		journal::Fold fold;
		journal::EventRow last;
		if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
			return false;
		journal::fold_job(tables, id, snapshot, &fold);
		if (row.depends_on == nullptr || !can_begin_again(fold.state))
			return fold.state != journal::FoldState::moved;
		out.next_step = fold.next_step;
		out.freed = fold.freed;
		out.runs_anyway = runs_anyway(row.options);
		out.depends_on = row.depends_on;
		out.is_callback = ARR_NDIM(row.depends_on) == 0;
		out.for_parents =
			journal::find_event(tables, id, fold.next_step - 1, snapshot, &last, MaxAllocSize) && is_for_parents(last);
		out.detail = out.for_parents ? last.detail
					 : out.freed	   ? journal::last_detail(tables, id, journal::EventType::freed, snapshot)
									   : nullptr;
		return true;
	}));
	return out;
}

// The ids among the keys of an object.
pg::Array<JobId> ids_among_keys(JsonbContainer *object)
{
	pg::Array<JobId> out;
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbValue v;
	for (JsonbIteratorToken t = JsonbIteratorNext(&it, &v, true); t != WJB_DONE; t = JsonbIteratorNext(&it, &v, true))
		if (t == WJB_KEY && strspn(pg::string_of(v), "0123456789") == static_cast<size_t>(v.val.string.len))
			out.append(CurrentMemoryContext, strtoll(pg::string_of(v), nullptr, 10));
	return out;
}

pg::Array<JobId> parents_of(const Waited &w)
{
	if (w.for_parents)
		return ids_among_keys(parents_in(w.detail));
	if (w.freed)
		return w.detail != nullptr && JB_ROOT_IS_OBJECT(w.detail) ? ids_among_keys(&w.detail->root)
																  : pg::Array<JobId>{};
	pg::Array<JobId> out;
	const int n = ArrayGetNItems(ARR_NDIM(w.depends_on), ARR_DIMS(w.depends_on));
	const auto *ids = reinterpret_cast<const int64 *>(ARR_DATA_PTR(w.depends_on));
	for (int i = 0; i < n; ++i)
		out.append(CurrentMemoryContext, ids[i]);
	return out;
}

// Whether the detail has the outcome of a parent.
bool had_succeeded(Jsonb *detail, JobId parent)
{
	const char *key = psprintf("%lld", static_cast<long long>(parent));
	const JsonbValue *v = getKeyJsonValueFromContainer(parents_in(detail), key, static_cast<int>(strlen(key)), nullptr);
	return v != nullptr && v->type != jbvNull;
}

// What is known of a parent now.
enum class Now : uint8
{
	lives,
	succeeded,
	failed, // or is gone
};

Now parent_now(const Db &db, JobId id)
{
	const Op *own = pending_enqueue(id);
	if (is_being_retried(db, id) || (own != nullptr && !own->revoked))
		return Now::lives;
	const ParentOutcome out = outcome_of(db, id);
	return out.exists && !out.ended ? Now::lives : out.succeeded ? Now::succeeded : Now::failed;
}

// What a job has waited for, in the form of the event that cancels a job because of its parents. Where it is not known
// what the job is given, the right of the role that retries it decides.
Jsonb *detail_for(Db &db, const Waited &w, const pg::Array<JobId> &parents)
{
	static pg::Statement made = {
		"SELECT jsonb_build_object('parents', jsonb_object_agg(id, CASE WHEN o ->> 'state' = 'succeeded' THEN o END),"
		" 'hidden', coalesce(jsonb_agg(id) FILTER (WHERE id <> ALL ($2) AND NOT coalesce(o ? 'error', false)), '[]'))"
		" AS detail FROM (SELECT id, $3 -> id::text AS o FROM unnest($1) p (id)) p",
		3,
		{INT8ARRAYOID, INT8ARRAYOID, JSONBOID}};
	pg::Array<JobId> read;
	for (int64 i = 0; i < parents.n; ++i)
		if (passes_outcome(db, parents[i]) != Passes::nothing)
			read.append(CurrentMemoryContext, parents[i]);
	Datum values[] = {PointerGetDatum(pg::id_array(parents.data, static_cast<int>(parents.n))),
					  PointerGetDatum(pg::id_array(read.data, static_cast<int>(read.n))),
					  PointerGetDatum(w.freed ? w.detail : nullptr)};
	const char nulls[] = {' ', ' ', w.freed ? ' ' : 'n', '\0'};
	const MemoryContext outside = CurrentMemoryContext;
	const pg::OwnerScope scope = enter_registry(db);
	pg::run(made, values, nulls);
	const MemoryContext inside = MemoryContextSwitchTo(outside);
	Jsonb *detail = pg::spi_jsonb(0, "detail", MaxAllocSize);
	MemoryContextSwitchTo(inside);
	leave_registry(scope);
	return detail;
}

pg::Statement insert_again = {
	"INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown, state, outcome)"
	" SELECT key::bigint, $1, CASE WHEN $4 OR key::bigint = ANY ($3) THEN 'r' ELSE 'c' END,"
	" NOT coalesce($2 -> 'hidden' @> to_jsonb(key::bigint), false),"
	" CASE WHEN value <> 'null' THEN 'succeeded' END, coalesce(nullif(value, 'null'), '{\"replaceable\": false}')"
	" FROM jsonb_each($2 -> 'parents') ON CONFLICT DO NOTHING RETURNING parent_id, state",
	4,
	{INT8OID, JSONBOID, INT8ARRAYOID, BOOLOID}};

// Writes the dependencies that the resolver has deleted. Outcomes of parents that have succeeded are kept; the resolver
// looks at the others. The failures of the parents in `forgiven` do not cancel the job.
void wait_again(Db &db, JobId id, Jsonb *detail, const pg::Array<JobId> &forgiven, bool runs_anyway)
{
	Datum values[] = {Int64GetDatum(id), JsonbPGetDatum(detail),
					  PointerGetDatum(pg::id_array(forgiven.data, static_cast<int>(forgiven.n))),
					  BoolGetDatum(runs_anyway)};
	const pg::OwnerScope scope = enter_registry(db);
	const uint64 n = pg::run(insert_again, values, nullptr);
	for (uint64 i = 0; i < n; ++i)
		if (pg::spi_text(i, "state") == nullptr)
			await_parent(pg::spi_int8(i, "parent_id"));
	leave_registry(scope);
	note_at_commit(-id);
}

JobResult block(Db &db, JobRequest r, const Waited &w, Jsonb *detail, const pg::Array<JobId> &forgiven)
{
	r.blocks_at = w.next_step;
	const JobResult out = change(db, r);
	if (out.verdict == Verdict::done)
		wait_again(db, r.id, detail, forgiven, w.runs_anyway);
	return out;
}

// The resolver marks a blocked job while it decides about it, and ends within milliseconds.
bool is_being_decided(const Db &db, JobId id) noexcept
{
	uint16_t queue = 0;
	const core::Ref ref = engine.find(index_of(db), id, &queue);
	if (ref == core::kNil)
		return false;
	lock_queue(queue);
	const core::Entry &e = engine.entry(ref);
	const bool yes = engine.is(engine.queue(queue), ref, id) && e.state == State::blocked && e.mark != Verb::none &&
					 e.owner != my_proc;
	unlock_queue(queue);
	return yes;
}

// The decision that is under way when a parent is retried is awaited. The resolver sees the mark of the parent after
// that, so it does not cancel the child for this parent (failed_parent in resolver.cpp).
void await_decision(const Db &db, JobId parent, JobId id)
{
	constexpr int kTries = 2000;
	for (int tries = 0; is_being_decided(db, id); ++tries)
	{
		if (tries == kTries)
			ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
							errmsg("a job that waits for job %lld is being changed by another transaction",
								   static_cast<long long>(parent)),
							errhint("Try again when that transaction has ended.")));
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
}

void require_child(Db &db, JobId parent, JobId id)
{
	const Access access = access_to_job(db, id, kOperate);
	if (access == Access::denied)
		raise_job_denied(id, kOperate);
	if (access != Access::granted)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("permission denied for a job that waits for job %lld", static_cast<long long>(parent)),
						errdetail("The privilege needed on its queue is %s.", names_of(kOperate))));
}

// Whether the job was restored. It can be busy for a moment: the end that we see is not published yet.
bool restore(Db &db, JobId parent, JobId id, int *reopened)
{
	constexpr int kTries = 20;
	JobRequest r;
	r.id = id;
	r.verb = Verb::retry;
	r.reopened = reopened;
	look_at_parents(db);
	for (int tries = 0;; ++tries)
	{
		await_decision(db, parent, id);
		const Waited w = find_waited(db, id);
		if (!w.for_parents)
			return false;
		require_child(db, parent, id);
		const JobResult out = block(db, r, w, w.detail, {});
		if (out.verdict == Verdict::done)
			return true;
		if (out.verdict != Verdict::busy || tries == kTries)
			raise_outcome(r, out);
		pg_usleep(1000);
	}
}

[[noreturn]] void raise_too_many()
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("too many jobs wait for these jobs"),
			 errdetail("One call looks at up to %d jobs below those that it retries.", kMostBelow),
			 errhint("Retry the jobs without their children. Then restore the children in parts: tq_retry_many with "
					 "the state cancelled, with_children and max_jobs.")));
}

} // namespace

namespace
{

// The callback of a batch that has not been freed waits for its jobs again. It runs although some of them have failed.
JobResult retry_callback(Db &db, JobRequest r, const Waited &w)
{
	const pg::OwnerScope scope = enter_registry(db);
	const bool has_record = is_batch(r.id);
	leave_registry(scope);
	if (w.freed || !has_record)
		return change(db, r);
	r.blocks_at = w.next_step;
	r.detail = forgiven();
	const JobResult out = change(db, r);
	if (out.verdict == Verdict::done)
		note_at_commit(-r.id);
	return out;
}

} // namespace

// A job that was given the outcomes of its parents has them still, unless one of them has begun again.
JobResult retry(Db &db, const JobRequest &r, bool with_children)
{
	const Waited w = has_edges() ? find_waited(db, r.id) : Waited{};
	if (w.next_step > 0 && w.is_callback)
		return retry_callback(db, r, w);
	const pg::Array<JobId> parents = w.next_step > 0 ? parents_of(w) : pg::Array<JobId>{};
	if (parents.n == 0)
		return change(db, r);
	look_at_parents(db);
	pg::Array<JobId> forgiven;
	bool any_lives = false;
	Jsonb *detail = w.for_parents ? w.detail : detail_for(db, w, parents);
	for (int64 i = 0; i < parents.n; ++i)
	{
		if (had_succeeded(detail, parents[i]))
			continue;
		const Now now = parent_now(db, parents[i]);
		any_lives = any_lives || now == Now::lives;
		if (now == Now::failed && (w.freed || !with_children))
			forgiven.append(CurrentMemoryContext, parents[i]);
	}
	if (w.freed && !any_lives)
		return change(db, r);
	return block(db, r, w, detail, forgiven);
}

Jsonb *outcomes_given(Db &db, JobId id)
{
	static pg::Statement succeeded = {
		"SELECT jsonb_object_agg(key, value) AS outcomes FROM jsonb_each($1 -> 'parents') WHERE value <> 'null'",
		1,
		{JSONBOID}};
	const Waited w = find_waited(db, id);
	if (w.next_step == 0 || !w.for_parents)
		return w.detail;
	Datum values[] = {JsonbPGetDatum(w.detail)};
	const MemoryContext outside = CurrentMemoryContext;
	const pg::OwnerScope scope = enter_registry(db);
	pg::run(succeeded, values, nullptr);
	const MemoryContext inside = MemoryContextSwitchTo(outside);
	Jsonb *outcomes = pg::spi_jsonb(0, "outcomes", MaxAllocSize);
	MemoryContextSwitchTo(inside);
	leave_registry(scope);
	return outcomes;
}

// From parents to children, so that a parent is marked before its children are looked at.
void retry_children(Db &db, const JobId *roots, int64 n)
{
	if (n == 0 || !has_edges())
		return;
	HASHCTL control{};
	control.keysize = control.entrysize = sizeof(JobId);
	control.hcxt = CurrentMemoryContext;
	HTAB *met = hash_create("tq jobs met", 1024, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq retry", ALLOCSET_DEFAULT_SIZES);
	MemoryContext outside = CurrentMemoryContext;
	auto *children = static_cast<JobId *>(palloc(sizeof(JobId) * (kMostBelow + 1)));
	pg::Array<JobId> parents;
	int below = 0;
	int reopened = -1;
	for (int64 i = 0; i < n; ++i)
	{
		static_cast<void>(hash_search(met, &roots[i], HASH_ENTER, nullptr));
		parents.append(outside, roots[i]);
	}
	MemoryContextSwitchTo(each);
	for (int64 i = 0; i < parents.n; ++i)
	{
		const JobId parent = parents[i];
		const pg::OwnerScope scope = enter_registry(db);
		const int found = children_of(parent, children, kMostBelow + 1);
		leave_registry(scope);
		for (int k = 0; k < found; ++k)
		{
			bool known = false;
			static_cast<void>(hash_search(met, &children[k], HASH_ENTER, &known));
			if (known)
				continue;
			if (++below > kMostBelow)
				raise_too_many();
			CHECK_FOR_INTERRUPTS();
			if (restore(db, parent, children[k], &reopened))
				parents.append(outside, children[k]);
			MemoryContextReset(each);
		}
	}
	MemoryContextSwitchTo(outside);
	MemoryContextDelete(each);
	hash_destroy(met);
}

} // namespace tq

using namespace tq;

// id, with_children
TQ_FUNCTION(tq_retry)
{
	require_writable("tq_retry()");
	JobRequest r;
	r.id = id_required(fcinfo, 0, "id");
	r.verb = Verb::retry;
	// the SQL of 0.1.0 has one argument
	const bool with_children = PG_NARGS() > 1 && given(fcinfo, 1) && PG_GETARG_BOOL(1);
	Db &db = database(fcinfo);
	ensure_loaded(db);
	require_job(db, r.id, kOperate);
	const JobResult out = retry(db, r, with_children);
	if (out.verdict != Verdict::done)
		raise_outcome(r, out);
	if (with_children)
		retry_children(db, &r.id, 1);
	record_action_on(db, "retry", r.id, Facts().add("with_children", with_children));
	return CStringGetTextDatum(out.state);
}
