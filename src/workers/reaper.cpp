#include "workers/reaper.hpp"

#include "api/follow_up.hpp"
#include "guc.hpp"
#include "journal/reasons.hpp"
#include "live/load.hpp"
#include "live/policy.hpp"
#include "live/verbs.hpp"
#include "workers/attempt.hpp"
#include "workers/transaction.hpp"

extern "C"
{
#include "utils/resowner.h"
}

namespace tq::workers
{

namespace
{

using live::Db;
using live::engine;
using live::Micros;

constexpr int kBatch = 1000;
constexpr int kNoSegment = -1;
constexpr Micros kPutOff = 1000000;

// What is to be appended after the entries were marked.
struct Batch
{
	journal::EventRow rows[kBatch];
	uint16_t slots[kBatch];
	core::Ref refs[kBatch];
	int n;
	int at;		 // the segment whose rows are being appended
	int problem; // the last error's code
};
Batch batch;

// Queue lock held: the entry has just been marked by the engine; takes its step and notes the operation.
live::Op *note(core::Entry &e, live::Verb verb, const core::Engine::PrevMark &prev, live::State to, Micros due, bool dead) noexcept
{
	live::Op op;
	op.verb = verb;
	op.to = to;
	op.due = due;
	op.is_dead = dead;
	op.ref = engine.ref_of(e);
	op.id = e.id;
	op.lease = e.lease;
	op.queue = e.queue;
	op.lane = e.lane;
	op.segment = e.segment;
	op.prev_mark = prev.mark;
	op.prev_owner = prev.owner;
	op.prev_pending = e.state;
	op.prev_step = e.step;
	op.prev_attempt = e.attempt;
	e.pending = to;
	++e.step;
	e.after_claim += e.state == live::State::running;
	return &live::push_op(op);
}

// The journal is the arbiter: if it has another event in the place of one of these, memory was wrong, and the jobs are read again.
void append_batch(Db &db)
{
	PG_TRY();
	{
		live::append_by_segment(db, batch.rows, batch.slots, batch.n, &batch.at);
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_UNIQUE_VIOLATION)
			live::distrust(0);
		PG_RE_THROW();
	}
	PG_END_TRY();
	batch.at = kNoSegment;
	api::follow_up(db, batch.rows, batch.n);
}

// One transaction of a queue, by itself: an administrator's lock on a segment, say, must not hold up the other queues. An error is
// reported, and batch.n and batch.at say what failed; one before anything was marked is the step's.
template <class Work>
Tried by_itself(Work &&work)
{
	batch.n = 0;
	batch.at = kNoSegment;
	return guard(work, [] {
		batch.problem = geterrcode();
		return batch.n > 0;
	});
}

// What a transaction that failed had marked is not looked at again until then, or it would be met first each time: all of it, or what
// is in the segment that refused it.
void put_off(uint16_t slot, live::State state, Micros until) noexcept
{
	live::lock_queue(slot);
	core::Queue &q = engine.queue(slot);
	for (int i = 0; i < batch.n; ++i)
	{
		if (batch.at != kNoSegment && batch.slots[i] != batch.at)
			continue;
		const core::Entry &e = engine.entry(batch.refs[i]);
		if (engine.is(q, batch.refs[i], batch.rows[i].job_id) && e.state == state && e.timer < until)
			engine.change(q, batch.refs[i], [until](core::Entry &x) noexcept { x.timer = until; });
	}
	live::unlock_queue(slot);
}

template <class Due> uint16_t next_queue(const Db &db, uint32 from, Due &&due) noexcept
{
	const uint16_t d = live::index_of(db);
	for (uint32 i = from; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		const core::Queue &q = engine.queue(slot);
		if (q.state != core::QueueState::free && q.db == d && due(q))
			return slot;
	}
	return UINT16_MAX;
}

// All that is due, queue by queue in batches, each by itself; counts the queues that failed. False if the extension is gone.
template <class Due, class Work> bool each_queue(const Db &db, Due &&due, Work &&work, unsigned *failed)
{
	for (uint16_t slot = next_queue(db, 0, due); slot != UINT16_MAX; slot = next_queue(db, slot + 1U, due))
	{
		Tried went = Tried::done;
		do
			went = by_itself([&] { return work(slot); });
		while (went == Tried::done && batch.n == kBatch);
		if (went == Tried::refused)
			return false;
		*failed += went == Tried::failed;
	}
	return true;
}

} // namespace

