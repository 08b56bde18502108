// Fires schedules in slices. Each round of the scheduler gives them a slice of its time, which ends early if timers or
// leases are due. The next round continues. The kinds of work take turns: reading changes, firing, pruning.
// schedules/turns.cpp decides which schedule fires next. Each time is enqueued in a subtransaction,
// together with its row in tq.schedule_fire. The commit does not wait for the disk: if a crash loses them, row and job
// are made again.
#include "schedules/schedule_fire.hpp"

#include "jobs/job_control.hpp"
#include "processes/due_queues.hpp"
#include "processes/work_transaction.hpp"
#include "schedules/turns.hpp"
#include "unique/unique_keys.hpp"
#include "pg/attempt.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"
#include "pg/sizes.hpp"

namespace tq
{

namespace
{

// Pauses of a schedule that could not fire: the first one, and the longest if another session has changed or locked its
// row, and after an error.
constexpr Micros kShortPause = core::kSecond / 10;
constexpr Micros kLockedPause = core::kSecond;
constexpr Micros kLongPause = 60 * core::kSecond;
constexpr Micros kSlice = 10000;	  // of a round's time
constexpr Micros kBetweenLooks = 1000; // between checks of timers
constexpr Micros kPublish = core::kSecond / 5; // between publications of next times, see publish()
constexpr int kBatch = 50;	 // schedules in one transaction
constexpr int kRows = 100;	 // of tq.schedule_fire, kept for each schedule
constexpr Size kMessageMax = 1000;
constexpr int kPatience = 5; // lock failures before one is logged

// The part of a round that schedules may use. It ends after its time, or when something more urgent is due. There is
// always time for one step.
class Slice
{
public:
	explicit Slice(const Db &db) noexcept
		: db_(db), look_(mono_now() + kBetweenLooks), end_(look_ - kBetweenLooks + kSlice)
	{}

