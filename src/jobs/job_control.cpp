// Changes to a job without its lease: cancel, retry, reschedule, purge. The job may be in memory, on disk only,
// ended, or enqueued by the open transaction itself.
// Regime: PG; may ereport. Locks: queue locks, briefly; RowExclusiveLock on the tables of the job's segment.
#include "jobs/job_control.hpp"

#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/jobs_ended.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "segments/reopening.hpp"
#include "segments/segments.hpp"
#include "unique/retry_keys.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

using journal::EventType;
using journal::FoldState;

// The state that a verb moves a job to, and the event that records it.
struct Step
{
	State to;
	core::Micros due;
	journal::EventRow row;
};

Step step_for(const JobRequest &r, State now_in, core::Micros due, core::Micros now) noexcept
{
	Step s{State::ready, core::kNever, {}};
	s.row.job_id = r.id;
	s.row.at = now;
	switch (r.verb)
	{
		case Verb::cancel:
			s.to = State::terminal;
			s.row.type = EventType::cancelled;
			s.row.reason = r.reason;
			s.row.detail = r.detail;
			break;
		case Verb::purge:
			s.to = State::terminal;
			s.row.type = EventType::purged;
			break;
		case Verb::retry:
			s.row.type = r.blocks_at > 0 ? EventType::blocked : EventType::retried;
			s.row.detail = r.detail;
			s.to = r.blocks_at > 0 ? State::blocked : State::ready;
			if (r.blocks_at > 0 && now_in == State::delayed)
				s.row.retry_at = due; // still, once it is freed
			break;
		default:
			s.row.type = EventType::override_;
			s.row.retry_at = r.run_at;
			s.row.has_priority = r.has_priority;
			s.row.priority = r.priority;
			if (r.run_at != journal::kNoTime)
				s.due = r.run_at > now ? r.run_at : core::kNever;
			else if (now_in == State::delayed || now_in == State::blocked)
				s.due = due;
			s.to = now_in == State::blocked ? State::blocked : s.due != core::kNever ? State::delayed : State::ready;
			break;
	}
	return s;
}

const char *state_after(const Step &s) noexcept
{
	return s.to == State::terminal ? name_of(s.row.type) : name_of(s.to);
}

void append(Db &db, journal::EventRow row, uint16_t slot)
{
	const EventBatch batch{.rows = &row, .slots = &slot, .n = 1};
	append_or_distrust(db, batch, op_count() - 1, [](Db &, const journal::EventRow &refused) {
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("job %lld has changed meanwhile", static_cast<long long>(refused.job_id)),
						errdetail("The live state of the job was wrong and is read again from the journal."),
						errhint("Try again.")));
	});
	jobs_ended(db, &row, 1);
}

// The states that a live job may be in for a verb.
uint32 states_for(const JobRequest &r) noexcept
{
	if (r.verb == Verb::purge)
		return r.states;
	return bit_of(State::delayed) | bit_of(State::blocked) | (r.verb != Verb::retry ? bit_of(State::ready) : 0) |
		   (r.verb == Verb::cancel && !r.only_waiting ? bit_of(State::running) : 0);
}

// Whether this transaction may retry a job that it has ended itself.
bool can_take_back(EventType ended) noexcept
{
	return ended != EventType::succeeded && ended != EventType::purged;
}

// A job that this transaction has enqueued. No other transaction can see it, so only its noted enqueue changes.
JobResult change_own(Db &db, const JobRequest &r, Op &op)
{
	const core::Micros now = wall_now();
	const State in = state_at(op, now);
	if ((states_for(r) & bit_of(in)) == 0 &&
		!(in == State::terminal && r.verb == Verb::retry && can_take_back(op.event)))
		return {Verdict::wrong_state, in == State::terminal ? ended_as(op.event) : name_of(in)};
	const core::Micros due = op.due;
	Step s = step_for(r, in, due, now);
	keep_enqueue(op);
	s.row.queue = op.queue;
	s.row.step = std::max(op.prev.step, 1);
	if (in == State::terminal)
	{
		s.row.attempt = 0;
		op.expires_at = core::kNever;
	}
	op.prev.step = s.row.step + 1;
	op.to = s.to;
	op.event = s.row.type;
	op.due = s.due;
	if (r.verb == Verb::reschedule)
	{
		op.enqueue.flags |= core::kOverride;
		if (r.has_priority)
			op.priority = r.priority;
	}
	append(db, s.row, op.segment);
	return {Verdict::done, state_after(s), due};
}

