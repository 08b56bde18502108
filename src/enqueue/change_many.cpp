// tq_cancel_many, tq_reschedule_many, tq_retry_where, tq_purge_many: change the jobs that match conditions. Each call
// looks for at most `max` jobs, closes its scans, and then changes these jobs one by one. tq_retry_many reads the
// segments instead, and changes the jobs of one before it reads the next.
// Regime: PG. Locks: as the functions on one job; those of jobs/find.hpp while it looks.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/retry_graph.hpp"
#include "enqueue/copy_job.hpp"
#include "jobs/find.hpp"
#include "jobs/job_control.hpp"
#include "jobs/job_record.hpp"
#include "queues/actions.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "unique/retry_keys.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/rows.hpp"

namespace tq
{

using journal::FoldState;

namespace
{

constexpr pg::ColumnSpec kChanged[] = {{"changed", INT8OID}, {"next_after", INT8OID}};

constexpr int64 kBudget = 300000; // journal::walk_cost: about a tenth of a second
constexpr int kMostChanged = 10000;

constexpr int kAfter = kFilterArguments;
constexpr int kMax = kAfter + 1;
constexpr int kDryRun = kMax + 1;
constexpr int kOwn = kDryRun + 1; // the first argument of the verb's own

struct Found
{
	core::JobId id;
	bool ended;
	SegmentView segment;
};

struct Change
{
	MemoryContext context;
	Verb verb;
	const char *action;		// the name of the function without "tq_"
	const char *participle; // for messages
	States states;			// in which the verb is possible
	JobFilter filter;
	FindTerms terms;
	int max;
	bool dry_run;
	bool with_children;
	CopyTarget to; // of retries
	MemoryContext each;
	KeyedJobs keyed; // to be changed last
	pg::Array<Found> jobs;
	pg::Array<core::JobId> retried; // if with_children
	core::JobId next;				// where the next call goes on; 0: no more jobs
	int64 changed;
	int64 duplicates;
	int64 begun; // sum of JobResult::begun
	bool memory_full;  // it keeps no more changed jobs of this transaction
	const char *state; // as given
};

// Without a state, takes all that the verb can change.
void read_states(FunctionCallInfo fcinfo, Change *c, bool may_be_all)
{
	const char *name = c->state = text_or_null(fcinfo, kFilterState, "state", kWordLimit);
	c->filter.states = c->states;
	if (name == nullptr || (may_be_all && strcmp(name, "all") == 0))
		return;
	const bool known = parse_state(name, &c->filter.states);
	if (known && ((c->filter.states.ended & c->states.ended) != 0 || (c->filter.states.live & c->states.live) != 0))
		return;
	unknown_state(known ? psprintf("jobs that are \"%s\" cannot be %s", name, c->participle)
						: psprintf("unknown state \"%s\"", name),
				  known ? "" : name, c->states, may_be_all);
}

Change begin_change(Verb verb, const char *action, const char *participle, States states)
{
	Change c{};
	c.context = c.keyed.context = CurrentMemoryContext;
	c.each = AllocSetContextCreate(CurrentMemoryContext, "tq change", ALLOCSET_SMALL_SIZES);
	c.verb = verb;
	c.action = action;
	c.participle = participle;
	c.states = states;
	return c;
}

void read_call(FunctionCallInfo fcinfo, Change *c)
{
	c->filter = filter_arguments(fcinfo);
	c->terms.right = kOperate;
	c->terms.budget = kBudget;
	c->terms.after = cursor_argument(fcinfo, kAfter);
	c->max = int_or(fcinfo, kMax, "max", 1000, 1, kMostChanged);
	c->dry_run = given(fcinfo, kDryRun) && PG_GETARG_BOOL(kDryRun);
	if (!c->dry_run)
		require_writable(psprintf("tq_%s()", c->action));
}

void find_jobs(Db &db, Change *c)
{
	FoundJob job;
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	Finder *finder = begin_find(db, c->filter, c->terms, snapshot);
	while (c->jobs.n < c->max && find_next(finder, &job))
		c->jobs.append(c->context, Found{job.row.id, job.now.ended, job.segment});
	c->next = c->jobs.n < c->max ? find_cursor(finder) : c->jobs.last().id;
	end_find(finder);
	UnregisterSnapshot(snapshot);
}

// Changes one job, unless it is `keyed` and comes later. Jobs that have changed since they were found are left.
void change_found(Db &db, Change *c, const JobRequest &r, bool keyed)
{
	MemoryContextReset(c->each);
	CHECK_FOR_INTERRUPTS();
	MemoryContext old = MemoryContextSwitchTo(c->each);
	if (!keyed || !postpone_keyed(db, r.id, &c->keyed))
	{
		const JobResult out =
			c->to.name != nullptr
				? JobResult{retry_elsewhere(db, r.id, c->filter.states.ended, c->to, c->changed == 0), nullptr}
			: r.verb == Verb::retry ? retry(db, r, c->with_children)
									: change(db, r);
		if (c->with_children && out.verdict == Verdict::done)
			c->retried.append(c->context, r.id);
		c->memory_full = out.verdict == Verdict::memory_full;
		if (c->memory_full && c->changed == 0)
			raise_outcome(r, out);
		c->changed += out.verdict == Verdict::done;
		c->duplicates += out.verdict == Verdict::duplicate;
		c->begun += out.begun;
	}
	MemoryContextSwitchTo(old);
}

void change_keyed(Db &db, Change *c, JobRequest r, int64 most)
{
	sort_keyed(&c->keyed);
	for (int64 i = 0; i < c->keyed.jobs.n && !c->memory_full && c->changed < most; ++i)
	{
		r.id = c->keyed.jobs[i].id;
		change_found(db, c, r, false);
	}
	c->begun += retry_children(db, c->retried.data, c->retried.n);
}

void change_each(Db &db, Change *c, JobRequest r)
{
	core::JobId done = c->terms.after;
	for (int64 i = 0; i < c->jobs.n && !c->memory_full; ++i)
	{
		r.id = c->jobs[i].id;
		change_found(db, c, r, r.verb == Verb::retry && c->jobs[i].ended);
		if (!c->memory_full)
			done = r.id;
	}
	change_keyed(db, c, r, PG_INT64_MAX);
	// Of a retry, jobs with keys may be left among those before `done`. So the next call begins at the first job again;
	// those retried no longer match.
	if (c->memory_full)
		c->next = r.verb == Verb::retry ? c->jobs[0].id - 1 : done;
}

// Purges the jobs of each segment together.
void purge_each(Db &db, Change *c)
{
	Search s;
	s.context = CurrentMemoryContext;
	s.ended = c->filter.states.ended;
	s.waiting = c->filter.states.live;
	for (int64 i = 0; i < c->jobs.n && !c->memory_full;)
	{
		const SegmentView &segment = c->jobs[i].segment;
		s.ids.n = 0;
		for (; i < c->jobs.n && c->jobs[i].segment.slot == segment.slot; ++i)
			s.ids.append(s.context, c->jobs[i].id);
		if (!keep_segment(segment))
			continue;
		c->memory_full = !purge_found(db, s, PG_INT64_MAX, &c->changed);
		if (c->memory_full)
			c->next = s.ids[0] - 1; // the next call begins here again; purged jobs no longer match
	}
	if (c->memory_full && c->changed == 0)
		raise_memory_full_for_purge();
}

void tell(const Change &c)
{
	tell_begun(c.begun);
	if (c.duplicates > 0)
		ereport(NOTICE,
				(errmsg_plural("%lld job was left because another job has its unique key",
							   "%lld jobs were left because other jobs have their unique keys",
							   static_cast<unsigned long>(c.duplicates), static_cast<long long>(c.duplicates))));
	if (c.memory_full)
		ereport(NOTICE, (errmsg("memory has no room for more jobs of one transaction"),
						 errhint("Commit, and call the function again for the rest.")));
}

Datum result_of(FunctionCallInfo fcinfo, const Change &c)
{
	tell(c);
	const pg::RowType type = pg::returned_row(fcinfo, pg::row_shape(kChanged));
	pg::RowValues r;
	r.add_int8(c.changed);
	r.add(Int64GetDatum(c.next), !c.memory_full && c.next == 0);
	return pg::row_datum(type, r.values, r.nulls);
}

// Without the payload that is searched for, which may be secret.
void record(const Db &db, const Change &c, int32 queue_id, const char *reason)
{
	const JobFilter &f = c.filter;
	Facts facts;
	facts.add("state", c.state).add("kind", f.kind).add("worker", f.worker).add("tag", f.tag);
	facts.add("group_key", f.group_key).add("unique_key", f.unique_key);
	facts.add_time("created_from", f.created_from).add_time("created_to", f.created_to);
	facts.add("search", f.search != nullptr).add("error", f.error).add("reason", reason);
	facts.add("with_children", c.with_children).add("jobs", c.changed);
	record_action(db, c.action, queue_id, 0, facts);
}

Datum change_many(FunctionCallInfo fcinfo, Change *c, const JobRequest &request)
{
	Db &db = loaded_database(fcinfo);
	const char *name = c->filter.queue;
	// read first: the queue may be dropped during the search
	const int32 queue_id = name != nullptr ? engine.queue(queue_with_right(db, name, kOperate)).id : kAllQueues;
	find_jobs(db, c);
	if (c->dry_run)
		c->changed = c->jobs.n;
	else if (c->verb == Verb::purge)
		purge_each(db, c);
	else
		change_each(db, c, request);
	if (!c->dry_run)
		record(db, *c, queue_id, request.reason);
	return result_of(fcinfo, *c);
}

constexpr States kRetried{bit_of(FoldState::dead) | bit_of(FoldState::buried) | bit_of(FoldState::cancelled) |
							  bit_of(FoldState::expired),
						  bit_of(State::delayed)};

} // namespace

// the conditions, after, max, dry_run, reason
TQ_FUNCTION(tq_cancel_many)
{
	Change c = begin_change(Verb::cancel, "cancel_many", "cancelled", {0, kAllStates.live});
	read_call(fcinfo, &c);
	read_states(fcinfo, &c, false);
	JobRequest r;
	r.verb = c.verb;
	r.reason = text_or_null(fcinfo, kOwn, "reason", error_limit());
	r.only_waiting = (c.filter.states.live & bit_of(State::running)) == 0;
	return change_many(fcinfo, &c, r);
}

// the conditions, after, max, dry_run, run_at, priority
TQ_FUNCTION(tq_reschedule_many)
{
	Change c = begin_change(Verb::reschedule, "reschedule_many", "rescheduled", {0, kAllPurgeable.live});
	read_call(fcinfo, &c);
	read_states(fcinfo, &c, false);
	return change_many(fcinfo, &c, reschedule_request(fcinfo, kOwn));
}

// the conditions, after, max, dry_run, error, with_children
TQ_FUNCTION(tq_retry_where)
{
	Change c = begin_change(Verb::retry, "retry_where", "retried", kRetried);
	read_call(fcinfo, &c);
	require(fcinfo, kFilterState, "state");
	read_states(fcinfo, &c, false);
	c.filter.error = error_argument(fcinfo, kOwn);
	c.with_children = given(fcinfo, kOwn + 1) && PG_GETARG_BOOL(kOwn + 1);
	int reopened = -1;
	JobRequest r;
	r.verb = c.verb;
	r.reopened = &reopened;
	return change_many(fcinfo, &c, r);
}

// the conditions, after, max, dry_run, error
TQ_FUNCTION(tq_purge_many)
{
	Change c = begin_change(Verb::purge, "purge_many", "purged", kAllPurgeable);
	read_call(fcinfo, &c);
	require(fcinfo, kFilterState, "state");
	read_states(fcinfo, &c, true);
	c.filter.error = error_argument(fcinfo, kOwn);
	return change_many(fcinfo, &c, JobRequest{});
}

// queue, state, kind, since, max_jobs, to_queue, with_children
TQ_FUNCTION(tq_retry_many)
{
	require_writable("tq_retry_many()");
	const char *name = text_required(fcinfo, 0, "queue");
	const char *state = text_required(fcinfo, 1, "state", kWordLimit);
	Change c = begin_change(Verb::retry, "retry_many", "retried", kRetried);
	Search s;
	s.context = CurrentMemoryContext;
	s.kind = text_or_null(fcinfo, 2, "kind");
	s.since = time_or(fcinfo, 3, "since", journal::kNoTime);
	const int64 max = given(fcinfo, 4) ? int_or(fcinfo, 4, "max_jobs", 0, 1, PG_INT32_MAX) : PG_INT64_MAX;
	const char *to = c.to.name = text_or_null(fcinfo, 5, "to_queue");
	// the SQL of 0.1.0 lacks the last argument
	c.with_children = PG_NARGS() > 6 && given(fcinfo, 6) && PG_GETARG_BOOL(6);
	if (s.kind != nullptr)
		check_name("kind", s.kind);
	if (to != nullptr)
		check_name("to_queue", to);
	const bool known = parse_state(state, &c.filter.states);
	s.ended = c.filter.states.ended & kRetried.ended;
	s.waiting = c.filter.states.live & kRetried.live;
	if (!known || (s.ended | s.waiting) == 0)
	{
		static constexpr const char *kStates[] = {"dead", "buried", "cancelled", "expired", "delayed", nullptr};
		pg::unknown_word(psprintf("jobs that are \"%s\" cannot be retried", state), state, "The state can be", kStates);
	}
	if (to != nullptr && s.waiting != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("delayed jobs cannot be copied to another queue"),
				 errdetail("They are going to run where they are.")));
	if (to != nullptr && c.with_children)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("with_children cannot be used with to_queue"),
						errdetail("A copy is another job, for which no job waits.")));

	Db &db = loaded_database(fcinfo);
	s.queue_id = engine.queue(queue_with_right(db, name, kOperate)).id;
	// consumers of the target queue see the contents of the copies, so the caller must have the right to read them
	if (to != nullptr)
		static_cast<void>(queue_with_right(db, name, kMayRead));
	c.to.queue = to != nullptr ? queue_for_enqueue(db, to) : kNoQueue;
	s.now = wall_now();

	int reopened = -1;
	JobRequest r;
	r.verb = c.verb;
	r.reopened = &reopened;
	const pg::Array<SegmentView> segments = view_segments(db);
	for (int64 i = 0; i < segments.n && !c.memory_full && c.changed < max; ++i)
	{
		s.ids.n = 0;
		search_segment(&s, segments[i]);
		if (s.ids.n == 0 || (to != nullptr && !keep_segment(segments[i])))
			continue;
		for (int64 k = 0; k < s.ids.n && !c.memory_full && c.changed < max; ++k)
		{
			r.id = s.ids[k];
			change_found(db, &c, r, to == nullptr && s.ended != 0);
		}
	}
	change_keyed(db, &c, r, max);
	tell(c);
	Facts facts;
	facts.add("state", state).add("kind", s.kind).add("to_queue", to);
	facts.add("with_children", c.with_children).add("jobs", c.changed);
	record_action(db, "retry_many", s.queue_id, 0, facts);
	PG_RETURN_INT64(c.changed);
}

} // namespace tq
