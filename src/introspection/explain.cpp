// tq_explain: explains why a job is not running, and what would change that.
// Regime: PG; raises TQ004. Locks: those of explain_facts.hpp.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "dependencies/parents.hpp"
#include "handlers/handler_functions.hpp"
#include "introspection/explain_facts.hpp"
#include "jobs/job_rights.hpp"
#include "journal/reasons.hpp"
#include "queues/policy.hpp"
#include "queues/rights.hpp"
#include "shmem/workers_table.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

using core::Micros;
using journal::EventRow;
using journal::EventType;
using journal::FoldState;

// --- parts of sentences ------------------------------------------------------------------------------------------

const char *span(Micros t)
{
	const int64 s = (std::abs(t) + 500000) / 1000000;
	if (s < 120)
		return psprintf("%lld s", static_cast<long long>(s));
	if (s < 120 * 60)
		return psprintf("%lld min", static_cast<long long>(s / 60));
	if (s < 48 * 3600)
		return psprintf("%lld h", static_cast<long long>(s / 3600));
	return psprintf("%lld d", static_cast<long long>(s / 86400));
}

const char *in(Micros t) { return t < 1000000 ? "in less than a second" : psprintf("in %s", span(t)); }

const char *jobs(int n, bool or_more = false)
{
	return n == 1 ? "1 job" : psprintf("%s%d jobs", or_more ? "at least " : "", n);
}

const char *at(TimestampTz t) { return pstrdup(timestamptz_to_str(t - t % 1000000)); }

const char *until(TimestampTz t, Micros now)
{
	return t == core::kNever ? "until it is resumed" : psprintf("until %s (in %s)", at(t), span(t - now));
}

// A reason that a user or worker gave, in quotes; empty if there is none.
const char *quoted(const char *reason)
{
	if (reason == nullptr || *reason == '\0')
		return "";
	const int length = pg_mbcliplen(reason, static_cast<int>(strlen(reason)), 200);
	return psprintf(journal::is_own_reason(reason) ? " (%.*s)" : " (\"%.*s\")", length, reason);
}

const char *by(const char *worker)
{
	return worker != nullptr && *worker != '\0' ? psprintf(" by worker \"%s\"", worker) : "";
}

const char *verb_name(Verb verb) noexcept
{
	switch (verb)
	{
		case Verb::complete:
			return "tq_complete";
		case Verb::fail:
			return "tq_fail";
		case Verb::release:
			return "tq_release";
		case Verb::bury:
			return "tq_bury";
		case Verb::cancel:
			return "tq_cancel";
		case Verb::retry:
			return "tq_retry";
		case Verb::reschedule:
			return "tq_reschedule";
		case Verb::purge:
		case Verb::forget:
			return "tq_purge";
		default:
			return "maintenance";
	}
}

const EventRow *last_of(const JournalFacts &rec, bool (*which)(EventType)) noexcept
{
	for (int64 i = rec.events.n; i-- > 0;)
		if (which(rec.events[i].type))
			return &rec.events[i];
	return nullptr;
}

// Whether the event sets when the job may start next.
bool says_when(EventType t) noexcept
{
	return t == EventType::failed || t == EventType::lost || t == EventType::released || t == EventType::override_ ||
		   t == EventType::retried || t == EventType::blocked;
}

bool ends_job(EventType t) noexcept
{
	return t == EventType::succeeded || t == EventType::dead || t == EventType::buried || t == EventType::cancelled ||
		   t == EventType::expired || t == EventType::purged;
}

// --- sentences ---------------------------------------------------------------------------------------------------

char *ended(core::JobId job, const JournalFacts &rec)
{
	const auto id = static_cast<long long>(job);
	const EventRow *e = last_of(rec, ends_job);
	const char *when = at(rec.fold.ended_at);
	const char *why = quoted(e != nullptr ? e->reason : nullptr);
	const char *worker = by(rec.fold.worker);
	const char *again = psprintf("tq_retry(%lld) gives it a new life.", id);
	const TimestampTz expires_at = rec.fold.expires_at(rec.row.expires_at);
	switch (rec.fold.state)
	{
		case FoldState::succeeded:
			return psprintf("Job %lld has succeeded: attempt %d was completed%s at %s. It will not run again.", id,
							rec.fold.attempt, worker, when);
		case FoldState::dead:
			return psprintf("Job %lld has been dead since %s: attempt %d%s was its last%s. %s", id, when,
							rec.fold.attempt, worker, why, again);
		case FoldState::buried:
			return psprintf("Job %lld was buried%s at %s%s. %s", id, worker, when, why, again);
		case FoldState::cancelled:
			return psprintf("Job %lld was cancelled at %s%s. %s", id, when, why, again);
		case FoldState::expired:
			return psprintf("Job %lld has expired: no worker started it in time, before %s. %s", id,
							expires_at != journal::kNoTime ? at(expires_at) : when, again);
		default:
			return psprintf("Job %lld was purged at %s%s. It will not run again.", id, when, why);
	}
}