JobResult begin_again(Db &db, const JobRequest &r, const FetchedJob &pinned)
{
	Op op;
	core::Entry e;
	mark_ended(pinned, &op, &e);
	Step s = step_for(r, State::terminal, core::kNever, wall_now());
	last_op().event = s.row.type;
	last_op().to = s.to;
	set_pending(last_op());
	if (r.reopened == nullptr || *r.reopened != pinned.segment)
		reopen_segment(db, pinned.segment);
	if (r.reopened != nullptr)
		*r.reopened = pinned.segment;
	// the lock that keeps the janitor out may come too late
	journal::Segment tables;
	if (!tables_at(db, pinned.segment, &tables) || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(tables.event)))
		raise_no_job(r.id);
	s.row.queue = e.queue;
	s.row.step = e.step;
	s.row.attempt = 0;
	append(db, s.row, e.segment);
	return {.verdict = Verdict::done, .state = state_after(s), .new_life = true};
}

// The state of a job that this transaction has ended.
const char *ended_here(const FetchedJob &pinned, core::JobId id) noexcept
{
	const Op *op = last_op_on(pinned.ref, id);
	return op != nullptr ? ended_as(op->event) : name_of(State::terminal);
}

// One try. False if the job's entry is missing when it should be marked, or if the entry does not show the job's state.
bool try_change(Db &db, const JobRequest &r, const FetchedJob &pinned, JobResult *out)
{
	Op op;
	core::Entry e;
	State in{};
	op.to = State::ready;
	const core::Micros now = wall_now();
	// This check needs no lock: no other session can change a mark of this transaction. Only an entry with such a mark
	// has an operation of this transaction that matters here.
	const core::Entry &seen = engine.entry(pinned.ref);
	const bool ours = seen.mark != Verb::none && seen.owner == my_proc;
	const Op *mine = ours ? last_op_on(pinned.ref, r.id) : nullptr;
	const bool again =
		r.verb == Verb::retry && mine != nullptr && mine->to == State::terminal && can_take_back(mine->event);
	const bool free = r.blocks_at > 0 && !again; // it waits again before it has begun
	uint32 states = free ? bit_of(State::ready) | bit_of(State::delayed) : states_for(r);
	if (again)
		states |= bit_of(State::terminal);
	const MarkTerms terms{.id = r.id, .verb = r.verb, .states = states, .step = free ? r.blocks_at : 0};
	switch (mark_job(pinned, terms, &op, &e, &in))
	{
		case Marked::busy:
			*out = {Verdict::busy, nullptr};
			return true;
		case Marked::cancel_requested:
			if (!e.has(core::kCancelAsked))
			{
				journal::EventRow row = event_of(e, EventType::asked_cancel, now);
				row.reason = r.reason;
				append(db, row, e.segment);
			}
			*out = {Verdict::done, "asked"};
			return true;
		case Marked::ok:
			break;
		case Marked::lost:
			if (in == State::placeholder || in == State::committing)
				return false;
			*out = {Verdict::wrong_state, in == State::terminal ? ended_here(pinned, r.id) : name_of(in)};
			return true;
		case Marked::memory_full:
			*out = {Verdict::memory_full, nullptr};
			return true;
		default:
			return false;
	}
	Op &noted = last_op();
	const bool changed_here = noted.prev.mark != Verb::none; // an earlier operation here has set the job's state
	const core::Micros due = changed_here && mine != nullptr ? mine->due : e.timer;
	Step s = step_for(r, in, due, now);
	s.row.queue = e.queue;
	s.row.step = e.step;
	noted.to = s.to;
	noted.due = s.due;
	noted.event = s.row.type;
	noted.makes_way = r.makes_way;
	noted.was_dead = again && is_dead(*mine);
	noted.priority = r.has_priority ? r.priority : core::kUnset;
	noted.keeps_time = r.verb == Verb::reschedule && r.run_at == journal::kNoTime;
	if (again)
		s.row.attempt = 0;
	set_pending(noted);
	append(db, s.row, e.segment);
	*out = {Verdict::done, state_after(s),
			in == State::delayed   ? due
			: in == State::blocked ? (due != core::kNever ? due : when_free(db, pinned, r.id).due)
								   : core::kNever};
	return true;
}

