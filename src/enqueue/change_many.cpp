// tq_cancel_many, tq_reschedule_many, tq_retry_where, tq_purge_many: change the jobs that match conditions. Each call
// looks for at most `max` jobs, closes its scans, and then changes these jobs one by one.
// Regime: PG. Locks: as the functions on one job; those of jobs/find.hpp while it looks.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/retry_graph.hpp"
#include "jobs/find.hpp"
#include "jobs/job_control.hpp"
#include "jobs/job_record.hpp"
#include "queues/actions.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "unique/retry_keys.hpp"
#include "pg/function.hpp"
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
	pg::Array<Found> jobs;
	pg::Array<core::JobId> retried; // if with_children
	core::JobId next;				// where the next call goes on; 0: no more jobs
	int64 changed;
	int64 duplicates;
	int64 begun; // sum of JobResult::begun
	bool room;	 // false: memory keeps no more changed jobs of this transaction
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

void read_call(FunctionCallInfo fcinfo, Change *c)
{
	c->context = CurrentMemoryContext;
	c->filter = filter_arguments(fcinfo);
	c->terms.right = kOperate;
	c->terms.budget = kBudget;
	c->terms.after = cursor_argument(fcinfo, kAfter);
	c->max = int_or(fcinfo, kMax, "max", 1000, 1, kMostChanged);
	c->dry_run = given(fcinfo, kDryRun) && PG_GETARG_BOOL(kDryRun);
	c->room = true;
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

// Changes one job. Jobs that have changed since they were found are left.
void change_found(Db &db, Change *c, const JobRequest &r)
{
	const JobResult out = r.verb == Verb::retry ? retry(db, r, c->with_children) : change(db, r);
	if (c->with_children && out.verdict == Verdict::done)
		c->retried.append(c->context, r.id);
	c->room = out.verdict != Verdict::no_room;
	if (!c->room && c->changed == 0)
		raise_outcome(r, out);
	c->changed += out.verdict == Verdict::done;
	c->duplicates += out.verdict == Verdict::duplicate;
	c->begun += out.begun;
}

void change_each(Db &db, Change *c, JobRequest r)
{
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq change", ALLOCSET_SMALL_SIZES);
	KeyedJobs keyed{CurrentMemoryContext, {}};
	MemoryContext old = MemoryContextSwitchTo(each);
	const auto go_on = [each, c] {
		MemoryContextReset(each);
		CHECK_FOR_INTERRUPTS();
		return c->room;
	};
	core::JobId done = c->terms.after;
	for (int64 i = 0; i < c->jobs.n && go_on(); ++i)
	{
		r.id = c->jobs[i].id;
		if (r.verb != Verb::retry || !c->jobs[i].ended || !postpone_keyed(db, r.id, &keyed))
			change_found(db, c, r);
		if (c->room)
			done = r.id;
	}
	sort_keyed(&keyed);
	for (int64 i = 0; i < keyed.jobs.n && go_on(); ++i)
	{
		r.id = keyed.jobs[i].id;
		change_found(db, c, r);
	}
	// Of a retry, jobs with keys may be left among those before `done`. So the next call begins at the first job again;
	// those retried no longer match.
	if (!c->room)
		c->next = r.verb == Verb::retry ? c->jobs[0].id - 1 : done;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	c->begun += retry_children(db, c->retried.data, c->retried.n);
}

// Purges the jobs of each segment together.
void purge_each(Db &db, Change *c)
{
	Search s;
	s.context = CurrentMemoryContext;
	s.ended = c->filter.states.ended;
	s.waiting = c->filter.states.live;
	for (int64 i = 0; i < c->jobs.n && c->room;)
	{
		const SegmentView &segment = c->jobs[i].segment;
		s.ids.n = 0;
		for (; i < c->jobs.n && c->jobs[i].segment.slot == segment.slot; ++i)
			s.ids.append(s.context, c->jobs[i].id);
		if (!keep_segment(segment))
			continue;
		c->room = purge_found(db, s, PG_INT64_MAX, &c->changed);
		if (!c->room)
			c->next = s.ids[0] - 1; // the next call begins here again; purged jobs no longer match
	}
	if (!c->room && c->changed == 0)
		raise_no_room_to_purge();
}

Datum result_of(FunctionCallInfo fcinfo, const Change &c)
{
	tell_begun(c.begun);
	if (c.duplicates > 0)
		ereport(NOTICE,
				(errmsg_plural("%lld job was left because another job has its unique key",
							   "%lld jobs were left because other jobs have their unique keys",
							   static_cast<unsigned long>(c.duplicates), static_cast<long long>(c.duplicates))));
	if (!c.room)
		ereport(NOTICE, (errmsg("memory has no room for more jobs of one transaction"),
						 errhint("Commit, and call the function again for the rest.")));
	const pg::RowType type = pg::returned_row(fcinfo, pg::row_shape(kChanged));
	pg::RowValues r;
	r.add_int8(c.changed);
	r.add(Int64GetDatum(c.next), c.room && c.next == 0);
	return pg::row_datum(type, r.values, r.nulls);
}

// Without the payload that is searched for, which may be secret.
void record(const Db &db, const Change &c, const char *reason)
{
	const JobFilter &f = c.filter;
	Facts facts;
	facts.add("state", c.state).add("kind", f.kind).add("worker", f.worker).add("tag", f.tag);
	facts.add("group_key", f.group_key).add("unique_key", f.unique_key);
	facts.add_time("created_from", f.created_from).add_time("created_to", f.created_to);
	facts.add("search", f.search != nullptr).add("error", f.error).add("reason", reason);
	facts.add("with_children", c.with_children).add("jobs", c.changed);
	record_action(db, c.action, f.queue != nullptr ? engine.queue(find_queue(db, f.queue)).id : kAllQueues, 0, facts);
}

Datum change_many(FunctionCallInfo fcinfo, Change *c, const JobRequest &request)
{
	Db &db = loaded_database(fcinfo);
	find_jobs(db, c);
	if (c->dry_run)
		c->changed = c->jobs.n;
	else if (c->verb == Verb::purge)
		purge_each(db, c);
	else
		change_each(db, c, request);
	if (!c->dry_run)
		record(db, *c, request.reason);
	return result_of(fcinfo, *c);
}

constexpr States kWaiting{0, bit_of(State::ready) | bit_of(State::delayed) | bit_of(State::blocked)};

} // namespace

