// What is due is enqueued in the order of the names, a batch of schedules in one transaction, each time in a subtransaction of its own with the
// row of tq.schedule_fire that says so. The commit does not wait for the disk: lost in a crash, row and job are made again.
#include "workers/firing.hpp"

#include "api/change.hpp"
#include "live/unique.hpp"
#include "pg/errors.hpp"
#include "pg/owner.hpp"
#include "workers/attempt.hpp"
#include "workers/refiring.hpp"
#include "workers/schedule_list.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using api::FireOutcome;
using live::Db;

constexpr Micros kSecond = 1000000;
constexpr Micros kShortPause = kSecond / 10;
constexpr Micros kHeldPause = kSecond;
constexpr Micros kLongPause = 60 * kSecond;
constexpr int kBatch = 50;	 // schedules in one transaction
constexpr int kTimes = 500;	 // in one transaction, more only if one schedule has more; the rest comes in the next cycle
constexpr int kRows = 100;	 // of tq.schedule_fire that are kept of each schedule
constexpr int kPatience = 5; // so often a lock is not worth a line in the log

ScheduleList schedules;
bool known = false; // they have been read since the start, or since the database was activated
uint32 seen_changes = 0;
Micros seen_count = 0; // db.counted_at when lost jobs were last looked for
Micros look_at = 0;	   // if that failed: when to do it again, monotonic,
Micros look_pause = 0; // and how long it has waited
Micros last_wall = 0;
Micros next_wall = core::kNever;
Micros next_mono = core::kNever;

// What was tried for a schedule in the open transaction.
struct Attempt
{
	Planned *plan;
	Tried result; // refused: the schedule has changed, or the time has a row already
	int64 missed;
	int fired;
	int errors;
};

// --- one schedule ------------------------------------------------------------------------------------------------

bool has_ended(Db &db, core::JobId job) { return job == 0 || live::is_free(live::standing_of_job(db, job)); }

// As tq_cancel: a waiting job ends, a running one is asked to stop.
void cancel(Db &db, const api::Schedule &s, core::JobId job, Micros fire_at)
{
	api::Request r;
	r.id = job;
	r.verb = live::Verb::cancel;
	r.reason = psprintf("schedule \"%s\" fired again at %s", s.name, timestamptz_to_str(fire_at));
	const api::Outcome out = api::change(db, r);
	if (out.verdict == api::Verdict::busy || out.verdict == api::Verdict::no_room)
		api::raise_outcome(r, out);
}

// Enqueues the job of one time and says so. False if it cannot be said.
bool fire_once(Db &db, Planned *p, Micros fire_at, Micros now, int64 missed)
{
	const api::Schedule &s = p->schedule;
	core::JobId job = 0;
	FireOutcome outcome = FireOutcome::fired;
	if (p->retry_at != 0 && !api::can_record_fire(db, s)) // asked first: an enqueue that is rolled back counts for its queue's rate
		return false;
	if (s.overlap != api::Overlap::allow && !has_ended(db, p->new_last_job))
	{
		if (s.overlap == api::Overlap::cancel)
			cancel(db, s, p->new_last_job, fire_at);
		else
			outcome = FireOutcome::skipped;
	}
	if (outcome == FireOutcome::fired)
	{
		bool made = false;
		job = api::put_job(db, s, fire_at, now, &made);
		if (!made)
			outcome = FireOutcome::duplicate;
	}
	TQ_WAIT_POINT("fire-before-row");
	if (!api::record_fire(db, s, fire_at, now, job, missed, outcome))
		return false;
	TQ_WAIT_POINT("fire-after-row");
	p->new_base = fire_at;
	if (outcome == FireOutcome::fired) // what has its unique key is not ours to cancel
		p->new_last_job = job;
	++p->new_rows;
	return true;
}

bool note_outcome(const Db &db, Planned *p, Micros fire_at, Micros now, int64 missed, FireOutcome outcome)
{
	if (!api::record_fire(db, p->schedule, fire_at, now, 0, missed, outcome))
		return false;
	p->new_base = fire_at;
	++p->new_rows;
	return true;
}

// Who is changing the row just now is not waited for.
void write_error(const Db &db, const Planned &p, const char *message)
{
	const Oid types[] = {TEXTOID, TEXTOID};
	const Datum values[] = {CStringGetTextDatum(p.schedule.name),
							message != nullptr ? CStringGetTextDatum(message) : static_cast<Datum>(0)};
	const char nulls[] = {' ', message != nullptr ? ' ' : 'n', '\0'};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql("UPDATE tq.schedule s SET last_error = $2"
			" FROM (SELECT name FROM tq.schedule WHERE name = $1 FOR NO KEY UPDATE SKIP LOCKED) l WHERE s.name = l.name",
			2, types, values, nulls, false, 0);
	pg::leave_owner(scope);
}