[[noreturn]] void raise_wrong_state(const JobRequest &r, const char *state)
{
	const auto id = static_cast<long long>(r.id);
	const bool running = strcmp(state, "running") == 0;
	switch (r.verb)
	{
		case Verb::cancel:
			ereport(ERROR,
					(errcode(kErrWrongState), errmsg("job %lld cannot be cancelled: it is %s", id, state),
					 errdetail("Only jobs that are ready, delayed, blocked or running can be cancelled."),
					 errhint("Of many jobs, tq_cancel_jobs() cancels those that have not ended.")));
		case Verb::retry:
			ereport(
				ERROR,
				(errcode(kErrWrongState), errmsg("job %lld cannot be retried: it is %s", id, state),
				 errdetail("Only jobs that are dead, buried, cancelled, expired, delayed or blocked can be retried."),
				 running						   ? errhint("Let it end, or cancel it, first.")
				 : strcmp(state, "succeeded") == 0 ? errhint("Enqueue another job.")
				 : strcmp(state, "purged") == 0	   ? errhint("tq_history tells whether it goes on as another job.")
												   : 0));
		default:
			ereport(ERROR,
					(errcode(kErrWrongState), errmsg("job %lld cannot be rescheduled: it is %s", id, state),
					 errdetail("Only jobs that are ready, delayed or blocked can be rescheduled."),
					 running ? errhint("Its worker can put it off with tq_release().") : 0));
	}
}

} // namespace

bool can_begin_again(FoldState state) noexcept
{
	return state == FoldState::dead || state == FoldState::buried || state == FoldState::cancelled ||
		   state == FoldState::expired;
}

JobResult change(Db &db, const JobRequest &r)
{
	core::JobId holder = 0;
	bool unended = false;
	if (r.verb == Verb::retry && !take_key_again(db, r.id, &holder, &unended))
		return {Verdict::duplicate, nullptr, core::kNever, holder};
	TQ_WAIT_POINT("retry-after-key");
	reserve_ops(2); // so each entry that is marked below has its operation
	Op *own = own_job(db, r.id);
	if (own != nullptr && own->ref == kNil) // otherwise this transaction has claimed it (tq.claim_own)
		return change_own(db, r, *own);
	for (int tries = 0; tries < 2000; ++tries)
	{
		if (r.verb == Verb::reschedule && !may_stay_in_memory(db, r.id))
			return {Verdict::memory_full, nullptr};
		const FetchedJob pinned = fetch_job(db, r.id, r.verb == Verb::retry, For::verb);
		JobResult out{};
		switch (pinned.result)
		{
			case Fetch::absent:
				return {Verdict::absent, nullptr};
			case Fetch::memory_full:
				return {Verdict::memory_full, nullptr};
			case Fetch::busy:
				raise_being_read(r.id);
			case Fetch::terminal:
				if (r.verb == Verb::retry && unended)
				{
					// the job has ended since this call asked for its key, and another job may have the key now
					drop_placeholder(db, pinned.queue, pinned.ref, false);
					if (!take_key_again(db, r.id, &holder, &unended))
						return {Verdict::duplicate, nullptr, core::kNever, holder};
					break;
				}
				if (r.blocks_at > 0 && pinned.fold.next_step != r.blocks_at)
				{
					drop_placeholder(db, pinned.queue, pinned.ref, false);
					return {Verdict::busy, nullptr};
				}
				// the placeholder was there before this check, so a queue that is open now cannot be dropped meanwhile
				if (r.verb == Verb::retry && can_begin_again(pinned.fold.state) &&
					engine.queue(pinned.queue).state != core::QueueState::closing)
					return begin_again(db, r, pinned);
				if (r.verb == Verb::retry)
					drop_placeholder(db, pinned.queue, pinned.ref, false);
				if (r.verb == Verb::retry && can_begin_again(pinned.fold.state))
					return {Verdict::closing, nullptr};
				return {Verdict::wrong_state, name_of(pinned.fold.state)};
			case Fetch::found:
				if (try_change(db, r, pinned, &out))
					return out;
				break;
		}
		if (!job_exists(db, r.id)) // its enqueue has not committed yet
			return {Verdict::absent, nullptr};
		pg_usleep(500);
		CHECK_FOR_INTERRUPTS();
	}
	return {Verdict::busy, nullptr};
}