// the conditions, after, max, dry_run, reason
TQ_FUNCTION(tq_cancel_many)
{
	Change c{};
	c.verb = Verb::cancel;
	c.action = "cancel_many";
	c.participle = "cancelled";
	c.states = States{0, kAllStates.live};
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
	Change c{};
	c.verb = Verb::reschedule;
	c.action = "reschedule_many";
	c.participle = "rescheduled";
	c.states = kWaiting;
	read_call(fcinfo, &c);
	read_states(fcinfo, &c, false);
	return change_many(fcinfo, &c, reschedule_request(fcinfo, kOwn));
}

// the conditions, after, max, dry_run, error, with_children
TQ_FUNCTION(tq_retry_where)
{
	Change c{};
	c.verb = Verb::retry;
	c.action = "retry_where";
	c.participle = "retried";
	c.states = States{bit_of(FoldState::dead) | bit_of(FoldState::buried) | bit_of(FoldState::cancelled) |
						  bit_of(FoldState::expired),
					  bit_of(State::delayed)};
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
	Change c{};
	c.verb = Verb::purge;
	c.action = "purge_many";
	c.participle = "purged";
	c.states = kAllPurgeable;
	read_call(fcinfo, &c);
	require(fcinfo, kFilterState, "state");
	read_states(fcinfo, &c, true);
	c.filter.error = error_argument(fcinfo, kOwn);
	return change_many(fcinfo, &c, JobRequest{});
}

} // namespace tq
