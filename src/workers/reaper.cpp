#include "workers/reaper.hpp"

#include "guc.hpp"
#include "jobs/verbs.hpp"
#include "journal/reasons.hpp"
#include "processes/due_queues.hpp"
#include "processes/retry_later.hpp"
#include "processes/work_transaction.hpp"
#include "queues/policy.hpp"
#include "shmem/workers_table.hpp"
#include "workers/due_work.hpp"

namespace tq
{

using journal::EventType;

namespace
{

// Queue lock held; the engine has just marked the entry. Adds the operation that the commit publishes. The event in
// the batch has the entry's step, so the entry gets the next one.
Op *add_op(core::Entry &e, Verb verb, const core::PrevMark &prev, journal::EventType event,
		   State to = State::terminal, Micros due = core::kNever) noexcept
{
	Op op;
	set_entry(&op, verb, e);
	op.to = to;
	op.event = event;
	op.due = due;
	op.prev = {prev.mark, e.state, e.attempt, prev.owner, e.step};
	e.pending = to;
	++e.step;
	e.after_claim += e.state == State::running;
	return &push_op(op);
}

// After a failure: delays the entries that may have caused it. Otherwise each pass would find them first. A lease is
// lost at the end of the grace after its timer, so the timer is set earlier by that much.
void delay_failed(State state, Micros until) noexcept
{
	for (int i = 0; i < batch.n; ++i)
	{
		if (!may_have_failed(i))
			continue;
		lock_queue(batch.queues[i]);
		core::Queue &q = engine.queue(batch.queues[i]);
		const core::Entry &e = engine.entry(batch.refs[i]);
		const Micros grace = state == State::running ? grace_of(q) : 0;
		if (engine.is(q, batch.refs[i], batch.rows[i].job_id) && e.state == state && e.timer < until - grace)
			engine.change(q, batch.refs[i], [until, grace](core::Entry &x) noexcept { x.timer = until - grace; });
		unlock_queue(batch.queues[i]);
	}
}

constexpr int kFired = 64;	// due entries of one call of Engine::fire_due
constexpr int kTurn = 1024; // entries of one queue in one step

// Queue lock held; fire_due has marked the entry as doomed (core::Doom). Journals its end: cancelled if a cancel was
// asked for, dead otherwise.
void note_doomed(core::Entry &e, Micros now) noexcept
{
	const bool asked = e.has(core::kCancelAsked);
	journal::EventRow row = event_of(e, asked ? EventType::cancelled : EventType::dead, now);
	row.reason = e.has(core::kSuperseded) ? journal::kReasonSuperseded
				 : asked				  ? journal::kReasonStopped
										  : journal::kReasonRolledBack;
	if (e.has(core::kJournalFirst)) // the journal has the claim that was rolled back
		row.attempt = e.attempt;
	add_to_batch(e, row);
	add_op(e, asked ? Verb::cancel : Verb::kill, {Verb::none, 0}, row.type);
}

// A job of the queue is doomed after this many rolled-back claims in a row, as after this many attempts. fire_due looks
// at the job's own number itself. Entry::aborts is a byte.
int aborts_allowed(uint16_t slot) noexcept { return std::min(attempts_allowed(0, slot), UINT8_MAX); }

// Fires the next due jobs, and ends those that are doomed. The transaction begins first, so that nothing can fail
// between the mark and its operation.
bool end_doomed(const WorkerContext &context, Db &db, uint16_t slot, Micros now, int aborts)
{
	core::Ref refs[kFired];
	core::Doom doomed{.aborts = aborts, .owner = my_proc, .out = refs};
	if (!begin_work(context, "tq: ending jobs whose claims were rolled back"))
		return false;
	reserve_ops(kFired);
	lock_queue(slot);
	static_cast<void>(engine.fire_due(engine.queue(slot), now, kFired, &doomed));
	for (int i = 0; i < doomed.n; ++i)
		note_doomed(engine.entry(refs[i]), now);
	unlock_queue(slot);
	TQ_WAIT_POINT("doom-after-mark");
	append_batch(db);
	end_work();
	return true;
}

// Fires the due timers of each queue. Without a context a queue's turn ends at the first doomed job, or after kFired.
bool fire(const WorkerContext *context, Db &db)
{
	const Micros now = wall_now();
	auto due = [now](const core::Queue &q) { return q.next_due.load() <= now; };
	for (uint16_t slot = next_queue(db, 0, due); slot != UINT16_MAX; slot = next_queue(db, slot + 1U, due))
	{
		const int aborts = aborts_allowed(slot);
		bool more = true;
		for (int fired = 0; more && fired < (context != nullptr ? kTurn : kFired); fired += kFired)
		{
			core::Doom doomed{.aborts = aborts};
			lock_queue(slot);
			more = engine.fire_due(engine.queue(slot), now, kFired, &doomed) == kFired;
			unlock_queue(slot);
			if (doomed.n == 0 || context == nullptr)
				continue;
			// fire_due has stopped at a doomed job, others may follow
			const Tried went = try_batch([&] { return end_doomed(*context, db, slot, now, aborts); });
			if (went == Tried::refused)
				return false;
			if (went == Tried::failed)
				delay_failed(State::delayed, now + kRetryDelay);
			more = true;
		}
	}
	return true;
}

} // namespace

void fire_simple_timers(Db &db) noexcept { static_cast<void>(fire(nullptr, db)); }

bool fire_timers(const WorkerContext &context, Db &db) { return fire(&context, db); }

namespace
{

bool collect_expired(uint16_t slot) noexcept
{
	core::Ref refs[kBatch];
	core::LockedSegments locked{.until = blocked_untils(), .now = mono_now()};
	TQ_WAIT_POINT_NOFAIL("expire-before-lock");
	lock_queue(slot);
	const Micros now = wall_now(); // under the lock, so no event is earlier than the job's expiry
	const int n = engine.collect_expired(engine.queue(slot), now, kBatch - batch.n, my_proc, refs, &locked);
	for (int i = 0; i < n; ++i)
	{
		core::Entry &e = engine.entry(refs[i]);
		journal::EventRow row = event_of(e, EventType::expired, now);
		row.reason = journal::kReasonNotStarted;
		add_to_batch(e, row);
		add_op(e, Verb::expire, {Verb::none, 0}, row.type);
	}
	unlock_queue(slot);
	return !locked.skipped;
}

void write_expired(Db &db)
{
	TQ_WAIT_POINT("expire-after-mark");
	append_batch(db);
	TQ_WAIT_POINT("expire-before-commit");
	end_work(true); // after a crash they expire again
}

DueWork expiries = {"tq: ending jobs that expired",
					[](const core::Queue &q) noexcept {
						const Micros at = q.next_expiry.load(); // the clock is read for few of many queues
						return at != core::kNever && at <= wall_now();
					},
					collect_expired,
					write_expired};

} // namespace

bool expire_jobs(const WorkerContext &context, Db &db)
{
	return do_work(context, db, &expiries);
}

namespace
{

// A job that is retried after a lost lease by its own retry policy. The policy is in its row, which is read later,
// without the queue lock.
struct OwnRetry
{
	Op *op;
	int row;
	core::Entry entry;
};

OwnRetry own_retries[kBatch];
int n_own_retries = 0;

const char *why_lost(const core::Entry &e) noexcept
{
	if (engine.is_revoked(e))
		return e.has(core::kBound) ? journal::kReasonSessionEnded : journal::kReasonWorkerEnded;
	if (!e.has(core::kHardTimeout) || e.hard_deadline > e.deadline)
		return journal::kReasonLeaseLost;
	return e.has(core::kCancelAsked) ? journal::kReasonNotStopped : journal::kReasonTimeout;
}

// How an attempt ends whose lease was lost. `undone`: the journal has the claim although its transaction was rolled
// back (Queue::careful). Such a claim is no attempt.
EventType event_of_loss(const core::Entry &e, bool undone) noexcept
{
	const bool superseded = e.has(core::kSuperseded);
	if (e.has(core::kCancelAsked))
		return EventType::cancelled;
	if (undone)
		return superseded ? EventType::cancelled : EventType::released;
	const auto policy = static_cast<core::OnLost>(on_lost_of(engine.queue(e.queue).settings).value);
	if (policy == core::OnLost::bury)
		return EventType::buried;
	if (policy == core::OnLost::dead || e.attempt >= attempts_allowed(e.max_attempts, e.queue))
		return EventType::dead;
	return superseded ? EventType::cancelled : EventType::lost;
}

// Queue lock held; the entry was marked `lose`. Decides everything that does not depend on the job's row.
void lose(core::Entry &e, const core::PrevMark &prev, Micros now) noexcept
{
	const bool undone = e.has(core::kJournalFirst) && prev.mark == Verb::none;
	const EventType type = event_of_loss(e, undone);
	journal::EventRow row = event_of(e, type, now);
	row.reason = undone ? journal::kReasonUndone : why_lost(e);
	if (undone && type == EventType::cancelled)
		row.attempt = e.attempt - 1; // the claim that was rolled back does not count
	const bool goes_on = type == EventType::lost || type == EventType::released;
	const Micros delay = undone ? core::abort_pause(e.aborts) : retry_of_queue(engine.queue(e.queue).settings).on_lost;
	if (goes_on)
		row.retry_at = now + delay;
	add_to_batch(e, row);
	if (goes_on)
	{
		const core::Entry copy = e;
		Op *op = add_op(e, Verb::lose, prev, type, delay > 0 ? State::delayed : State::ready,
						delay > 0 ? now + delay : core::kNever);
		if (e.has(core::kOwnRetry) && !undone)
			own_retries[n_own_retries++] = OwnRetry{op, batch.n - 1, copy};
	}
	else
		add_op(e, Verb::lose, prev, type);
}

// The delay by the job's own policy. -1 if its row cannot be read: then the queue's policy applies, because one bad row
// must not keep the leases of the others.
Micros own_delay(Db &db, const core::Entry &e)
{
	const core::QueueSettings settings = settings_of(e.queue);
	volatile Micros delay = -1;
	static_cast<void>(attempt([&] {
		delay = retry_of(own_retry(db, e), settings).on_lost;
		return true;
	}));
	return delay;
}

void apply_own_retries(Db &db)
{
	for (int i = 0; i < n_own_retries; ++i)
	{
		const OwnRetry &a = own_retries[i];
		const Micros now = batch.rows[a.row].at;
		const Micros delay = own_delay(db, a.entry);
		if (delay < 0)
			continue;
		batch.rows[a.row].retry_at = now + delay;
		a.op->to = delay > 0 ? State::delayed : State::ready;
		a.op->due = delay > 0 ? now + delay : core::kNever;
		set_pending(*a.op);
	}
}

bool collect_lost(uint16_t slot) noexcept
{
	core::Queue &q = engine.queue(slot);
	core::Ref refs[kBatch];
	core::PrevMark marks[kBatch];
	lock_queue(slot);
	const Micros mono = mono_now();
	const Micros now = wall_now(); // under the lock, after `mono`: not before the claim, nor the end of the lease
	const core::LossTerms terms{.until = mono - grace_of(q), .max = kBatch - batch.n, .owner = my_proc,
										.strict = strict_timeout_of(q.settings).value != 0};
	const int n = engine.collect_lost(q, terms, refs, marks);
	if (batch.n == 0)
		n_own_retries = 0;
	for (int i = 0; i < n; ++i)
		lose(engine.entry(refs[i]), marks[i], now);
	unlock_queue(slot);
	return true;
}

void write_lost(Db &db)
{
	lock_segments(db); // before rows are read
	if (batch.n > 0)
		apply_own_retries(db);
	TQ_WAIT_POINT("reap-after-mark");
	append_batch(db);
	TQ_WAIT_POINT("reap-before-commit");
	end_work();
}

// Ends the leases of clients' workers that were revoked (Worker::revoked). A walk reads the lease trees of all queues.
// The pause after a walk is a multiple of its length, so that walks take little of the scheduler's time, however often
// roles release their workers. The pause is a second at most, since the machine may have delayed the walk.
constexpr int kMostAtOnce = 512; // workers
constexpr int kPausePerWalk = 16; // in lengths of the walk
Micros next_walk = 0;

void end_revoked(Db &db) noexcept
{
	if (mono_now() < next_walk || !db.revocations.exchange(false))
		return;
	const Micros began = steady_now();
	Revocation list[kMostAtOnce];
	const int n = collect_revocations(db, list, kMostAtOnce);
	for_queues(db, [](uint16_t slot, core::Queue &q) {
		core::LeasePosition at;
		for (bool more = q.next_lease.load() != core::kNever; more;)
		{
			lock_queue(slot);
			more = engine.revoke_leases(q, &at);
			unlock_queue(slot);
		}
	});
	TQ_WAIT_POINT_NOFAIL("revoke-before-end");
	end_revocations(list, n);
	next_walk = mono_now() + std::min(kPausePerWalk * (steady_now() - began), core::kSecond);
}

DueWork lost_leases = {"tq: ending lost leases",
					   [](const core::Queue &q) noexcept {
						   return q.next_lease.load() != core::kNever && has_lost(q, mono_now());
					   },
					   collect_lost, write_lost,
					   []() noexcept { delay_failed(State::running, mono_now() + kRetryDelay); }};

} // namespace

bool reap(const WorkerContext &context, Db &db)
{
	end_revoked(db);
	return do_work(context, db, &lost_leases);
}

namespace
{

struct Logged
{
	core::Ref ref;
	core::JobId id;
	core::LeaseNo lease;
	uint16_t queue;
};
Logged logged[kBatch];
bool claimant_waits = false; // the transaction of one of the claims waits (journal_first in jobs/claims.cpp)

// The events could not be written, or this process exits before that. Engine::change puts a claim without kLogged back
// on its queue's list.
void unlog(int, Datum)
{
	for (int i = 0; i < batch.n; ++i)
	{
		lock_queue(logged[i].queue);
		core::Entry &e = engine.entry(logged[i].ref);
		if (engine.is(engine.queue(logged[i].queue), logged[i].ref, logged[i].id) && e.state == State::running &&
			e.lease == logged[i].lease)
			engine.change(engine.queue(logged[i].queue), logged[i].ref,
						  [](core::Entry &x) noexcept { x.flags &= static_cast<uint16_t>(~core::kLogged); });
		unlock_queue(logged[i].queue);
	}
}

// Wakes the transactions that wait for their claims to be journalled.
void wake_claimants() noexcept
{
	for (int i = 0; i < batch.n; ++i)
	{
		core::Queue &q = engine.queue(logged[i].queue);
		lock_queue(logged[i].queue);
		core::Entry &e = engine.entry(logged[i].ref);
		if (engine.is(q, logged[i].ref, logged[i].id) && e.lease == logged[i].lease && e.has(core::kJournalFirst))
		{
			e.flags |= core::kFlushed;
			wake_proc(e.owner);
		}
		unlock_queue(logged[i].queue);
	}
	claimant_waits = false;
}

// When claims are journalled: `delay_of` after they were made, at once in a careful queue. The list is in the order of
// the commits, which is nearly that of the claims. A claim from before the clock was set back must not delay later
// ones.
struct ClaimTimes
{
	Micros now, before;

