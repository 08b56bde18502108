// Changes to a job from outside: tq_cancel, tq_retry, tq_reschedule. They need no lease; what they work on may
// be in memory, on disk only, ended, or enqueued by the open transaction itself. Regime: PG. Locks: queue
// locks, inside live/; RowExclusiveLock on the tables of the job's segment.
#include "api/args.hpp"
#include "api/change.hpp"
#include "api/follow_up.hpp"
#include "api/names.hpp"
#include "api/unique.hpp"
#include "live/attach.hpp"
#include "live/reopening.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"

namespace tq::api
{

namespace
{

using journal::EventType;
using journal::FoldState;
using live::Hold;
using live::Pin;
using live::State;
using live::Verb;

// Where a job goes to by a verb, and the event that says so.
struct Step
{
	State to;
	core::Micros due;
	journal::EventRow row;
};

Step step_for(const Request &r, State now_in, core::Micros due, core::Micros now) noexcept
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
			break;
		case Verb::purge:
			s.to = State::terminal;
			s.row.type = EventType::purged;
			break;
		case Verb::retry:
			s.row.type = EventType::retried;
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

// The journal is the arbiter: if it has another event in this place, memory was wrong about the job, and it is
// read again.
void append(live::Db &db, journal::EventRow row, uint16_t slot)
{
	PG_TRY();
	{
		live::append_by_segment(db, &row, &slot, 1);
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_UNIQUE_VIOLATION)
		{
			live::distrust(live::op_count() - 1);
			FlushErrorState();
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("job %lld has changed meanwhile", static_cast<long long>(row.job_id)),
					 errdetail("The live state of the job was wrong and is read again from the journal."),
					 errhint("Try again.")));
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
	follow_up(db, &row, 1);
}

// The states that a live job may be in for a verb.
uint32 states_for(const Request &r) noexcept
{
	if (r.verb == Verb::purge)
		return r.states;
	return live::bit_of(State::delayed) | live::bit_of(State::blocked) | (r.verb != Verb::retry ? live::bit_of(State::ready) : 0) |
		   (r.verb == Verb::cancel && !r.only_waiting ? live::bit_of(State::running) : 0);
}

// Whether what this transaction has ended itself is its own to begin again.
bool can_take_back(EventType ended) noexcept
{
	return ended != EventType::succeeded && ended != EventType::purged;
}

// A job that this transaction has enqueued: nobody else may see it, so all that changes is what will be
// published.
Outcome change_own(live::Db &db, const Request &r, live::Op &own)
{
	const core::Micros now = live::wall_now();
	const bool delayed = own.due != core::kNever && own.due > now;
	const State in = own.revoked ? State::terminal : own.blocked ? State::blocked : delayed ? State::delayed : State::ready;
	if ((states_for(r) & live::bit_of(in)) == 0 &&
		!(in == State::terminal && r.verb == Verb::retry && can_take_back(own.event)))
		return {Verdict::wrong_state, in == State::terminal ? ended_as(own.event) : name_of(in)};
	const core::Micros due = own.due;
	Step s = step_for(r, in, due, now);
	live::Op &op = live::edit_enqueue(own, r.verb);
	s.row.step = std::max(op.prev_step, 1);
	if (in == State::terminal)
	{
		s.row.attempt = 0;
		op.expires_at = core::kNever;
	}
	op.prev_step = s.row.step + 1;
	op.revoked = s.to == State::terminal;
	op.blocked = s.to == State::blocked;
	op.event = s.row.type;
	op.due = s.due;
	if (r.verb == Verb::reschedule)
	{
		op.override_ = true;
		if (r.has_priority)
			op.priority = r.priority;
	}
	append(db, s.row, op.segment);
	return {Verdict::done, state_after(s), due};
}

// A job that has ended begins a new life.
Outcome begin_again(live::Db &db, const Request &r, const live::Pinned &pinned)
{
	live::Op op;
	core::Entry e;
	live::hold_ended(pinned, &op, &e);
	live::last_op().event = EventType::retried;
	if (r.reopened == nullptr || *r.reopened != pinned.segment)
		live::reopen_segment(db, pinned.segment);
	if (r.reopened != nullptr)
		*r.reopened = pinned.segment;
	// the lock that keeps the janitor out may have come too late
	journal::Segment tables;
	if (!live::tables_at(db, pinned.segment, &tables) || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(tables.event)))
		live::raise_no_job(r.id);
	Step s = step_for(r, State::terminal, core::kNever, live::wall_now());
	s.row.step = e.step;
	s.row.attempt = 0;
	append(db, s.row, e.segment);
	return {Verdict::done, state_after(s)};
}

