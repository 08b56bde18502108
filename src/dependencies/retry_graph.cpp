#include "dependencies/retry_graph.hpp"

#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "jobs/job_rights.hpp"
#include "queues/actions.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

using core::JobId;

// How the resolver has cancelled a job because of its parents.
struct Cancelled
{
	int32 next_step = 0;		 // 0: it was not
	Jsonb *waited_for = nullptr; // the detail of the event (resolver.cpp)
};

// The parents in such a detail; null if there are none, as in a row written by hand.
JsonbContainer *parents_in(Jsonb *detail)
{
	if (detail == nullptr || !JB_ROOT_IS_OBJECT(detail))
		return nullptr;
	const JsonbValue *v = getKeyJsonValueFromContainer(&detail->root, "parents", strlen("parents"), nullptr);
	const bool some = v != nullptr && v->type == jbvBinary && JsonContainerIsObject(v->val.binary.data) &&
					  JsonContainerSize(v->val.binary.data) > 0;
	return some ? v->val.binary.data : nullptr;
}

// Only the resolver appends such an event without a lease and with a detail.
bool is_for_parents(const journal::EventRow &e)
{
	return e.type == journal::EventType::cancelled && e.lease == 0 && parents_in(e.detail) != nullptr;
}

// As this transaction sees it, with its own changes.
Cancelled find_cancelled(const Db &db, JobId id)
{
	Cancelled out;
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
		if (row.depends_on != nullptr && fold.state == journal::FoldState::cancelled &&
			journal::find_event(tables, id, fold.next_step - 1, snapshot, &last, MaxAllocSize) && is_for_parents(last))
			out = {fold.next_step, last.detail};
		return fold.state != journal::FoldState::moved;
	}));
	return out;
}

pg::Statement insert_again = {
	"INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown, state, outcome)"
	" SELECT key::bigint, $1, 'c', NOT coalesce($2 -> 'hidden' @> to_jsonb(key::bigint), false),"
	" CASE WHEN value <> 'null' THEN 'succeeded' END, coalesce(nullif(value, 'null'), '{\"replaceable\": false}')"
	" FROM jsonb_each($2 -> 'parents') ON CONFLICT DO NOTHING RETURNING parent_id, state",
	2,
	{INT8OID, JSONBOID}};

// Writes the dependencies that the resolver has deleted. Outcomes of parents that have succeeded are kept; the resolver
// looks at the others.
void wait_again(Db &db, JobId id, Jsonb *waited_for)
{
	Datum values[] = {Int64GetDatum(id), JsonbPGetDatum(waited_for)};
	const pg::OwnerScope scope = enter_registry(db);
	const uint64 n = pg::run(insert_again, values, nullptr);
	for (uint64 i = 0; i < n; ++i)
		if (pg::spi_text(i, "state") == nullptr)
			await_parent(pg::spi_int8(i, "parent_id"));
	leave_registry(scope);
	note_at_commit(-id);
}

JobResult block(Db &db, JobRequest r, const Cancelled &c)
{
	r.blocks_at = c.next_step;
	const JobResult out = change(db, r);
	if (out.verdict == Verdict::done)
		wait_again(db, r.id, c.waited_for);
	return out;
}

bool all_succeeded(const Db &db, Jsonb *waited_for)
{
	bool all = true;
	JsonbIterator *it = JsonbIteratorInit(parents_in(waited_for));
	JsonbValue v;
	JobId parent = 0;
	for (JsonbIteratorToken t = JsonbIteratorNext(&it, &v, true); t != WJB_DONE && all;
		 t = JsonbIteratorNext(&it, &v, true))
	{
		if (t == WJB_KEY)
			parent = strtoll(pg::string_of(v), nullptr, 10);
		else if (t == WJB_VALUE && v.type == jbvNull)
			all = outcome_of(db, parent).succeeded;
	}
	return all;
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
		const Cancelled c = find_cancelled(db, id);
		if (c.next_step == 0)
			return false;
		require_child(db, parent, id);
		const JobResult out = block(db, r, c);
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

JobResult retry(Db &db, const JobRequest &r, bool with_children)
{
	const Cancelled c = has_edges() ? find_cancelled(db, r.id) : Cancelled{};
	if (c.next_step > 0)
		look_at_parents(db);
	if (c.next_step > 0 && (with_children || all_succeeded(db, c.waited_for)))
		return block(db, r, c);
	return change(db, r);
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
