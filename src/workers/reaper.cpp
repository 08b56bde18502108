#include "workers/reaper.hpp"

#include "guc.hpp"
#include "live/queue_settings.hpp"
#include "live/verbs.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::Db;
using live::engine;
using live::Micros;

constexpr int kBatch = 1000;

// What is to be appended after the entries were marked.
struct Batch
{
	journal::EventRow rows[kBatch];
	uint16_t slots[kBatch];
	int n;
};
Batch batch;

// Queue lock held: the entry has just been marked by the engine; takes its step and notes the operation.
void note(core::Entry &e, live::Verb verb, const core::Engine::PrevMark &prev, live::State to, Micros due, bool dead) noexcept
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
	live::push_op(op);
}

void append_batch(Db &db)
{
	live::append_by_segment(db, batch.rows, batch.slots, batch.n);
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

} // namespace

Micros grace_of(const core::Queue &q) noexcept
{
	const int64 ms = q.settings.lease_grace_ms >= 0 ? q.settings.lease_grace_ms : guc::lease_grace;
	return ms * 1000;
}

bool fire_timers(const WorkerContext &context, Db &db)
{
	const Micros now = live::wall_now();
	core::Ref doomed[64];
	auto due = [now](const core::Queue &q) { return q.next_due.load() <= now; };
	for (uint16_t slot = next_queue(db, 0, due); slot != UINT16_MAX; slot = next_queue(db, slot + 1U, due))
	{
		core::Queue &q = engine.queue(slot);
		for (bool more = true; more;)
		{
			int n = 0;
			const int doom = q.settings.max_attempts != core::kUnset ? q.settings.max_attempts : guc::max_attempts;
			live::lock_queue(slot);
			more = engine.fire_due(q, now, static_cast<int>(lengthof(doomed)), std::min(doom, 255), live::my_proc, doomed,
								   &n) == static_cast<int>(lengthof(doomed));
			live::unlock_queue(slot);
			if (n == 0)
				continue;
			if (!begin_work(context, "tq: ending jobs whose claims were rolled back"))
				return false;
			live::reserve_ops(n);
			batch.n = 0;
			live::lock_queue(slot);
			for (int i = 0; i < n; ++i)
			{
				core::Entry &e = engine.entry(doomed[i]);
				const bool asked = e.has(core::kCancelAsked);
				journal::EventRow &row = batch.rows[batch.n];
				row = live::event_of(e, asked ? journal::EventType::cancelled : journal::EventType::dead, now);
				row.reason = asked ? "asked to cancel while it ran; the claim was rolled back or lost in a crash"
								   : "the transaction of its claim was rolled back too often";
				batch.slots[batch.n++] = e.segment;
				note(e, asked ? live::Verb::cancel : live::Verb::kill, {live::Verb::none, 0}, live::State::terminal,
					 core::kNever, !asked);
			}
			live::unlock_queue(slot);
			append_batch(db);
			end_work();
		}
	}
	return true;
}

bool reap(const WorkerContext &context, Db &db)
{
	const Micros mono = live::mono_now();
	static core::Ref lost[kBatch];
	static core::Engine::PrevMark marks[kBatch];
	auto due = [mono](const core::Queue &q) {
		const Micros at = q.next_lease.load();
		return at != core::kNever && at + grace_of(q) <= mono;
	};
	for (uint16_t slot = next_queue(db, 0, due); slot != UINT16_MAX; slot = next_queue(db, slot + 1U, due))
	{
		core::Queue &q = engine.queue(slot);
		for (int n = kBatch; n == kBatch;)
		{
			// the transaction first, so that nothing can fail between marking and noting
			if (!begin_work(context, "tq: taking back lost leases"))
				return false;
			live::reserve_ops(kBatch);
			batch.n = 0;
			const Micros now = live::wall_now();
			live::lock_queue(slot);
			n = engine.collect_lost(q, mono, grace_of(q), kBatch, live::my_proc, lost, marks);
			for (int i = 0; i < n; ++i)
			{
				core::Entry &e = engine.entry(lost[i]);
				const Micros delay = (q.settings.has_retry ? q.settings.retry : live::server_retry()).on_lost;
				const bool dead = e.attempt >= live::attempts_allowed(e.max_attempts, e.queue);
				const bool cancelled = e.has(core::kCancelAsked);
				journal::EventRow &row = batch.rows[batch.n];
				row = live::event_of(e, cancelled ? journal::EventType::cancelled
											  : dead  ? journal::EventType::dead
													  : journal::EventType::lost, now);
				row.reason = "lease lost";
				if (dead || cancelled)
					note(e, live::Verb::lose, marks[i], live::State::terminal, core::kNever, dead && !cancelled);
				else
				{
					row.retry_at = now + delay;
					note(e, live::Verb::lose, marks[i], delay > 0 ? live::State::delayed : live::State::ready,
						 delay > 0 ? now + delay : core::kNever, false);
				}
				batch.slots[batch.n++] = e.segment;
			}
			live::unlock_queue(slot);
			TQ_WAIT_POINT("reap-after-mark");
			append_batch(db);
			end_work();
		}
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

// The events could not be written: the claims go back on their lists.
void unlog(int n) noexcept
{
	for (int i = 0; i < n; ++i)
	{
		live::lock_queue(logged[i].queue);
		core::Entry &e = engine.entry(logged[i].ref);
		if (engine.is(engine.queue(logged[i].queue), logged[i].ref, logged[i].id) && e.state == live::State::running && e.lease == logged[i].lease)
			engine.change(engine.queue(logged[i].queue), logged[i].ref,
						  [](core::Entry &x) noexcept { x.flags &= static_cast<uint16_t>(~core::kLogged); });
		live::unlock_queue(logged[i].queue);
	}
}

} // namespace

bool journal_claims(const WorkerContext &context, Db &db)
{
	const Micros before = live::wall_now() - guc::claim_log_delay * Micros{1000};
	auto due = [before](const core::Queue &q) { return q.next_claim.load() <= before; };
	for (uint16_t slot = next_queue(db, 0, due); slot != UINT16_MAX; slot = next_queue(db, slot + 1U, due))
	{
		core::Queue &q = engine.queue(slot);
		for (bool more = true; more;)
		{
			if (!begin_work(context, "tq: journalling claims"))
				return false;
			batch.n = 0;
			live::lock_queue(slot);
			while (batch.n < kBatch && q.claims_head != core::kNil && engine.entry(q.claims_head).claimed_at <= before)
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
			more = batch.n == kBatch;
			live::unlock_queue(slot);
			TQ_WAIT_POINT("claimlog-before-insert");
			PG_TRY();
			{
				append_batch(db);
				end_work(true);
			}
			PG_CATCH();
			{
				unlog(batch.n);
				PG_RE_THROW();
			}
			PG_END_TRY();
			db.claims_logged.fetch_add(batch.n, std::memory_order_relaxed);
		}
	}
	return true;
}

} // namespace tq::workers