Micros grace_of(const core::Queue &q) noexcept
{
	return live::lease_grace_of(q.settings).value;
}

namespace
{

constexpr int kFired = 64;

// Queue lock held. An entry that fire_due has marked: its end is journalled, as one that was asked for, or as a death.
void note_doomed(core::Entry &e, Micros now) noexcept
{
	const bool asked = e.has(core::kCancelAsked);
	journal::EventRow &row = batch.rows[batch.n];
	row = live::event_of(e, asked ? journal::EventType::cancelled : journal::EventType::dead, now);
	row.reason = asked ? journal::kReasonStopped : journal::kReasonRolledBack;
	batch.refs[batch.n] = engine.ref_of(e);
	batch.slots[batch.n++] = e.segment;
	note(e, asked ? live::Verb::cancel : live::Verb::kill, {live::Verb::none, 0}, live::State::terminal, core::kNever, !asked);
}

// The next jobs that are due, the first of which is not to start again. The transaction comes first, so that nothing can fail between
// marking and noting.
bool end_doomed(const WorkerContext &context, Db &db, uint16_t slot, Micros now, int doom)
{
	core::Ref doomed[kFired];
	int n = 0;
	if (!begin_work(context, "tq: ending jobs whose claims were rolled back"))
		return false;
	live::reserve_ops(kFired);
	batch.n = 0;
	live::lock_queue(slot);
	static_cast<void>(engine.fire_due(engine.queue(slot), now, kFired, doom, live::my_proc, doomed, &n));
	for (int i = 0; i < n; ++i)
		note_doomed(engine.entry(doomed[i]), now);
	live::unlock_queue(slot);
	TQ_WAIT_POINT("doom-after-mark");
	append_batch(db);
	end_work();
	return true;
}

} // namespace

bool fire_timers(const WorkerContext &context, Db &db)
{
	const Micros now = live::wall_now();
	auto due = [now](const core::Queue &q) { return q.next_due.load() <= now; };
	for (uint16_t slot = next_queue(db, 0, due); slot != UINT16_MAX; slot = next_queue(db, slot + 1U, due))
	{
		const int doom = std::min(live::attempts_allowed(0, slot), 255);
		for (bool more = true; more;)
		{
			int doomed = 0;
			live::lock_queue(slot);
			more = engine.fire_due(engine.queue(slot), now, kFired, doom, live::my_proc, nullptr, &doomed) == kFired;
			live::unlock_queue(slot);
			if (doomed > 0)
			{
				const Tried went = by_itself([&] { return end_doomed(context, db, slot, now, doom); });
				if (went == Tried::refused)
					return false;
				if (went == Tried::failed)
					put_off(slot, live::State::delayed, now + kPutOff);
				more = true;
			}
		}
	}
	return true;
}

namespace
{

bool expire_batch(const WorkerContext &context, Db &db, uint16_t slot, Micros now)
{
	if (!begin_work(context, "tq: ending jobs that expired"))
		return false;
	live::reserve_ops(kBatch);
	batch.n = 0;
	live::lock_queue(slot);
	const int n = engine.collect_expired(engine.queue(slot), now, kBatch, live::my_proc, batch.refs);
	for (int i = 0; i < n; ++i)
	{
		core::Entry &e = engine.entry(batch.refs[i]);
		batch.rows[batch.n] = live::event_of(e, journal::EventType::expired, now);
		batch.rows[batch.n].reason = journal::kReasonNotStarted;
		batch.slots[batch.n++] = e.segment;
		note(e, live::Verb::expire, {live::Verb::none, 0}, live::State::terminal, core::kNever, false);
	}
	live::unlock_queue(slot);
	TQ_WAIT_POINT("expire-after-mark");
	append_batch(db);
	TQ_WAIT_POINT("expire-before-commit");
	end_work(true); // lost in a crash, they expire again
	return true;
}

} // namespace

// An expiry cannot be put off: a queue that fails waits for the next run, and the step pauses.
bool expire_jobs(const WorkerContext &context, Db &db)
{
	if (live::copy_is_coming(db)) // how they ended may be yet to come; nobody starts what is overdue
		return true;
	const Micros now = live::wall_now();
	unsigned failed = 0;
	auto due = [now](const core::Queue &q) { return q.next_expiry.load() <= now; };
	if (!each_queue(db, due, [&](uint16_t slot) { return expire_batch(context, db, slot, now); }, &failed))
		return false;
	if (failed > 0)
		ereport(ERROR, (errcode(batch.problem),
						errmsg_plural("expired jobs of %u queue could not be ended",
									  "expired jobs of %u queues could not be ended", failed, failed),
						errdetail("The errors before this one say why. They are tried again.")));
	return true;
}