	bool over() noexcept
	{
		const Micros now = mono_now();
		if (over_ || now < look_)
			return over_;
		look_ = now + kBetweenLooks;
		return over_ = now >= end_ || timers_due(db_);
	}

private:
	const Db &db_;
	Micros look_, end_;
	bool over_ = false;
};

struct Firing
{
	ScheduleList schedules;
	bool reading = false; // a pass over the table is under way
	bool afresh = true;	  // the next pass reads all rows: after a start, or when the clock was set back
	Pass pass;
	uint32 pass_changes = 0; // db.schedule_changes when it began
	uint32 seen_changes = 0;
	Micros last_wall = 0;
	Micros published_at = 0; // monotonic
	Micros next_wall = core::kNever;
	Micros next_mono = core::kNever;
	unsigned first_kind = 0; // the kind of work whose turn it is
};
Firing state;

// What the open transaction has done in the turn of a schedule.
struct TurnOutcome
{
	Planned *plan;
	Tried result; // refused: its row has changed or is locked, or the time already has a row
	bool gone;	  // its row is gone
	bool tried;	  // to handle a time
	int64 missed;
	int fired;
	int errors;
};

// Begins a transaction that waits as briefly as possible for locks: their holder may be of any role.
bool begin_slice(const WorkerContext &context, const char *activity)
{
	if (!begin_work(context, activity))
		return false;
	static_cast<void>(
		set_config_option("lock_timeout", "10ms", PGC_SUSET, PGC_S_OVERRIDE, GUC_ACTION_LOCAL, true, 0, false));
	return true;
}

// --- one schedule ------------------------------------------------------------------------------------------------

bool has_ended(Db &db, core::JobId job) { return job == 0 || is_free(key_state_of_job(db, job)); }

// As tq_cancel: ends a waiting job, asks a running job to stop.
void cancel(Db &db, const Schedule &s, core::JobId job, Micros fire_at)
{
	JobRequest r;
	r.id = job;
	r.verb = Verb::cancel;
	r.reason = psprintf("schedule \"%s\" fired again at %s", s.name, timestamptz_to_str(fire_at));
	const JobResult out = change(db, r);
	if (out.verdict == Verdict::busy || out.verdict == Verdict::memory_full)
		raise_outcome(r, out);
}

bool record_outcome(const Db &db, Planned *p, const Schedule &s, const Fire &fire)
{
	if (!record_fire(db, s, fire))
		return false;
	TQ_WAIT_POINT("fire-after-row");
	p->new_base = fire.at; // last: after an error before it, the time stays due
	++p->new_rows;
	return true;
}

// Enqueues the job of one time and records that. False if it cannot be recorded.
bool fire_once(Db &db, Planned *p, const Schedule &s, core::JobId *before, Fire fire)
{
	// After a failure, checks first whether the time can be recorded: an enqueue counts for the queue's rate limit even
	// if it is rolled back.
	if (p->retry_at != 0 && !can_record_fire(db, s))
		return false;
	if (s.overlap != Overlap::allow && !has_ended(db, *before))
	{
		if (s.overlap == Overlap::cancel)
			cancel(db, s, *before, fire.at);
		else
			fire.outcome = FireOutcome::skipped;
	}
	if (fire.outcome == FireOutcome::fired)
	{
		bool made = false;
		fire.job = put_job(db, s, fire.at, fire.now, &made);
		if (!made)
			fire.outcome = FireOutcome::duplicate;
	}
	TQ_WAIT_POINT("fire-before-row");
	if (!record_outcome(db, p, s, fire))
		return false;
	if (fire.outcome == FireOutcome::fired) // a duplicate is another job, which must not be cancelled
		*before = fire.job;
	return true;
}

// Skips the row if another transaction is changing it.
void write_error(const Db &db, const Planned &p, const char *message)
{
	const Oid types[] = {TEXTOID, TEXTOID};
	const Datum values[] = {CStringGetTextDatum(p.name),
							message != nullptr ? CStringGetTextDatum(pg::cut_cstring(message, kMessageMax))
											   : static_cast<Datum>(0)};
	const char nulls[] = {' ', message != nullptr ? ' ' : 'n', '\0'};
	pg::sql_as_owner(
		db.extension,
		"UPDATE tq.schedule s SET last_error = $2"
		" FROM (SELECT name FROM tq.schedule WHERE name = $1 FOR NO KEY UPDATE SKIP LOCKED) l WHERE s.name = l.name",
		{types, values, nulls});
}

// Logs each cause once.
void report_error(const Db &db, TurnOutcome *o, const ErrorData *e)
{
	Planned *p = o->plan;
	++o->errors;
	p->failures = e->sqlerrcode == p->sqlstate ? p->failures + 1 : 1;
	p->sqlstate = e->sqlerrcode;
	if (p->failures != (e->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? kPatience : 1))
		return;
	ereport(LOG, (errmsg("tq: schedule \"%s\" cannot enqueue its job: %s", p->name, e->message),
				  e->detail != nullptr ? errdetail_internal("%s", e->detail) : 0));
	ErrorData *error = nullptr;
	const Tried noted = attempt(
		[&] {
			write_error(db, *p, e->message);
			return true;
		},
		&error);
	p->has_error = p->has_error || noted == Tried::done;
}

// Does the schedule get a separate transaction? Then no other schedule waits with it, or fails with it.
bool runs_alone(const Planned &p) noexcept { return p.retry_at != 0 || p.may_wait; }

// Fires the due times of a schedule until one fails or the slice is over. The remaining times stay due.
void fire_times(Db &db, TurnOutcome *o, const Schedule &s, core::JobId before, Micros now, Slice *slice)
{
	static Micros times[kMostCaughtUp];
	Planned *p = o->plan;
	const core::Due due = core::due_times(p->times, p->base, now, {p->catch_up, p->late, p->max_catch_up}, times);
	ErrorData *error = nullptr;
	if (due.last != core::kNever && due.n == 0)
	{
		const Fire fire{.at = due.last, .now = now, .missed = due.missed, .outcome = FireOutcome::missed};
		o->result = attempt([&] { return record_outcome(db, p, s, fire); }, &error);
	}
	for (int i = 0; i < due.n && o->result == Tried::done && (i == 0 || !slice->over()); ++i)
	{
		Fire fire{.at = times[i], .now = now, .missed = i == 0 ? due.missed : 0};
		o->result = attempt([&] { return fire_once(db, p, s, &before, fire); }, &error);
		const bool denied = error != nullptr && error->sqlerrcode == ERRCODE_INSUFFICIENT_PRIVILEGE;
		if (!denied && (error == nullptr || error->sqlerrcode != kErrDuplicateKey))
			continue;
		// a denied or duplicate time is recorded, and not tried again
		report_error(db, o, error);
		fire.outcome = denied ? FireOutcome::denied : FireOutcome::duplicate;
		o->result = attempt([&] { return record_outcome(db, p, s, fire); }, &error);
	}
	if (error != nullptr)
		report_error(db, o, error);
	if (o->result == Tried::done && o->errors == 0 && due.n > 0)
	{
		if (p->has_error)
			write_error(db, *p, nullptr);
		p->has_error = false;
		p->sqlstate = p->failures = 0;
	}
	o->missed = p->new_rows > 0 ? due.missed : 0;
	o->fired = due.n > 0 ? p->new_rows : 0;
}

// A turn of a schedule: reads its row if it has changed, and fires its times. `alone`: it is the first in this
// transaction. If its row shows that it needs a separate transaction, a schedule that is not the first fires later.
void run_turn(Db &db, TurnOutcome *o, Micros now, bool alone, Slice *slice)
{
	const MemoryContext one = AllocSetContextCreate(CurrentMemoryContext, "tq schedule", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext caller = MemoryContextSwitchTo(one); // a payload may be large
	Planned *p = o->plan;
	ErrorData *error = nullptr;
	p->new_base = p->base;
	p->new_rows = 0;
	if (p->unread)
	{
		o->result = attempt([&] { return read_planned(db, &state.schedules, p); }, &error);
		o->gone = o->result == Tried::refused;
		p->unreadable = error != nullptr;
		p->new_base = p->base;
	}
	if (error == nullptr && !o->gone && p->next <= now && p->retry_at <= mono_now() && (alone || !runs_alone(*p)))
	{
		o->tried = true;
		Schedule s{};
		core::JobId before = 0;
		o->result = attempt([&] { return read_definition(db, *p, &s, &before); }, &error);
		if (o->result == Tried::done)
			fire_times(db, o, s, before, now, slice);
	}
	if (error != nullptr)
		report_error(db, o, error);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(one);
}

// After the commit: sets in memory what the turn of a schedule has changed, and when its next turn is.
void apply_outcome(Db &db, const TurnOutcome &o, Micros now) noexcept
{
	Planned *p = o.plan;
	if (o.gone)
	{
		remove_planned(&state.schedules, p);
		return;
	}
	if (!p->unread)
	{
		p->base = p->new_base;
		plan_next(p);
	}
	p->rows += p->new_rows;
	if (p->rows > 2 * kRows && !p->to_prune)
		dlist_push_tail(&state.schedules.prune, &p->in_prune);
	p->to_prune = p->to_prune || p->rows > 2 * kRows;
	db.fires.fetch_add(o.fired);
	db.fires_missed.fetch_add(o.missed);
	db.fires_failed.fetch_add(o.errors);
	if (o.result == Tried::done && o.tried)
		p->retry_at = p->pause = 0;
	if (o.result != Tried::done)
	{
		if (o.result == Tried::refused)
		{
			p->unread = true;
			p->turn = now;
		}
		// Another session may hold the row for long, so the pause grows. A new revision does not wait for the pause.
		p->pause = std::clamp(p->pause * 2, kShortPause, o.result == Tried::failed ? kLongPause : kLockedPause);
		p->retry_at = mono_now() + p->pause;
	}
	list_schedule(&state.schedules, p);
}

// --- all of them, in slices --------------------------------------------------------------------------------------

bool has_to_read(const Db &db) noexcept
{
	return state.reading || state.afresh || db.schedule_changes.load() != state.seen_changes;
}

bool read(const WorkerContext &context, Db &db, Slice *slice)
{
	if (!state.reading)
	{
		state.reading = true;
		state.pass_changes = db.schedule_changes.load();
		state.pass = Pass{state.pass.number + 1, state.afresh, "", 0};
		if (state.schedules.context == nullptr)
			make_list(&state.schedules);
	}
	do
	{
		if (!begin_slice(context, "tq: reading schedules"))
			return false;
		state.reading = read_page(db, &state.schedules, &state.pass);
		end_work();
	} while (state.reading && !slice->over());
	if (state.reading)
		return true;
	state.afresh = false;
	state.seen_changes = state.pass_changes;
	if (state.schedules.n == 0)
		free_list(&state.schedules);
	return true;
}

// Fires schedules in one transaction, up to kBatch. A schedule that runs_alone() is the only one in it.
bool fire_some(const WorkerContext &context, Db &db, Slice *slice)
{
	TurnOutcome outcomes[kBatch];
	int n = 0;
	if (!begin_slice(context, "tq: firing schedules"))
		return false;
	const Micros now = wall_now();
	for (bool more = true; more && n < kBatch;)
	{
		Planned *p = first_turn(&state.schedules, now);
		if (p == nullptr || (n > 0 && runs_alone(*p)))
			break;
		more = !runs_alone(*p);
		take_turn(&state.schedules, p);
		outcomes[n] = TurnOutcome{p, Tried::done, false, false, 0, 0, 0};
		run_turn(db, &outcomes[n], now, n == 0, slice);
		++n;
		more = more && !runs_alone(*p) && !slice->over();
	}
	TQ_WAIT_POINT("fire-before-commit");
	end_work(true);
	TQ_WAIT_POINT("fire-after-commit");
	for (int i = 0; i < n; ++i)
		apply_outcome(db, outcomes[i], now);
	return true;
}

bool fire_due(const WorkerContext &context, Db &db, Slice *slice)
{
	do
		if (!fire_some(context, db, slice))
			return false;
	while (!slice->over() && first_turn(&state.schedules, wall_now()) != nullptr);
	return true;
}

// Deletes old rows; the others show the schedule's progress. Keeps rows of future times, which exist if the clock was
// set back. Also keeps the row of the previous job, which may run longer than all of them, and that of the last time
// that fired.
void prune_one(const Db &db, Planned *p)
{
	static pg::Statement statement{
		"WITH l AS (SELECT name FROM tq.schedule WHERE name = $1 FOR NO KEY UPDATE SKIP LOCKED),"
		" old AS (DELETE FROM tq.schedule_fire f USING l WHERE f.schedule = l.name AND f.fire_at <"
		"   (SELECT fire_at FROM tq.schedule_fire WHERE schedule = $1 AND fire_at <= $3"
		"    ORDER BY fire_at DESC OFFSET $2 - 1 LIMIT 1)"
		"  AND f.fire_at IS DISTINCT FROM (SELECT fire_at FROM tq.schedule_fire WHERE schedule = $1 AND " TQ_JOB_BEFORE
		")"
		"  AND f.fire_at IS DISTINCT FROM (SELECT fire_at FROM tq.schedule_fire WHERE schedule = $1 AND fire_at <= $3 "
		"AND outcome = 'fired'"
		"   ORDER BY fire_at DESC LIMIT 1)"
		"  RETURNING f.fire_at, f.missed, f.outcome),"
		" sums AS (SELECT max(fire_at) FILTER (WHERE outcome <> 'manual') AS until, sum(missed) AS missed FROM old)"
		" UPDATE tq.schedule s"
		" SET fired_until = coalesce(greatest(CASE WHEN s.fired_until <= $3 THEN s.fired_until END, sums.until), "
		"s.fired_until),"
		" missed = s.missed + sums.missed"
		" FROM l, sums WHERE s.name = l.name AND sums.missed IS NOT NULL",
		3,
		{TEXTOID, INT4OID, TIMESTAMPTZOID}};
	Datum values[] = {CStringGetTextDatum(p->name), Int32GetDatum(kRows), TimestampTzGetDatum(wall_now())};
	const pg::OwnerScope scope = enter_schedules(db);
	static_cast<void>(pg::run(statement, values, nullptr));
	pg::leave_owner(scope);
}

bool prune(const WorkerContext &context, Db &db, Slice *slice)
{
	do
	{
		auto *p = holder<Planned>(state.schedules.prune.head.next, offsetof(Planned, in_prune));
		if (!begin_slice(context, "tq: forgetting what schedules did"))
			return false;
		prune_one(db, p);
		end_work(true);
		dlist_delete(&p->in_prune);
		p->to_prune = false;
		p->rows = kRows; // if its row was locked, nothing was deleted: the next kRows rows lead to another try
	} while (!slice->over() && !dlist_is_empty(&state.schedules.prune));
	return true;
}

struct Work
{
	bool (*wanted)(const Db &db) noexcept;
	bool (*run)(const WorkerContext &context, Db &db, Slice *slice);
};
constexpr Work kWork[] = {
	{has_to_read, read},
	{[](const Db &) noexcept { return first_turn(&state.schedules, wall_now()) != nullptr; }, fire_due},
	{[](const Db &) noexcept { return state.schedules.context != nullptr && !dlist_is_empty(&state.schedules.prune); },
	 prune},
};
constexpr unsigned kWorks = lengthof(kWork);

// Publishes the next time of each queue's schedules in shared memory. While schedules are late, the times change all
// the time, so it does that only every kPublish.
void publish(Db &db)
{
	db.schedules_unreadable.store(state.schedules.invalid);
	const bool late = first_turn(&state.schedules, wall_now()) != nullptr;
	const Micros mono = mono_now();
	if (late && state.published_at <= mono && mono < state.published_at + kPublish)
		return;
	state.published_at = mono;
	publish_next_fires(db, state.schedules);
}

} // namespace

bool fire_schedules(const WorkerContext &context, Db &db)
{
	const Micros now = wall_now();
	const bool set_back = now < state.last_wall - core::kSecond; // past times come again
	state.last_wall = now;
	state.afresh = state.afresh || set_back;
	state.reading = state.reading && !set_back;
	return_taken(&state.schedules);
	Slice slice(db);
	bool worked = false;
	for (unsigned tried = 0; tried < kWorks && !(worked && slice.over()); ++tried)
	{
		find_due(&state.schedules, wall_now(), mono_now());
		const Work &work = kWork[state.first_kind];
		state.first_kind = (state.first_kind + 1) % kWorks;
		if (!work.wanted(db))
			continue;
		worked = true;
		if (!work.run(context, db, &slice))
			return false;
	}
	state.next_wall = next_turn_at(state.schedules);
	state.next_mono = next_retry_at(&state.schedules);
	if (worked)
		publish(db);
	return true;
}

FiringPlan firing_plan(const Db &db) noexcept
{
	bool now = false;
	for (const Work &work : kWork)
		now = now || work.wanted(db);
	return {state.next_wall, state.next_mono, now};
}

} // namespace tq
