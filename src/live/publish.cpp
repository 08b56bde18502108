#include "live/publish.hpp"

#include "guc.hpp"
#include "live/admission.hpp"
#include "live/dependencies.hpp"
#include "live/policy.hpp"

namespace tq::live
{

namespace
{

// The one place that moves the counters of live jobs. How many of them are dead letters no count but the first one sees.
void count(SegmentSlot &s, Lane &l, int64 by, Counting counting) noexcept
{
	if (counting == Counting::counted)
		return;
	l.count.live += by;
	s.live.fetch_add(by);
	if (counting == Counting::unseen)
	{
		l.count.delta += by;
		s.delta.fetch_add(by);
	}
}

void count_dead(SegmentSlot &s, int by) noexcept
{
	s.dead_changes.fetch_add(1);
	s.dead.fetch_add(by);
}

void count(Db &db, const Op &op, int by, Counting counting) noexcept
{
	SegmentSlot &s = segment_at(db, op.segment);
	count(s, engine.lane(op.lane), by, counting);
	if (op.is_dead)
		count_dead(s, -by);
}

// Queue lock held. For queues that notify.
void tell(Queue &q, int64 enqueued, int finished, bool dead) noexcept
{
	if (!q.settings.notifies)
		return;
	q.news.enqueued += static_cast<uint32>(enqueued);
	q.news.finished += static_cast<uint32>(finished);
	q.news.dead += dead;
	engine.note_news(q);
}

// Whether a job that is published belongs into memory: a delayed one that is due soon,
bool is_near(const Db &db, Micros due, Micros now) noexcept
{
	return due < engine.db(index_of(db)).timer_watermark.load() && due <= now + guc::timer_horizon * Micros{1000000};
}

// or a ready one that nothing on disk comes before.
bool key_is_near(const Lane &l, Key key) noexcept { return key < l.watermark || l.tail; }

void count_blocked(Lane &l, int64 by, Counting counting) noexcept
{
	if (counting == Counting::counted)
		return;
	l.blocked += static_cast<int32>(by);
	if (counting == Counting::unseen)
		l.delta_blocked += static_cast<int32>(by);
}

// Delayed jobs that are published without entries.
void count_on_disk(Lane &l, int64 n, Counting counting) noexcept
{
	if (counting != Counting::counted || !l.delayed_counted)
		l.count_delayed(n);
}

void publish_enqueue(Db &db, const Op &op, Counting counting) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	Lane &l = engine.lane(op.lane);
	++q.enqueued;
	tell(q, 1, 0, false);
	count(db, op, 1, counting);
	publish_admitted(q, op.queue, 1);
	const bool delayed = op.due != core::kNever;
	if (op.blocked)
		count_blocked(l, 1, counting);
	else if (op.ref != kNil)
	{
		if (engine.is(q, op.ref, op.id)) // its extension may have been dropped by this transaction
			engine.change(q, op.ref, [&](Entry &e) noexcept {
				e.state = delayed ? State::delayed : State::ready;
				e.timer = op.due;
				e.mark = Verb::none;
			});
	}
	else if (delayed)
	{
		count_on_disk(l, 1, counting);
		engine.sink_timer(index_of(db), op.due);
	}
	else
		engine.sink_job(q, l, op.group, kNil, Key{op.priority, op.id});
	unlock_queue(op.queue);
}

void publish_claim(const Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	Entry &e = engine.entry(op.ref);
	if (engine.is(q, op.ref, op.id) && e.state == State::running && e.lease == op.lease)
	{
		if (e.mark != Verb::none && e.owner == my_proc)
		{
			++q.claimed;
			if (op.waited >= 0)
				q.waits.add(op.waited);
			if (e.mark == Verb::claim) // else this transaction has also ended the attempt, which comes next
				engine.change(q, op.ref, [](Entry &x) noexcept {
					x.mark = Verb::none;
					x.aborts = 0;
				});
		}
		else if (e.mark == Verb::lose)
			e.flags |= core::kClaimEnded;
	}
	unlock_queue(op.queue);
}

// A pause that grows with each claim in a row whose transaction rolled back; the first two are free (H15).
Micros abort_pause(int aborts) noexcept
{
	if (aborts <= 2)
		return 0;
	return std::min<Micros>(Micros{1000000} << std::min(aborts - 3, 9), 300 * Micros{1000000});
}

// A job that was asked to stop and is not running any more, though its attempt has not ended in the journal: due at once, for the
// scheduler, which cancels it (Engine::fire_due).
void to_be_cancelled(Entry &e) noexcept
{
	e.state = State::delayed;
	e.timer = wall_now();
	e.flags |= core::kCancelAsked | core::kOverride;
}

void undo_claim(Db &db, const Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	Entry &e = engine.entry(op.ref);
	if (engine.is(q, op.ref, op.id) && e.state == State::running && e.lease == op.lease)
	{
		if (e.mark == Verb::claim && e.owner == my_proc)
		{
			db.aborted_claims.fetch_add(1, std::memory_order_relaxed);
			engine.change(q, op.ref, [&](Entry &x) noexcept {
				x.mark = Verb::none;
				x.lease = 0;
				x.set_worker(kNil);
				x.attempt = static_cast<uint16_t>(op.prev_attempt);
				if (x.after_claim == 0) // a request to cancel has taken a step after the claim's
					x.step = op.prev_step;
				x.aborts = static_cast<uint8_t>(std::min<int>(x.aborts + op.charge, UINT8_MAX));
				if (x.has(core::kCancelAsked))
				{
					to_be_cancelled(x);
					return;
				}
				const Micros pause = abort_pause(x.aborts);
				x.state = pause == 0 ? State::ready : State::delayed;
				x.flags |= core::kHeld;
				x.timer = pause == 0 ? core::kNever : wall_now() + pause;
			});
		}
		else if (e.mark == Verb::lose)
			e.flags |= core::kClaimEnded;
	}
	unlock_queue(op.queue);
}

// A job moved to segment 0: a live one has an entry that points there now; a dead letter had a placeholder only.
void publish_move(Db &db, Queue &q, const Op &op, Counting counting) noexcept
{
	SegmentSlot &from = segment_at(db, op.segment);
	SegmentSlot &to = segment_at(db, op.new_segment);
	to.rows.fetch_add(op.segment != op.new_segment);
	if (op.is_dead)
	{
		count_dead(from, -1);
		count_dead(to, 1);
		engine.drop(q, op.ref, my_proc);
		return;
	}
	Lane &l = engine.lane(op.lane);
	count(from, l, -1, counting);
	count(to, l, 1, counting);
	engine.change(q, op.ref, [&](Entry &x) noexcept {
		x.mark = Verb::none;
		x.segment = op.new_segment;
		x.block = ItemPointerGetBlockNumberNoCheck(&op.tid);
		x.offset = ItemPointerGetOffsetNumberNoCheck(&op.tid);
	});
	if (op.to == State::blocked)
		engine.drop(q, op.ref, my_proc);
}

// A running job is asked to stop, and has some time to do so. Whatever has ended its attempt since has won, and has taken a later step.
void publish_ask(const Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	bool bound = false;
	lock_queue(op.queue);
	Entry &e = engine.entry(op.ref);
	if (engine.is(q, op.ref, op.id))
	{
		bound = e.has(core::kBound);
		if (e.state == State::running && e.mark != Verb::lose &&
			(e.lease == op.lease || e.step - 1 - e.after_claim == op.prev_step + 1))
		{
			if (!e.has(core::kCancelAsked)) // who asks again does not give it more time
				engine.change(q, op.ref, [&q](Entry &x) noexcept {
					x.flags |= core::kCancelAsked;
					limit_cancelled(q, x);
				});
		}
		else if ((e.state == State::ready || e.state == State::delayed) && e.mark == Verb::none && e.step == op.prev_step + 1)
			engine.change(q, op.ref, [](Entry &x) noexcept { to_be_cancelled(x); }); // the claim was rolled back
	}
	unlock_queue(op.queue);
	if (bound)
		wake_scheduler(*current_db()); // its holder may be an executor, which is to be interrupted
}

// A job that was freed, far behind others or long before its time, goes where it would be had it been enqueued now: many may be freed at
// once, and their entries came out of those that are kept for pins.
void leave_to_disk(const Db &db, Queue &q, Ref ref) noexcept
{
	const Entry &e = engine.entry(ref);
	Lane &l = engine.lane(e.lane);
	if (e.has(core::kOverride))
		return;
	const char *group = e.group != kNil ? engine.group(e.group).key : nullptr;
	const bool delayed = e.state == State::delayed;
	const bool stays = delayed ? is_near(db, e.timer, wall_now()) : group != nullptr ? engine.takes(q, group, e.key()) : key_is_near(l, e.key());
	if (stays)
		return;
	if (delayed)
	{
		l.count_delayed(1);
		engine.sink_timer(index_of(db), e.timer);
	}
	else
		engine.sink_job(q, l, group, e.group, e.key());
	engine.drop(q, ref, my_proc);
}

// complete, fail, release, bury, lose, cancel, retry, reschedule, kill, checkpoint, move, erase: the entry is ours by its mark, which it keeps
// if this transaction has changed the job once more.
void publish_change(Db &db, const Op &op, Counting counting) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	Entry &e = engine.entry(op.ref);
	if (!engine.is(q, op.ref, op.id) || e.mark == Verb::none || e.owner != my_proc)
	{
	}
	else if (op.verb == Verb::move)
		publish_move(db, q, op, counting);
	else if (op.verb == Verb::erase || op.verb == Verb::forget)
	{
		segment_at(db, op.segment).rows.fetch_sub(op.verb == Verb::erase);
		if (op.is_dead)
			count_dead(segment_at(db, op.segment), -1);
		engine.drop(q, op.ref, my_proc);
	}
	else
	{
		if (e.state == State::blocked && op.to != State::blocked)
			count_blocked(engine.lane(op.lane), -1, counting);
		if (e.state == State::running && op.to != State::running)
			q.runs.add(commit_time() - e.claimed_at);
		switch (op.verb)
		{
			case Verb::complete: ++q.succeeded; break;
			case Verb::fail: ++q.failed; break;
			case Verb::release: ++q.released; break;
			case Verb::lose: ++q.lost; break;
			case Verb::cancel:
			case Verb::purge: ++q.cancelled; break;
			case Verb::expire: ++q.expired; break;
			default: break;
		}
		if (op.life)
			count(db, op, 1, counting); // and one dead letter less
		if (op.to == State::terminal)
		{
			q.dead += op.is_dead;
			tell(q, 0, 1, op.is_dead);
			count(db, op, -1, counting);
			if (op.makes_way)
				publish_admitted(q, op.queue, -1);
			note_ended(db, op.id);
			if (op.more)
				engine.change(q, op.ref, [](Entry &x) noexcept { x.state = State::placeholder; });
			else
				engine.drop(q, op.ref, my_proc);
		}
		else if (op.to == State::blocked && !op.more)
			engine.drop(q, op.ref, my_proc);
		else
		{
			engine.change(q, op.ref, [&](Entry &x) noexcept {
				if (!op.more)
					x.mark = Verb::none;
				x.state = op.to;
				if (op.has_priority)
					x.priority = op.priority;
				if (op.override_)
					x.flags |= core::kOverride;
				if (op.to == State::running)
				{
					x.aborts = 0; // the claim, if it was ours, is committed
					x.flags |= core::kHasCheckpoint | core::kLogged; // a checkpoint stands for the claim
					return;
				}
				x.lease = 0;
				x.set_worker(kNil);
				if (op.verb != Verb::reschedule)
					x.aborts = 0;
				x.timer = op.to == State::delayed ? op.due : core::kNever;
				const uint16_t stays = op.keeps_time ? core::kHeld : 0;
				x.flags &= static_cast<uint16_t>(~(core::kCancelAsked | core::kHardTimeout | core::kLogged | core::kBound |
												   core::kClaimEnded | core::kHeld)) | stays;
				if (op.verb == Verb::fail || op.verb == Verb::release || op.verb == Verb::lose)
					x.flags |= core::kHeld;
				if (op.reset_attempts)
				{
					x.attempt = 0;
					x.expires_at = core::kNever; // that was for the life before
				}
				else if (!op.count_attempt && x.attempt > 0)
					--x.attempt;
			});
			if (op.verb == Verb::free)
				leave_to_disk(db, q, op.ref);
		}
	}
	unlock_queue(op.queue);
}