// A job that an open transaction is changing.
char *marked(core::JobId job, const MemoryFacts &f)
{
	const auto id = static_cast<long long>(job);
	const core::Entry &e = f.e;
	if (e.owner == my_proc)
		return psprintf("Job %lld was changed by this transaction (%s), which has not committed.", id,
						verb_name(e.mark));
	if (e.mark == Verb::lose)
		return psprintf("Job %lld has lost its lease, and is being given back.", id);
	return psprintf("Job %lld is being changed (%s) by the open transaction of process %d, and no other can have it "
					"before that ends.",
					id, verb_name(e.mark), pid_of(e.owner));
}

char *running(core::JobId job, const MemoryFacts &f, const JournalFacts &rec, Micros now)
{
	const auto id = static_cast<long long>(job);
	if (!f.has_entry) // it got its entry after copy_entry()
		return psprintf("Job %lld has been running since %s.", id, at(rec.fold.claimed_at));
	const core::Entry &e = f.e;
	const Micros end = ends_at(engine.queue(e.queue), e);
	const bool hard = e.has(core::kHardTimeout) && e.hard_deadline == end;
	const Micros ends = now + end - mono_now();
	const char *claim =
		e.mark == Verb::claim ? psprintf(", in the open transaction of process %d", pid_of(e.owner)) : "";
	const char *limit = hard ? "and must end by" : "and has a lease";
	return psprintf("Job %lld is running%s: attempt %d began at %s%s, %s %s%s.%s", id, by(f.worker), e.attempt,
					at(e.claimed_at), claim, limit, hard ? "" : "until ", at(ends),
					e.has(core::kCancelAsked)  ? " It was asked to stop."
					: e.has(core::kSuperseded) ? " It was superseded, and gets no further attempt."
											   : "");
}

char *delayed(core::JobId job, const MemoryFacts &f, const JournalFacts &rec, Micros now)
{
	const auto id = static_cast<long long>(job);
	const Micros due = f.has_entry ? f.e.timer : rec.due;
	if (f.has_entry && f.e.has(core::kCancelAsked))
		return psprintf("Job %lld was %s while it ran, and is about to be cancelled.", id,
						f.e.has(core::kSuperseded) ? "superseded" : "asked to stop");
	const EventRow *e = last_of(rec, says_when);
	const char *why = "that is when it was to start";
	if (f.has_entry && f.e.aborts > 0)
		why = psprintf("%d transactions that had claimed it rolled back, one after the other", f.e.aborts);
	else if (e != nullptr && e->type == EventType::failed)
		why = psprintf("attempt %d%s failed%s", e->attempt, by(e->worker), quoted(e->reason));
	else if (e != nullptr && e->type == EventType::lost)
		why = psprintf("attempt %d%s was lost%s", e->attempt, by(e->worker), quoted(e->reason));
	else if (e != nullptr && e->type == EventType::released)
		why = psprintf("it was released%s", by(e->worker));
	else if (e != nullptr && e->type == EventType::override_ && e->retry_at != journal::kNoTime)
		why = "it was rescheduled";
	return psprintf("Job %lld waits %s: %s. tq_retry(%lld) starts it now.", id, until(due, now), why, id);
}