namespace
{

// A job that is to be tried again after a lost lease, by a policy of its own.
struct Again
{
	live::Op *op;
	int row;
	core::Entry entry;
};

struct Lost
{
	core::Engine::PrevMark marks[kBatch];
	Again again[kBatch];
	int nagain;
};
Lost lost;

const char *why_lost(const core::Entry &e) noexcept
{
	if (e.has(core::kBound) && e.deadline == 0)
		return journal::kReasonSessionEnded;
	if (!e.has(core::kHardTimeout) || e.hard_deadline > e.deadline)
		return journal::kReasonLeaseLost;
	return e.has(core::kCancelAsked) ? journal::kReasonNotStopped : journal::kReasonTimeout;
}

// Queue lock held; the entry was marked `lose`. What is decided without its row.
void lose(core::Entry &e, const core::Engine::PrevMark &prev, Micros now) noexcept
{
	using journal::EventType;
	const core::QueueSettings &s = engine.queue(e.queue).settings;
	const auto policy = static_cast<core::OnLost>(live::on_lost_of(s).value);
	const bool used_up = e.attempt >= live::attempts_allowed(e.max_attempts, e.queue);
	const EventType type = e.has(core::kCancelAsked)			 ? EventType::cancelled
						   : policy == core::OnLost::bury			 ? EventType::buried
						   : policy == core::OnLost::dead || used_up ? EventType::dead
																	 : EventType::lost;
	journal::EventRow &row = batch.rows[batch.n];
	row = live::event_of(e, type, now);
	row.reason = why_lost(e);
	if (type == EventType::lost)
	{
		const Micros delay = live::retry_of_queue(s).on_lost;
		row.retry_at = now + delay;
		const core::Entry copy = e;
		live::Op *op = note(e, live::Verb::lose, prev, delay > 0 ? live::State::delayed : live::State::ready,
							delay > 0 ? now + delay : core::kNever, false);
		if (e.has(core::kOwnRetry))
			lost.again[lost.nagain++] = Again{op, batch.n, copy};
	}
	else
		note(e, live::Verb::lose, prev, live::State::terminal, core::kNever, type != EventType::cancelled);
	batch.slots[batch.n++] = e.segment;
}

// What jobs with a policy of their own say of it. A row that cannot be read must not keep the others' leases: then the queue's policy
// stands.
void decide_again(Db &db, uint16_t slot, Micros now)
{
	if (lost.nagain == 0)
		return;
	const core::QueueSettings settings = live::settings_of(slot);
	const MemoryContext outside = CurrentMemoryContext;
	const ResourceOwner owner = CurrentResourceOwner;
	for (int i = 0; i < lost.nagain; ++i)
	{
		const Again &a = lost.again[i];
		volatile Micros delay = -1;
		BeginInternalSubTransaction(nullptr);
		MemoryContextSwitchTo(outside);
		PG_TRY();
		{
			delay = live::retry_of(live::own_retry(db, a.entry), settings).on_lost;
			ReleaseCurrentSubTransaction();
		}
		PG_CATCH();
		{
			MemoryContextSwitchTo(outside);
			EmitErrorReport();
			FlushErrorState();
			RollbackAndReleaseCurrentSubTransaction();
		}
		PG_END_TRY();
		MemoryContextSwitchTo(outside);
		CurrentResourceOwner = owner;
		if (delay < 0)
			continue;
		batch.rows[a.row].retry_at = now + delay;
		a.op->to = delay > 0 ? live::State::delayed : live::State::ready;
		a.op->due = delay > 0 ? now + delay : core::kNever;
		live::set_pending(*a.op);
	}
}

bool reap_batch(const WorkerContext &context, Db &db, uint16_t slot, Micros mono)
{
	// the transaction first, so that nothing can fail between marking and noting
	if (!begin_work(context, "tq: taking back lost leases"))
		return false;
	live::reserve_ops(kBatch);
	batch.n = 0;
	const Micros now = live::wall_now();
	live::lock_queue(slot);
	core::Queue &q = engine.queue(slot);
	lost.nagain = 0;
	const int n = engine.collect_lost(q, mono, grace_of(q), kBatch, live::my_proc, batch.refs, lost.marks);
	for (int i = 0; i < n; ++i)
		lose(engine.entry(batch.refs[i]), lost.marks[i], now);
	live::unlock_queue(slot);
	decide_again(db, slot, now);
	TQ_WAIT_POINT("reap-after-mark");
	append_batch(db);
	TQ_WAIT_POINT("reap-before-commit");
	end_work();
	return true;
}

} // namespace