void undo_change(const Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	Entry &e = engine.entry(op.ref);
	if (engine.is(q, op.ref, op.id) && e.mark != Verb::none && e.owner == my_proc)
	{
		if (op.stale)
		{
			// memory and journal disagree about this job: the journal is read again
			engine.sink_job(q, engine.lane(e.lane), nullptr, e.group, e.key());
			engine.sink_timer(q.db, wall_now());
			engine.drop(q, op.ref, my_proc);
		}
		else if ((e.state == State::placeholder || e.state == State::blocked) && op.prev_mark == Verb::none)
			// without this verb the job is terminal, or waits for its parents, on disk
			engine.drop(q, op.ref, my_proc);
		else
			engine.change(q, op.ref, [&](Entry &x) noexcept {
				x.mark = op.prev_mark;
				x.pending = op.prev_pending;
				x.owner = op.prev_owner;
				if (x.step == op.prev_step + 1) // else somebody has taken a step since, and this one remains a gap
				{
					x.step = op.prev_step;
					if (x.state == State::running)
						--x.after_claim;
				}
				if (op.verb == Verb::lose && x.has(core::kClaimEnded))
				{
					x.mark = Verb::none;
					x.flags &= static_cast<uint16_t>(~core::kClaimEnded);
				}
			});
	}
	unlock_queue(op.queue);
}

} // namespace