// A ready job of a group: why the group keeps it from starting; null if it does not.
char *blocked_by_group(core::JobId job, const MemoryFacts &f)
{
	const auto id = static_cast<long long>(job);
	const char *other = f.blocker == 0 ? "another job" : psprintf("job %lld", static_cast<long long>(f.blocker));
	using Block = core::Block;
	switch (f.block)
	{
		case Block::paused:
			return psprintf(
				"Job %lld is ready, but group \"%s\" of queue \"%s\" is paused %s. tq_resume(%s, group_key => %s) "
				"ends that.",
				id, f.group, f.queue, until(f.group_paused, wall_now()), quote_literal_cstr(f.queue),
				quote_literal_cstr(f.group));
		case Block::running:
			if (f.group_limit > 1)
				return psprintf(
					"Job %lld is ready, but its group \"%s\" has %s running, and the %s of queue \"%s\" is %d. It "
					"can start when one has ended.",
					id, f.group, jobs(static_cast<int>(f.group_running)),
					f.own_limit ? "max_running of this group" : "group_max_running", f.queue, f.group_limit);
			return psprintf(
				"Job %lld is ready, but %s of its group \"%s\" is running, and they run one after the other. It can "
				"start when that has ended.",
				id, other, f.group);
		case Block::held:
			return psprintf(
				"Job %lld is ready, but %s of its group \"%s\" waits for its next attempt, and none of the others "
				"starts before it. Retry or cancel that one, or set the group_order of queue \"%s\" to loose.",
				id, other, f.group, f.queue);
		case Block::rate:
			return psprintf(
				"Job %lld is ready, but its group \"%s\" has started as many as its %s allows; the next can "
				"start %s.",
				id, f.group, f.own_rate ? "own rate" : "group_rate", in(f.group_opens - mono_now()));
		default:
			break;
	}
	if (f.ahead > 0)
		return psprintf("Job %lld is ready, and %s of its group \"%s\" %s before it.", id,
						jobs(f.ahead, f.ahead == kFewJobs), f.group, f.ahead == 1 ? "comes" : "come");
	return nullptr;
}

// The kinds that workers of the queue ask for, and of which it has no jobs; empty if there are none.
const char *other_kinds(const MemoryFacts &f)
{
	StringInfoData list;
	initStringInfo(&list);
	for (int i = 0; i < f.others.n; ++i)
		appendStringInfo(&list, "%s\"%s\"", i > 0 ? ", " : "", f.others.kinds[i]);
	return list.len > 0 ? psprintf(" Workers have asked for kinds of which the queue has no jobs: %s.", list.data) : "";
}

// The draining worker that asks for such jobs; empty if there is none.
const char *asked_while_draining(const MemoryFacts &f)
{
	return f.draining[0] == '\0' ? ""
								 : psprintf(" Worker \"%s\" is draining, so its claims get no jobs; tq_undrain(%s) "
											"ends that.",
											f.draining, quote_literal_cstr(f.draining));
}

// A ready job: the first reason why it has not started. Pauses and limits come before missing workers, and those before
// the jobs that start earlier.
char *ready(core::JobId job, const MemoryFacts &f, const JournalFacts &rec, Micros now)
{
	const auto id = static_cast<long long>(job);
	const TimestampTz by_journal = rec.fold.expires_at(rec.row.expires_at);
	const Micros expires = f.has_entry					   ? f.e.expires_at
						   : by_journal != journal::kNoTime ? by_journal
															: core::kNever;
	const char *kind = f.kind[0] != '\0' ? psprintf(", kind \"%s\"", f.kind) : "";
	if (expires <= now)
		return psprintf("Job %lld is about to expire: no worker started it before %s.", id, at(expires));
	if (f.queue_paused != 0)
		return psprintf("Job %lld is ready, but queue \"%s\" is paused %s. tq_resume(%s) ends that.", id, f.queue,
						until(f.queue_paused, now), quote_literal_cstr(f.queue));
	if (f.kind_paused != 0)
		return psprintf("Job %lld is ready, but kind \"%s\" of queue \"%s\" is paused %s. tq_resume(%s, %s) ends that.",
						id, f.kind, f.queue, until(f.kind_paused, now), quote_literal_cstr(f.queue),
						quote_literal_cstr(f.kind));
	if (f.max_running > 0 && f.running >= static_cast<uint32>(f.max_running))
		return psprintf(
			"Job %lld is ready, but queue \"%s\" has %s running, and its max_running is %d. It can start when one "
			"has ended.",
			id, f.queue, jobs(static_cast<int>(f.running)), f.max_running);
	if (f.share_is_full)
		return psprintf(
			"Job %lld is ready, but queue \"%s\" has its share of memory: %s run, are being changed, or were "
			"rescheduled. It can start when one of these has ended. tq.max_live_jobs sets how much there is.",
			id, f.queue, jobs(static_cast<int>(f.pinned)));
	if (f.group[0] != '\0')
		if (char *sentence = blocked_by_group(job, f))
			return sentence;
	if (f.no_group_slots)
		return psprintf(
			"Job %lld is ready, but its group \"%s\" waits on disk: queue \"%s\" has its share of the places for "
			"groups. "
			"It can start when other groups have none to run. tq.max_groups sets how many places there are.",
			id, f.group, f.queue);
	if (f.rate_opens != 0)
		return psprintf(
			"Job %lld is ready, but queue \"%s\" has started as many as its rate allows; the next can start %s.", id,
			f.queue, in(f.rate_opens - mono_now()));
	const Micros since = std::max({rec.row.enqueued_at, rec.fold.ended_at, rec.fold.due,
								   rec.row.run_at != journal::kNoTime && rec.row.run_at <= now ? rec.row.run_at : 0});
	const char *function = nullptr;
	if (const char *why = why_not_handled(*current_db(), rec.row.queue_id,
										  rec.row.kind != nullptr ? text_to_cstring(rec.row.kind) : nullptr, &function))
		return psprintf("Job %lld is ready, but its handler %s is not called: %s.", id, function, why);
	if (f.asked_at < since && !f.waited_for)
		return psprintf(
			"Job %lld is ready, but no worker%s has asked for queue \"%s\"%s %s. It needs a worker that calls "
			"tq_claim(%s).%s%s",
			id, f.draining[0] != '\0' ? " that may get jobs" : "", f.queue, kind,
			f.asked_at == 0 ? "since the server started"
							: psprintf("since %s (%s ago)", at(f.asked_at), span(now - f.asked_at)),
			quote_literal_cstr(f.queue), other_kinds(f), asked_while_draining(f));
	if (!f.has_entry || !f.below_watermark)
		return psprintf(
			"Job %lld is ready, on disk behind the jobs of its %s that are in memory and come first. More or "
			"faster workers would get to it sooner.",
			id, f.group[0] != '\0' ? "group" : "kind");
	if (f.ahead > 0)
		return psprintf(
			"Job %lld is ready, and %s of queue \"%s\"%s %s before it. More or faster workers would get to it "
			"sooner.",
			id, jobs(f.ahead, f.ahead == kFewJobs), f.queue, kind, f.ahead == 1 ? "comes" : "come");
	return psprintf("Job %lld is ready, and comes next%s; a worker last asked for such a job %s ago.", id,
					f.kind[0] != '\0' ? " of its kind" : "", span(now - f.asked_at));
}