// Once for each cause.
void complain(const Db &db, Attempt *a, const ErrorData *e)
{
	Planned *p = a->plan;
	++a->errors;
	p->failures = e->sqlerrcode == p->sqlstate ? p->failures + 1 : 1;
	p->sqlstate = e->sqlerrcode;
	if (p->failures != (e->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ? kPatience : 1))
		return;
	ereport(LOG, (errmsg("tq: schedule \"%s\" cannot enqueue its job: %s", p->schedule.name, e->message),
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

// All times of a schedule that are due, as far as it goes.
void fire(Db &db, Attempt *a, Micros now)
{
	static Micros times[api::kMostCaughtUp];
	Planned *p = a->plan;
	const api::Schedule &s = p->schedule;
	p->new_base = p->base;
	p->new_last_job = p->last_job;
	p->new_rows = 0;
	const core::Due due = core::due_times(s.times, p->base, now, s.catch_up, s.late, s.max_catch_up, times);
	ErrorData *error = nullptr;
	if (due.last != core::kNever && due.n == 0)
		a->result = attempt([&] { return note_outcome(db, p, due.last, now, due.missed, FireOutcome::missed); }, &error);
	for (int i = 0; i < due.n && a->result == Tried::done; ++i)
	{
		const int64 missed = i == 0 ? due.missed : 0;
		a->result = attempt([&] { return fire_once(db, p, times[i], now, missed); }, &error);
		const bool denied = error != nullptr && error->sqlerrcode == ERRCODE_INSUFFICIENT_PRIVILEGE;
		if (!denied && (error == nullptr || error->sqlerrcode != kErrDuplicateKey))
			continue;
		// these times are over
		complain(db, a, error);
		const FireOutcome outcome = denied ? FireOutcome::denied : FireOutcome::duplicate;
		a->result = attempt([&] { return note_outcome(db, p, times[i], now, missed, outcome); }, &error);
	}
	if (error != nullptr)
		complain(db, a, error);
	if (a->result == Tried::done && a->errors == 0 && due.n > 0)
	{
		if (p->has_error)
			write_error(db, *p, nullptr);
		p->has_error = false;
		p->sqlstate = p->failures = 0;
	}
	a->missed = p->new_rows > 0 ? due.missed : 0;
	a->fired = due.n > 0 ? p->new_rows : 0;
}

// After the commit.
void settle(Db &db, const Attempt &a) noexcept
{
	Planned *p = a.plan;
	p->base = p->new_base;
	p->last_job = p->new_last_job;
	p->rows += p->new_rows;
	plan_next(p);
	db.fires.fetch_add(a.fired);
	db.fires_missed.fetch_add(a.missed);
	db.fires_failed.fetch_add(a.errors);
	if (a.result == Tried::done)
	{
		p->retry_at = p->pause = 0;
		return;
	}
	known = known && a.result != Tried::refused;
	// whoever has its row may keep it for long; a new revision does not wait for that
	p->pause = std::clamp(p->pause * 2, kShortPause, a.result == Tried::failed ? kLongPause : kHeldPause);
	p->retry_at = live::mono_now() + p->pause;
}

// --- all of them -------------------------------------------------------------------------------------------------

bool is_due(const Planned &p, Micros now, Micros mono) noexcept { return p.next <= now && p.retry_at <= mono; }

// Those that may have to wait for somebody's lock, or are known to fail, come after the others, and each by itself.
bool goes_alone(const Planned &p) noexcept
{
	return p.retry_at != 0 || p.schedule.item.unique_key != nullptr || p.schedule.overlap == api::Overlap::cancel;
}

bool fire_batch(const WorkerContext &context, Db &db, Planned *const *plans, int n)
{
	Attempt attempts[kBatch];
	if (!begin_work(context, "tq: firing schedules"))
		return false;
	const Micros now = live::wall_now();
	int tried = 0;
	for (int rows = 0; tried < n && rows < kTimes; ++tried)
	{
		attempts[tried] = Attempt{plans[tried], Tried::done, 0, 0, 0};
		fire(db, &attempts[tried], now);
		rows += plans[tried]->new_rows;
	}
	TQ_WAIT_POINT("fire-before-commit");
	end_work(true);
	TQ_WAIT_POINT("fire-after-commit");
	for (int i = 0; i < tried; ++i)
		settle(db, attempts[i]);
	return true;
}

bool fire_due(const WorkerContext &context, Db &db, Micros now)
{
	const Micros mono = live::mono_now();
	for (const bool alone : {false, true})
	{
		Planned *plans[kBatch];
		int n = 0;
		for (Planned *p = schedules.list; p < schedules.list + schedules.n; ++p)
		{
			if (is_due(*p, now, mono) && goes_alone(*p) == alone)
				plans[n++] = p;
			if (n > 0 && (n == (alone ? 1 : kBatch) || p + 1 == schedules.list + schedules.n))
			{
				if (!fire_batch(context, db, plans, n))
					return false;
				n = 0;
			}
		}
	}
	return true;
}

// The rows that are left say how far it has got, and more of them are of no use. Those of times that are to come, when the clock was set back,
// stay beside them; so do those of the job before, which may run longer than all of them, and of the last time that it fired.
bool prune(const WorkerContext &context, Db &db)
{
	for (Planned *p = schedules.list; p < schedules.list + schedules.n; ++p)
	{
		if (p->rows <= 2 * kRows)
			continue;
		if (!begin_work(context, "tq: forgetting what schedules did"))
			return false;
		const Oid types[] = {TEXTOID, INT4OID, TIMESTAMPTZOID};
		const Datum values[] = {CStringGetTextDatum(p->schedule.name), Int32GetDatum(kRows), TimestampTzGetDatum(live::wall_now())};
		const pg::OwnerScope scope = pg::enter_owner(db.extension);
		pg::sql(
			"WITH l AS (SELECT name FROM tq.schedule WHERE name = $1 FOR NO KEY UPDATE SKIP LOCKED),"
			" old AS (DELETE FROM tq.schedule_fire f USING l WHERE f.schedule = l.name AND f.fire_at <"
			"   (SELECT fire_at FROM tq.schedule_fire WHERE schedule = $1 AND fire_at <= $3"
			"    ORDER BY fire_at DESC OFFSET $2 - 1 LIMIT 1)"
			"  AND f.fire_at IS DISTINCT FROM (SELECT fire_at FROM tq.schedule_fire WHERE schedule = $1 AND " TQ_JOB_BEFORE ")"
			"  AND f.fire_at IS DISTINCT FROM (SELECT fire_at FROM tq.schedule_fire WHERE schedule = $1 AND fire_at <= $3 AND outcome = 'fired'"
			"   ORDER BY fire_at DESC LIMIT 1)"
			"  RETURNING f.fire_at, f.missed, f.outcome),"
			" sums AS (SELECT max(fire_at) FILTER (WHERE outcome <> 'manual') AS until, sum(missed) AS missed FROM old)"
			" UPDATE tq.schedule s"
			" SET fired_until = coalesce(greatest(CASE WHEN s.fired_until <= $3 THEN s.fired_until END, sums.until), s.fired_until),"
			" missed = s.missed + sums.missed"
			" FROM l, sums WHERE s.name = l.name AND sums.missed IS NOT NULL",
			3, types, values, nullptr, false, 0);
		pg::leave_owner(scope);
		end_work(true);
		p->rows = kRows; // also if somebody else had the schedule's row: then another time
	}
	return true;
}

void plan() noexcept
{
	const Micros mono = live::mono_now();
	next_wall = next_mono = core::kNever;
	for (const Planned *p = schedules.list; p < schedules.list + schedules.n; ++p)
	{
		if (p->retry_at <= mono)
			next_wall = std::min(next_wall, p->next);
		else
			next_mono = std::min(next_mono, p->retry_at);
	}
}

bool read(const WorkerContext &context, const Db &db, Micros now)
{
	const uint32 changes = db.schedule_changes.load();
	if (!begin_work(context, "tq: reading schedules"))
		return false;
	read_schedules(db, &schedules, now);
	end_work();
	seen_changes = changes;
	known = true;
	return true;
}

} // namespace

bool fire_schedules(const WorkerContext &context, Db &db)
{
	if (db.dormant.load())
	{
		known = false;
		seen_count = 0;
		next_wall = next_mono = core::kNever;
		return true;
	}
	const Micros now = live::wall_now();
	const bool set_back = now < last_wall - kSecond; // times that were behind us are to come again
	last_wall = now;
	known = known && !set_back; // also if reading fails now
	const bool reads = !known || db.schedule_changes.load() != seen_changes;
	if (reads && !read(context, db, now))
		return false;
	if (reads)
		plan();
	const Micros counted = db.counted_at.load();
	// not while a restore may be under way: what looks lost may be yet to come
	if (schedules.n > 0 && counted != seen_count && db.outside_changes.load() == db.outside_adopted.load() && look_at <= live::mono_now())
	{
		const Looked looked = fire_lost_again(context, db, schedules, now);
		if (looked == Looked::refused)
			return false;
		look_pause = looked == Looked::failed ? std::clamp(look_pause * 2, kSecond, kLongPause) : 0;
		look_at = looked == Looked::failed ? live::mono_now() + look_pause : 0;
		seen_count = looked == Looked::at_all ? counted : seen_count;
	}
	if (next_wall > now && next_mono > live::mono_now())
		return true;
	if (!fire_due(context, db, now) || !prune(context, db))
		return false;
	plan();
	return true;
}

FiringPlan firing_plan(const Db &db) noexcept
{
	return {next_wall, next_mono, !db.dormant.load() && (!known || db.schedule_changes.load() != seen_changes)};
}

} // namespace tq::workers