void limit_cancelled(const Queue &q, Entry &e) noexcept
{
	const Micros end = mono_now() + cancel_grace_of(q.settings).value;
	core::set_hard_deadline(e, e.has(core::kHardTimeout) ? std::min(e.hard_deadline, end) : end);
}

bool register_enqueue(Db &db, Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	const Key key{op.priority, op.id};
	const Micros now = wall_now();
	if (op.due <= now)
		op.due = core::kNever;
	lock_queue(op.queue);
	Lane &l = engine.lane(op.lane);
	const bool delayed = op.due != core::kNever;
	const bool must = op.override_;
	bool wanted = must;
	if (!must && delayed)
		// before all is loaded, groups leave the slots to those that must have one
		wanted = is_near(db, op.due, now) &&
				 (op.group == nullptr ||
				  (db.load_state.load() == static_cast<uint32>(LoadState::loaded) && engine.spares_slot(q, op.group)));
	else if (!must)
		wanted = op.group != nullptr ? engine.takes(q, op.group, key) : key_is_near(l, key);
	const Ref group = wanted && op.group != nullptr ? engine.group_for(q, op.group, true) : kNil;
	if (wanted && (op.group == nullptr || group != kNil))
	{
		Ref existing = kNil;
		op.ref = engine.insert(q, op.lane, op.id, op.priority, State::committing, my_proc, must, &existing, group);
		if (op.ref == kNil && (must || !delayed) && engine.evict_ready(q, l, must ? core::kMinKey : key, my_proc))
		{
			const Ref anew = op.group != nullptr ? engine.group_for(q, op.group, true) : kNil; // the first attempt may have given it away
			if (op.group == nullptr || anew != kNil)
				op.ref = engine.insert(q, op.lane, op.id, op.priority, State::committing, my_proc, must, &existing, anew);
		}
		if (op.ref != kNil)
		{
			Entry &e = engine.entry(op.ref);
			e.owner = my_proc;
			e.block = ItemPointerGetBlockNumberNoCheck(&op.tid);
			e.offset = ItemPointerGetOffsetNumberNoCheck(&op.tid);
			e.segment = op.segment;
			e.weight = hundredths(op.weight);
			e.max_attempts = op.max_attempts;
			e.expires_at = op.expires_at;
			e.flags |= op.flags;
			e.step = std::max(op.prev_step, 1);
			if (must)
				e.flags |= core::kOverride;
		}
	}
	unlock_queue(op.queue);
	return op.ref != kNil || !must;
}