// The state of an entry that this transaction has ended.
const char *ended_here(const live::Pinned &pinned, core::JobId id) noexcept
{
	const live::Op *op = live::last_op_on(pinned.ref, id);
	return op != nullptr ? ended_as(op->event) : name_of(State::terminal);
}

// One try; false if the job had no entry any more when it was to be marked, or none that says where it stands.
bool try_change(live::Db &db, const Request &r, const live::Pinned &pinned, Outcome *out)
{
	live::Op op;
	core::Entry e;
	State in{};
	op.to = State::ready;
	const core::Micros now = live::wall_now();
	// Only for an entry that is ours: the list is searched from its end to its beginning. Our own mark cannot change under us.
	const core::Entry &seen = live::engine.entry(pinned.ref);
	const bool ours = seen.mark != Verb::none && seen.owner == live::my_proc;
	const live::Op *mine = ours ? live::last_op_on(pinned.ref, r.id) : nullptr;
	const bool again =
		r.verb == Verb::retry && mine != nullptr && mine->to == State::terminal && can_take_back(mine->event);
	const bool was_dead = again && mine->is_dead;
	uint32 states = states_for(r);
	if (again)
		states |= live::bit_of(State::terminal);
	switch (live::hold_job(db, pinned.ref, pinned.queue, r.id, states, r.verb, &op, &e, &in))
	{
		case Hold::busy:
			*out = {Verdict::busy, nullptr};
			return true;
		case Hold::asked:
			if (!e.has(core::kCancelAsked))
			{
				journal::EventRow row = live::event_of(e, EventType::asked_cancel, now);
				row.reason = r.reason;
				append(db, row, e.segment);
			}
			*out = {Verdict::done, "asked"};
			return true;
		case Hold::ok:
			break;
		case Hold::lost:
			if (in == State::placeholder || in == State::committing)
				return false;
			*out = {Verdict::wrong_state, in == State::terminal ? ended_here(pinned, r.id) : name_of(in)};
			return true;
		default:
			return false;
	}
	live::Op &noted = live::last_op();
	const bool changed_here = noted.prev_mark != Verb::none; // then it is where our last operation has put it
	const core::Micros due = changed_here && mine != nullptr ? mine->due : e.timer;
	Step s = step_for(r, in, due, now);
	s.row.step = e.step;
	noted.to = s.to;
	noted.due = s.due;
	noted.event = s.row.type;
	noted.makes_way = r.makes_way;
	noted.has_priority = r.has_priority;
	noted.priority = r.priority;
	noted.override_ = r.verb == Verb::reschedule;
	noted.keeps_time = r.verb == Verb::reschedule && r.run_at == journal::kNoTime;
	if (again)
	{
		noted.life = true;
		noted.is_dead = was_dead;
		noted.reset_attempts = true;
		s.row.attempt = 0;
	}
	live::set_pending(noted);
	append(db, s.row, e.segment);
	*out = {Verdict::done, state_after(s),
			in == State::delayed   ? due
			: in == State::blocked ? (due != core::kNever ? due : live::due_when_free(db, pinned, r.id))
								   : core::kNever};
	return true;
}