char *explain(Db &db, core::JobId id)
{
	MemoryFacts f{};
	JournalFacts rec{};
	// Memory comes first: an ended job loses its entry after its commit, so the later snapshot sees how it ended.
	copy_entry(db, id, &f);
	const bool committed = read_record(db, id, &rec);
	const bool readable = rights_on(db, rec.row.queue_id).may_read(rec.row.queue_id);
	// hides texts of users and workers from a caller that may not read the job
	for (EventRow &e : rec.events)
		if (!readable && !journal::is_own_reason(e.reason))
			e.reason = nullptr;
	const Micros now = wall_now();
	if (f.has_entry && f.e.state == State::committing)
		return psprintf("Job %lld is being enqueued by a transaction that is about to commit.",
						static_cast<long long>(id));
	if (!committed)
		return psprintf("Job %lld was enqueued by this transaction: no other session sees it before it commits.",
						static_cast<long long>(id));
	if (f.has_entry && f.e.mark != Verb::none && f.e.mark != Verb::claim)
		return marked(id, f);
	if (!f.has_entry && rec.fold.terminal())
		return ended(id, rec);
	if (!f.has_entry && !copy_queue_of(db, id, rec, &f))
		return psprintf("Job %lld belongs to a queue that does not exist any more.", static_cast<long long>(id));
	if (!rights_on(db, rec.row.queue_id).may(rec.row.queue_id, kMayLook))
		f.others.n = 0;
	else
		for (const uint64 by : f.asked_by)
			name_if_draining(db, by, f.draining);
	if (f.group[0] != '\0' && !readable)
		strlcpy(f.group, "...", sizeof(f.group));
	switch (f.has_entry ? f.e.state : rec.state)
	{
		case State::blocked:
			return psprintf("Job %lld %s. tq_retry(%lld) starts it without waiting.", static_cast<long long>(id),
							what_it_waits_for(db, id), static_cast<long long>(id));
		case State::running:
			return running(id, f, rec, now);
		case State::delayed:
			return delayed(id, f, rec, now);
		default:
			return ready(id, f, rec, now);
	}
}

} // namespace

TQ_FUNCTION(tq_explain)
{
	const core::JobId id = id_required(fcinfo, 0, "id");
	Db &db = loaded_database(fcinfo);
	require_job(db, id, kMayKnow);
	return CStringGetTextDatum(explain(db, id));
}

} // namespace tq