void publish(Db &db, const Op &op, Counting counting) noexcept
{
	switch (op.verb)
	{
		case Verb::enqueue:
			if (op.revoked)
				note_ended(db, op.id);
			else
				publish_enqueue(db, op, counting);
			break;
		case Verb::claim:
			publish_claim(op);
			break;
		case Verb::none:
			break;
		default:
			is_ask(op) ? publish_ask(op) : publish_change(db, op, counting);
	}
}

void publish_bulk(Db &db, const Bulk &b, Counting counting) noexcept
{
	Queue &q = engine.queue(b.queue);
	lock_queue(b.queue);
	Lane &l = engine.lane(b.lane);
	q.enqueued += static_cast<uint64_t>(b.count);
	tell(q, b.count, 0, false);
	count(segment_at(db, b.segment), l, b.count, counting);
	publish_admitted(q, b.queue, b.count);
	if (b.blocked)
	{
		count_blocked(l, b.count, counting);
		unlock_queue(b.queue);
		return;
	}
	count_on_disk(l, b.ndelayed, counting);
	if (b.ndelayed > 0)
		engine.sink_timer(index_of(db), b.least_due);
	if (b.grouped)
		engine.sink_groups(q, b.least);
	else if (b.count > b.ndelayed)
		engine.sink(q, l, b.least);
	unlock_queue(b.queue);
}

void undo(Db &db, const Op &op) noexcept
{
	switch (op.verb)
	{
		case Verb::enqueue:
			if (op.ref != kNil)
			{
				lock_queue(op.queue);
				if (engine.is(engine.queue(op.queue), op.ref, op.id))
					engine.drop(engine.queue(op.queue), op.ref, my_proc);
				unlock_queue(op.queue);
			}
			break;
		case Verb::claim:
			undo_claim(db, op);
			break;
		case Verb::none:
			break;
		default:
			if (!is_ask(op)) // that has changed nothing, and its step remains a gap
				undo_change(op);
	}
}

} // namespace tq::live