bool reap(const WorkerContext &context, Db &db)
{
	const Micros mono = live::mono_now();
	auto due = [mono](const core::Queue &q) {
		const Micros at = q.next_lease.load();
		return at != core::kNever && at + grace_of(q) <= mono;
	};
	for (uint16_t slot = next_queue(db, 0, due); slot != UINT16_MAX; slot = next_queue(db, slot + 1U, due))
		for (bool more = true; more;)
		{
			const Tried went = by_itself([&] { return reap_batch(context, db, slot, mono); });
			if (went == Tried::refused)
				return false;
			if (went == Tried::failed)
				put_off(slot, live::State::running, mono - grace_of(engine.queue(slot)) + kPutOff);
			more = went == Tried::failed || batch.n == kBatch;
		}
	return true;
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

// The events could not be written, or this process leaves before they were: the claims go back on their lists.
void unlog(int, Datum)
{
	for (int i = 0; i < batch.n; ++i)
	{
		live::lock_queue(logged[i].queue);
		core::Entry &e = engine.entry(logged[i].ref);
		if (engine.is(engine.queue(logged[i].queue), logged[i].ref, logged[i].id) && e.state == live::State::running && e.lease == logged[i].lease)
			engine.change(engine.queue(logged[i].queue), logged[i].ref,
						  [](core::Entry &x) noexcept { x.flags &= static_cast<uint16_t>(~core::kLogged); });
		live::unlock_queue(logged[i].queue);
	}
}

// The list is in the order of the claims; one from before the clock was set back must not hold up those after it.
struct ClaimTimes
{
	Micros now, before;

	bool over(Micros at) const noexcept { return at <= before || at > now + USECS_PER_SEC; }
};

bool journal_batch(const WorkerContext &context, Db &db, uint16_t slot, const ClaimTimes &times)
{
	if (!begin_work(context, "tq: journalling claims"))
		return false;
	core::Queue &q = engine.queue(slot);
	batch.n = 0;
	live::lock_queue(slot);
	while (batch.n < kBatch && q.claims_head != core::kNil && times.over(engine.entry(q.claims_head).claimed_at))
	{
		core::Entry &e = engine.entry(q.claims_head);
		logged[batch.n] = Logged{q.claims_head, e.id, e.lease, slot};
		journal::EventRow &row = batch.rows[batch.n];
		row = live::event_of(e, journal::EventType::claimed, e.claimed_at);
		row.step = e.step - 1 - e.after_claim;
		row.lease_until = e.claimed_at + static_cast<Micros>(e.lease_ms) * 1000;
		row.bound = e.has(core::kBound);
		batch.slots[batch.n++] = e.segment;
		engine.unlist_claim(q, e);
		e.flags |= core::kLogged;
	}
	live::unlock_queue(slot);
	PG_ENSURE_ERROR_CLEANUP(unlog, static_cast<Datum>(0));
	{
		TQ_WAIT_POINT("claimlog-before-insert");
		append_batch(db);
		TQ_WAIT_POINT("claimlog-before-commit");
		end_work(true);
	}
	PG_END_ENSURE_ERROR_CLEANUP(unlog, static_cast<Datum>(0));
	TQ_WAIT_POINT("claimlog-after-commit");
	db.claims_logged.fetch_add(batch.n, std::memory_order_relaxed);
	return true;
}

} // namespace

// The claims of a queue that fails are back on its list (unlog) and wait for the next run; the step pauses.
bool journal_claims(const WorkerContext &context, Db &db)
{
	const Micros now = live::wall_now();
	const ClaimTimes times{now, now - guc::claim_log_delay * Micros{1000}};
	unsigned failed = 0;
	auto due = [&times](const core::Queue &q) {
		const Micros at = q.next_claim.load();
		return at != core::kNever && times.over(at);
	};
	if (!each_queue(db, due, [&](uint16_t slot) { return journal_batch(context, db, slot, times); }, &failed))
		return false;
	if (failed > 0)
		ereport(ERROR, (errcode(batch.problem),
						errmsg_plural("claims of %u queue could not be journalled", "claims of %u queues could not be journalled", failed, failed),
						errdetail("The errors before this one say why. They are tried again.")));
	return true;
}

} // namespace tq::workers
