#include "dependencies/retry_graph.hpp"

#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "dependencies/gathered.hpp"
#include "dependencies/waited.hpp"
#include "jobs/job_rights.hpp"
#include "queues/actions.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

using core::JobId;

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