	explicit ClaimTimes(const core::Queue &q) noexcept : now(wall_now()), before(now - delay_of(q)) {}
	bool over(Micros at) const noexcept { return at <= before || at > now + USECS_PER_SEC; }
	static Micros delay_of(const core::Queue &q) noexcept
	{
		return q.careful.load() ? 0 : guc::claim_log_delay * Micros{1000};
	}
};

bool claim_is_due(const core::Queue &q) noexcept
{
	const Micros at = q.next_claim.load();
	return at != core::kNever && ClaimTimes(q).over(at);
}

bool collect_claims(uint16_t slot) noexcept
{
	core::Queue &q = engine.queue(slot);
	const ClaimTimes times(q);
	int skipped = 0;
	core::Ref next = core::kNil;
	lock_queue(slot);
	for (core::Ref r = q.claims_head; r != core::kNil && batch.n < kBatch && skipped < core::Engine::kMostSkipped;
		 r = next)
	{
		core::Entry &e = engine.entry(r);
		next = e.aux.right;
		if (!times.over(e.claimed_at))
			break;
		if (is_segment_blocked(e.segment))
		{
			++skipped;
			continue;
		}
		logged[batch.n] = Logged{r, e.id, e.lease, slot};
		claimant_waits = claimant_waits || e.has(core::kJournalFirst);
		journal::EventRow row = event_of(e, EventType::claimed, e.claimed_at);
		row.step = e.step - 1 - e.after_claim;
		row.lease_until = e.claimed_at + static_cast<Micros>(e.lease_ms) * 1000;
		row.binding = e.binding();
		add_to_batch(e, row);
		engine.unlist_claim(q, e);
		e.flags |= core::kLogged;
	}
	unlock_queue(slot);
	return skipped == 0;
}

void write_claims(Db &db)
{
	PG_ENSURE_ERROR_CLEANUP(unlog, static_cast<Datum>(0));
	{
		TQ_WAIT_POINT("claimlog-before-insert");
		append_batch(db);
		TQ_WAIT_POINT("claimlog-before-commit");
		end_work(!claimant_waits);
	}
	PG_END_ENSURE_ERROR_CLEANUP(unlog, static_cast<Datum>(0));
	db.claims_logged.fetch_add(batch.n, std::memory_order_relaxed);
	if (claimant_waits)
		wake_claimants();
	TQ_WAIT_POINT("claimlog-after-commit");
}

// Needs no delay_failed: after a failure the claims are back on their lists.
DueWork claims = {"tq: journalling claims", claim_is_due, collect_claims, write_claims};

} // namespace

bool journal_claims(const WorkerContext &context, Db &db) { return do_work(context, db, &claims); }

Micros next_revocation(const Db &db) noexcept { return db.revocations.load() ? next_walk : core::kNever; }

void plan_due_work(const Db &db, uint16_t slot, Micros *wall, Micros *mono) noexcept
{
	const core::Queue &q = engine.queue(slot);
	const auto sooner = [slot, mono](const DueWork &work, Micros at, Micros *plan) {
		if (at == core::kNever)
			return;
		const Micros retry = retry_time(work, slot);
		if (retry != 0 && retry > mono_now())
			*mono = std::min(*mono, retry);
		else
			*plan = std::min(*plan, at);
	};
	const Micros lease = q.next_lease.load(), claim = q.next_claim.load();
	sooner(expiries, q.next_expiry.load(), wall);
	sooner(lost_leases, lease != core::kNever ? lease + grace_of(q) : core::kNever, mono);
	sooner(claims, claim != core::kNever ? claim + ClaimTimes::delay_of(q) : core::kNever, wall);
}

} // namespace tq