JobRequest reschedule_request(FunctionCallInfo fcinfo, int i)
{
	JobRequest r;
	r.verb = Verb::reschedule;
	r.run_at = time_or(fcinfo, i, "run_at", journal::kNoTime);
	r.has_priority = given(fcinfo, i + 1);
	r.priority = int_or(fcinfo, i + 1, "priority", 0, PG_INT16_MIN, PG_INT16_MAX);
	if (r.run_at == journal::kNoTime && !r.has_priority)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_at or priority must be given")));
	return r;
}

void raise_outcome(const JobRequest &r, const JobResult &out)
{
	switch (out.verdict)
	{
		case Verdict::busy:
			raise_busy(r.id);
		case Verdict::memory_full:
			ereport(
				ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no room in memory for job %lld", static_cast<long long>(r.id)),
				 errdetail("Jobs that run, that an open transaction changes, or that were rescheduled stay in memory. "
						   "Its queue, its database or this transaction has its share of these; "
						   "the rest is for claims."),
				 errhint(
					 "Finish some of them first, commit more often, or raise tq.max_live_jobs (for jobs of groups also "
					 "tq.max_groups) and restart the server.")));
		case Verdict::wrong_state:
			raise_wrong_state(r, out.state);
		case Verdict::duplicate:
			ereport(ERROR, (errcode(kErrDuplicateKey),
							errmsg("job %lld cannot be retried: its unique key is taken", static_cast<long long>(r.id)),
							errdetail("Job %lld has it.", static_cast<long long>(out.holder)),
							errhint("Wait until that job has ended and its unique_for has passed, or cancel it.")));
		case Verdict::closing:
			ereport(ERROR, (errcode(kErrNoSuchQueue),
							errmsg("the queue of job %lld is being dropped", static_cast<long long>(r.id)),
							errhint("Copy the job to another queue with tq_retry_many, to_queue.")));
		default:
			raise_no_job(r.id);
	}
}

static Datum change_one(FunctionCallInfo fcinfo, const char *action, const JobRequest &r)
{
	Db &db = loaded_database(fcinfo);
	require_job(db, r.id, kOperate);
	const JobResult out = change(db, r);
	if (out.verdict != Verdict::done)
		raise_outcome(r, out);
	record_action_on(db, action, r.id, Facts().add("reason", r.reason));
	return CStringGetTextDatum(out.state);
}

// id, reason
TQ_FUNCTION(tq_cancel)
{
	require_writable("tq_cancel()");
	JobRequest r;
	r.id = id_required(fcinfo, 0, "id");
	r.verb = Verb::cancel;
	r.reason = text_or_null(fcinfo, 1, "reason", error_limit());
	return change_one(fcinfo, "cancel", r);
}

// id, run_at, priority
TQ_FUNCTION(tq_reschedule)
{
	require_writable("tq_reschedule()");
	const core::JobId id = id_required(fcinfo, 0, "id");
	JobRequest r = reschedule_request(fcinfo, 1);
	r.id = id;
	return change_one(fcinfo, "reschedule", r);
}

} // namespace tq
