#include "dependencies/retry_graph.hpp"

#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "dependencies/gathered.hpp"
#include "dependencies/waited.hpp"
#include "jobs/job_rights.hpp"
#include "queues/actions.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

using core::JobId;

// What another transaction is about to do with a blocked job. The resolver marks it while it decides, and ends within
// milliseconds.
Verb mark_of_blocked(const Db &db, JobId id) noexcept
{
	Verb mark = Verb::none;
	static_cast<void>(with_entry(db, id, [&mark](const Entry &e) noexcept {
		if (e.state == State::blocked && e.owner != my_proc)
			mark = e.mark;
	}));
	return mark;
}

constexpr int kTries = 2000; // a millisecond each

[[noreturn]] void raise_child_busy(JobId parent)
{
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("a job that waits for job %lld is being changed by another transaction",
						   static_cast<long long>(parent)),
					errhint("Try again when that transaction has ended.")));
}

// Waits while another transaction has marked the blocked child; without `any`, only for a mark that frees it. The
// caller has marked the parent. A decision that begins later sees that mark, so it neither frees nor cancels the child
// because of this parent (failed_parents_of in resolver.cpp).
void await_decision(const Db &db, JobId parent, JobId id, bool any)
{
	for (int tries = 0;; ++tries)
	{
		const Verb mark = mark_of_blocked(db, id);
		if (mark == Verb::none || (!any && mark != Verb::free))
			return;
		if (tries == kTries)
			raise_child_busy(parent);
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

// Whether the job was restored: it was cancelled because of its parents, and waits again. It can be busy for a moment:
// the end that we see is not published yet.
bool restore(Db &db, JobId parent, JobId id, int *reopened)
{
	constexpr int kMost = 20; // tries, a millisecond each
	JobRequest r;
	r.id = id;
	r.verb = Verb::retry;
	r.reopened = reopened;
	keep_parents(db);
	for (int tries = 0;; ++tries)
	{
		await_decision(db, parent, id, true);
		const Waited w = find_waited(db, id, Waiter::ended);
		if (!w.for_parents)
			return false;
		require_child(db, parent, id);
		const JobResult out = block(db, r, w, w.detail, {});
		if (out.verdict == Verdict::done)
			return true;
		if (out.verdict != Verdict::busy || tries == kMost)
			raise_outcome(r, out);
		pg_usleep(1000);
	}
}

// Another transaction may have claimed it, which is not in the journal yet.
bool is_running(const Db &db, JobId id) noexcept
{
	core::Entry e;
	return copy_current_entry(db, id, &e) && e.state == State::running;
}

// Blocks a child that was freed although this parent had failed, if it has not begun. Counts it if it has. The caller's
// transaction has retried the parent. Needs no right on the child: the resolver needs none to free or cancel it either.
void block_waiter(Db &db, JobId parent, JobId id, int64 *begun)
{
	JobRequest r;
	r.id = id;
	r.verb = Verb::retry;
	for (int tries = 0;; ++tries)
	{
		await_decision(db, parent, id, false);
		const Waited w = find_waited(db, id, Waiter::free);
		const bool runs = is_running(db, id);
		if (w.next_step == 0 || runs)
		{
			*begun += w.begun || runs;
			return;
		}
		const pg::Array<JobId> parents = w.is_callback ? pg::Array<JobId>{} : parents_of(w);
		const JobResult out = w.is_callback		? block_callback(db, r, w)
							  : parents.n > 0 ? block(db, r, w, detail_for(db, id, w, parents), parents)
											  : JobResult{Verdict::absent, nullptr}; // its `freed` was written by hand
		if (out.verdict == Verdict::done || out.verdict == Verdict::absent)
			return;
		if (out.verdict == Verdict::memory_full)
			raise_outcome(r, out);
		if (tries == kTries)
			raise_child_busy(parent);
		CHECK_FOR_INTERRUPTS();
		pg_usleep(1000);
	}
}

// The end of this job is taken back, so the jobs that were freed by it wait again.
void block_waiters(Db &db, JobId parent, int64 *begun)
{
	constexpr int kAtOnce = 1000;
	auto *children = static_cast<JobId *>(palloc(sizeof(JobId) * kAtOnce));
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq waiters", ALLOCSET_SMALL_SIZES);
	JobId after = 0;
	int n = kAtOnce;
	while (n == kAtOnce)
	{
		const pg::OwnerScope scope = enter_registry(db);
		n = waiters_of(parent, after, children, kAtOnce);
		leave_registry(scope);
		if (n > 0)
			keep_parents(db);
		MemoryContext old = MemoryContextSwitchTo(each);
		for (int i = 0; i < n; ++i)
		{
			CHECK_FOR_INTERRUPTS();
			block_waiter(db, parent, children[i], begun);
			MemoryContextReset(each);
			after = children[i];
		}
		MemoryContextSwitchTo(old);
	}
	MemoryContextDelete(each);
	pfree(children);
}

[[noreturn]] void raise_too_many()
{
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("too many jobs wait for these jobs"),
			 errdetail("One call looks at up to %d jobs below those that it retries.", kMostBelow),
			 errhint("Retry the jobs without their children. Then restore the children in parts: tq_retry_many with "
					 "the state cancelled, with_children and max_jobs.")));
}