[[noreturn]] void raise_wrong_state(const Request &r, const char *state)
{
	const auto id = static_cast<long long>(r.id);
	const bool running = strcmp(state, "running") == 0;
	switch (r.verb)
	{
		case Verb::cancel:
			ereport(ERROR,
					(errcode(kErrWrongState), errmsg("job %lld cannot be cancelled: it is %s", id, state),
					 errdetail("Only jobs that are ready, delayed, blocked or running can be cancelled.")));
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

Outcome change(live::Db &db, const Request &r)
{
	core::JobId holder = 0;
	bool unended = false;
	if (r.verb == Verb::retry && !win_key_again(db, r.id, &holder, &unended))
		return {Verdict::duplicate, nullptr, core::kNever, holder};
	TQ_WAIT_POINT("retry-after-key");
	live::reserve_ops(2); // from here on no entry of ours is without its operation
	if (live::Op *own = live::own_job(db, r.id))
		return change_own(db, r, *own);
	for (int tries = 0; tries < 2000; ++tries)
	{
		if (r.verb == Verb::reschedule && !live::room_to_stay(db, r.id))
			return {Verdict::no_room, nullptr};
		const live::Pinned pinned = live::pin(db, r.id, r.verb == Verb::retry);
		Outcome out{};
		switch (pinned.result)
		{
			case Pin::absent:
				return {Verdict::absent, nullptr};
			case Pin::no_room:
				return {Verdict::no_room, nullptr};
			case Pin::busy:
				live::raise_being_read(r.id);
			case Pin::terminal:
				if (r.verb == Verb::retry && unended)
				{
					// it has ended since we asked for its key, which may be somebody else's by now
					live::drop_placeholder(db, pinned.queue, pinned.ref, false);
					if (!win_key_again(db, r.id, &holder, &unended))
						return {Verdict::duplicate, nullptr, core::kNever, holder};
					break;
				}
				// the placeholder was there before this look, so a queue found open cannot go meanwhile
				if (r.verb == Verb::retry && can_begin_again(pinned.fold.state) &&
					live::engine.queue(pinned.queue).state != core::QueueState::closing)
					return begin_again(db, r, pinned);
				if (r.verb == Verb::retry)
					live::drop_placeholder(db, pinned.queue, pinned.ref, false);
				if (r.verb == Verb::retry && can_begin_again(pinned.fold.state))
					return {Verdict::closing, nullptr};
				return {Verdict::wrong_state, name_of(pinned.fold.state)};
			case Pin::pinned:
				if (try_change(db, r, pinned, &out))
					return out;
				break;
		}
		if (!live::job_exists(db, r.id)) // its enqueue is about to commit
			return {Verdict::absent, nullptr};
		pg_usleep(500);
		CHECK_FOR_INTERRUPTS();
	}
	return {Verdict::busy, nullptr};
}

void raise_outcome(const Request &r, const Outcome &out)
{
	switch (out.verdict)
	{
		case Verdict::busy:
			live::raise_busy(r.id);
		case Verdict::no_room:
			ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
							errmsg("no room in memory for job %lld", static_cast<long long>(r.id)),
							errhint("Raise tq.max_live_jobs or, for jobs of groups, tq.max_groups and restart the server.")));
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
			live::raise_no_job(r.id);
	}
}

} // namespace tq::api

using namespace tq;
using namespace tq::api;

static Datum change_one(FunctionCallInfo fcinfo, const Request &r)
{
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	live::require_job(db, r.id, live::kManage);
	const Outcome out = change(db, r);
	if (out.verdict != Verdict::done)
		raise_outcome(r, out);
	return CStringGetTextDatum(out.state);
}

// id, reason
TQ_FUNCTION(tq_cancel)
{
	require_writable("tq_cancel()");
	Request r;
	r.id = id_required(fcinfo, 0, "id");
	r.verb = live::Verb::cancel;
	r.reason = text_or_null(fcinfo, 1);
	return change_one(fcinfo, r);
}

TQ_FUNCTION(tq_retry)
{
	require_writable("tq_retry()");
	Request r;
	r.id = id_required(fcinfo, 0, "id");
	r.verb = live::Verb::retry;
	return change_one(fcinfo, r);
}

// id, run_at, priority
TQ_FUNCTION(tq_reschedule)
{
	require_writable("tq_reschedule()");
	Request r;
	r.id = id_required(fcinfo, 0, "id");
	r.verb = live::Verb::reschedule;
	r.run_at = time_or(fcinfo, 1, "run_at", journal::kNoTime);
	r.has_priority = given(fcinfo, 2);
	r.priority = int_or(fcinfo, 2, "priority", 0, PG_INT16_MIN, PG_INT16_MAX);
	if (r.run_at == journal::kNoTime && !r.has_priority)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("run_at or priority must be given")));
	return change_one(fcinfo, r);
}