// The callback of a batch waits for its jobs again, unless all of them had ended and none lives again.
JobResult retry_callback(Db &db, const JobRequest &r, const Waited &w)
{
	const pg::OwnerScope scope = enter_registry(db);
	const bool has_record = is_batch(r.id);
	leave_registry(scope);
	if (!has_record || (w.freed && !some_job_lives(db, r.id)))
		return change(db, r);
	return block_callback(db, r, w);
}

// A job that was freed keeps the outcomes that it was given, unless one of its parents lives again. Any other job that
// had parents is blocked, and the resolver decides about it again. `forgiven`: failed parents that do not cancel it.
JobResult retry_alone(Db &db, const JobRequest &r, bool with_children)
{
	const Waited w = has_edges() ? find_waited(db, r.id, Waiter::ended) : Waited{};
	if (w.next_step > 0 && w.is_callback)
		return retry_callback(db, r, w);
	const pg::Array<JobId> parents = w.next_step > 0 ? parents_of(w) : pg::Array<JobId>{};
	if (parents.n == 0)
		return change(db, r);
	keep_parents(db);
	pg::Array<JobId> forgiven;
	bool any_lives = false;
	Jsonb *detail = w.for_parents ? w.detail : detail_for(db, r.id, w, parents);
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

} // namespace

JobResult retry(Db &db, const JobRequest &r, bool with_children)
{
	JobResult out = retry_alone(db, r, with_children);
	if (out.verdict == Verdict::done && out.new_life && !with_children && has_edges())
		block_waiters(db, r.id, &out.begun);
	return out;
}

Jsonb *outcomes_given(Db &db, JobId id)
{
	static pg::Statement succeeded = {
		"SELECT jsonb_object_agg(key, value) AS outcomes FROM jsonb_each($1 -> 'parents') WHERE value <> 'null'",
		1,
		{JSONBOID}};
	const Waited w = find_waited(db, id, Waiter::ended);
	if (w.next_step == 0 || !w.for_parents)
		return w.detail;
	Datum values[] = {JsonbPGetDatum(w.detail)};
	return read_jsonb(db, succeeded, values, nullptr, "outcomes");
}

// From parents to children, so that a parent is marked before its children are looked at.
int64 retry_children(Db &db, const JobId *roots, int64 n)
{
	if (n == 0 || !has_edges())
		return 0;
	int64 begun = 0;
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
			else
				block_waiter(db, parent, children[k], &begun);
			MemoryContextReset(each);
		}
	}
	MemoryContextSwitchTo(outside);
	MemoryContextDelete(each);
	hash_destroy(met);
	return begun;
}

void tell_begun(int64 n)
{
	if (n > 0)
		ereport(NOTICE,
				(errmsg_plural("%lld job that waited for a retried job does not wait again, because it has begun",
							   "%lld jobs that waited for retried jobs do not wait again, because they have begun",
							   static_cast<unsigned long>(n), static_cast<long long>(n)),
				 errdetail("They keep the outcomes that they were given.")));
}

// id, with_children
TQ_FUNCTION(tq_retry)
{
	require_writable("tq_retry()");
	JobRequest r;
	r.id = id_required(fcinfo, 0, "id");
	r.verb = Verb::retry;
	// the SQL of 0.1.0 has one argument
	const bool with_children = PG_NARGS() > 1 && given(fcinfo, 1) && PG_GETARG_BOOL(1);
	Db &db = loaded_database(fcinfo);
	require_job(db, r.id, kOperate);
	const JobResult out = retry(db, r, with_children);
	if (out.verdict != Verdict::done)
		raise_outcome(r, out);
	tell_begun(out.begun + (with_children ? retry_children(db, &r.id, 1) : 0));
	record_action_on(db, "retry", r.id, Facts().add("with_children", with_children));
	return CStringGetTextDatum(out.state);
}

} // namespace tq
