#include "commit/publish.hpp"

#include "guc.hpp"
#include "core/placement.hpp"
#include "dependencies/awaited.hpp"
#include "queues/enqueue_limits.hpp"
#include "queues/policy.hpp"
#include "residency/committing.hpp"
#include "residency/loader.hpp"
#include "shmem/waiting.hpp"
#include "transaction/bulks.hpp"

namespace tq
{

namespace
{

// The only function that adds to the counters of live jobs. A count sets them (end_count in residency/recount.cpp).
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

// Every change of dead letters is counted, also if a count has seen it: only the first load sets their number, and no
// job ends during that load.
void count_dead(SegmentSlot &s, int by) noexcept
{
	s.dead_changes.fetch_add(1);
	s.dead.fetch_add(by);
}

// Counts the live job of an operation, 1 more or 1 less. If it becomes or was a dead letter, their number changes the
// other way.
void count(Db &db, const Op &op, int by, Counting counting) noexcept
{
	SegmentSlot &s = segment_at(db, op.segment);
	count(s, engine.lane(op.lane), by, counting);
	if (is_dead(op) || op.was_dead)
		count_dead(s, -by);
}

// Queue lock held. Counts events for the notifications of queues with `notify`.
void count_notify_events(Queue &q, int64 enqueued, int finished, bool dead) noexcept
{
	if (!q.settings.notifies)
		return;
	q.unsent.enqueued += static_cast<uint32>(enqueued);
	q.unsent.finished += static_cast<uint32>(finished);
	q.unsent.dead += dead;
	engine.mark_notify(q);
}

void count_blocked(Lane &l, int64 by, Counting counting) noexcept
{
	if (counting == Counting::counted)
		return;
	l.blocked += static_cast<int32>(by);
	if (counting == Counting::unseen)
		l.delta_blocked += static_cast<int32>(by);
}

// Counts delayed jobs that are published without entries. A count that has seen the jobs leaves a lane's number alone
// if it changed during the count (Lane::delayed_counted); then the jobs are added here.
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
	count_notify_events(q, 1, 0, false);
	count(db, op, 1, counting);
	publish_enqueue_charges(q, op.queue, 1);
	const bool delayed = op.due != core::kNever, blocked = op.to == State::blocked;
	if (blocked)
		count_blocked(l, 1, counting);
	else if (op.ref != kNil)
	{
		// The entry is gone if this transaction has dropped the extension. It is not committing any more if this
		// transaction has claimed the job (tq.claim_own).
		if (engine.is(q, op.ref, op.id) && engine.entry(op.ref).state == State::committing)
			engine.change(q, op.ref, [&](Entry &e) noexcept {
				e.state = delayed ? State::delayed : State::ready;
				e.timer = op.due;
				e.mark = Verb::none;
			});
	}
	else if (delayed)
	{
		count_on_disk(l, 1, counting);
		engine.lower_timer_watermark(index_of(db), op.due);
	}
	else
		engine.lower_job_watermark(q, l, op.enqueue.group, kNil, Key{op.priority, op.id});
	if (op.ref == kNil && !blocked)
		engine.note_on_disk(index_of(db), op.expires_at);
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
			if (op.claim.waited >= 0)
				q.waits.add(op.claim.waited);
			// Otherwise this transaction has also ended the attempt, and that operation comes next.
			if (e.mark == Verb::claim)
			{
				engine.change(q, op.ref, [](Entry &x) noexcept {
					x.mark = Verb::none;
					x.aborts = 0;
					x.flags &= static_cast<uint16_t>(~(core::kJournalFirst | core::kFlushed));
					engine.start_lease(x);
					engine.catch_up(x);
				});
				if (q.claims_head == op.ref) // for later ones the scheduler has planned to wake
					wake_scheduler_by(db_at(q.db), e.claimed_at + guc::claim_log_delay * Micros{1000});
			}
		}
		else if (e.mark == Verb::lose)
			e.flags |= core::kClaimEnded;
	}
	unlock_queue(op.queue);
}

// Publishes the move of a job to segment 0. The entry of a live job now points there; a dead letter had a placeholder
// only.
void publish_move(Db &db, Queue &q, const Op &op, Counting counting) noexcept
{
	SegmentSlot &from = segment_at(db, op.segment);
	SegmentSlot &to = segment_at(db, op.new_segment);
	to.rows.fetch_add(op.segment != op.new_segment);
	if (op.was_dead)
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

// Asks a running job to stop, and limits its time to do so. If its attempt has ended since the request, that end has
// taken a later step, and the request does nothing. If the claim was rolled back instead, the job is cancelled. If it
// was claimed again since then, the new attempt is asked: its claim took the step after the request's.
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
			(e.lease == op.lease || e.step - 1 - e.after_claim == op.prev.step + 1))
		{
			if (!e.has(core::kCancelAsked)) // asking again does not give it more time
				engine.change(q, op.ref, [&q](Entry &x) noexcept {
					x.flags |= core::kCancelAsked;
					limit_cancelled(q, x);
				});
		}
		else if ((e.state == State::ready || e.state == State::delayed) && e.mark == Verb::none &&
				 e.step == op.prev.step + 1)
			// the claim was rolled back
			engine.change(q, op.ref, [](Entry &x) noexcept { core::to_be_cancelled(x, wall_now()); });
	}
	unlock_queue(op.queue);
	if (bound)
		wake_scheduler(*current_db()); // its holder may be an executor, which the scheduler interrupts
}

// Supersedes a job that ran when its key was passed on. Unlike a request to stop, this also applies if the attempt has
// ended since then.
void publish_superseded(const Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	if (engine.is(q, op.ref, op.id))
		engine.change(q, op.ref, [](Entry &x) noexcept {
			x.flags |= core::kSuperseded;
			end_superseded(x);
		});
	unlock_queue(op.queue);
}

// Evicts a job that its parents have freed, unless it is due soon or no job on disk precedes it. Many jobs may be freed
// at once, and their entries come from the reserve for pinned jobs.
void evict_if_far(const Db &db, Queue &q, Ref ref) noexcept
{
	const Entry &e = engine.entry(ref);
	Lane &l = engine.lane(e.lane);
	if (e.has(core::kOverride) || Engine::has_place(e))
		return;
	const char *group = e.group != kNil ? engine.group(e.group).key : nullptr;
	const bool delayed = e.state == State::delayed;
	const core::Waiting job{.key = e.key(), .due = e.timer, .delayed = delayed, .grouped = group != nullptr};
	if (core::belongs_in_memory(job, vouched_at(db, l, delayed ? wall_now() : 0), [&]() noexcept {
			return delayed || engine.takes(q, group, e.key());
		}))
		return;
	if (delayed)
	{
		l.count_delayed(1);
		engine.lower_timer_watermark(index_of(db), e.timer);
	}
	else
		engine.lower_job_watermark(q, l, group, e.group, e.key());
	engine.note_on_disk(q, e);
	engine.drop(q, ref, my_proc);
}

// A worker has ended an attempt, so claims need not be journalled first any more (Queue::careful). The store is
// conditional because the field's cache line is mostly read.
void end_careful(Queue &q) noexcept
{
	if (q.careful.load())
		q.careful.store(false);
}

// Counts the operation in the totals of its queue.
void count_verb(Queue &q, const Op &op) noexcept
{
	switch (op.verb)
	{
		case Verb::complete:
			++q.succeeded;
			end_careful(q);
			break;
		case Verb::fail:
			++q.failed;
			end_careful(q);
			break;
		case Verb::release: ++q.released; break;
		case Verb::lose: q.lost += op.event != journal::EventType::released; break; // else the claim was rolled back
		case Verb::cancel:
		case Verb::purge: ++q.cancelled; break;
		case Verb::expire: ++q.expired; break;
		default: break;
	}
}

// Gives the entry of a job that lives on its new state. Its mark stays if this transaction has changed the job again.
void set_state(Entry &x, const Op &op) noexcept
{
	const bool new_life = x.state == State::placeholder;
	if (!op.more)
		x.mark = Verb::none;
	x.state = op.to;
	if (op.priority != core::kUnset)
		x.priority = op.priority;
	if (op.verb == Verb::reschedule)
		x.flags |= core::kOverride;
	if (op.to == State::running)
	{
		x.aborts = 0; // if this transaction claimed the job, the claim is committed
		x.flags |= core::kHasCheckpoint | core::kLogged; // the checkpoint's event also records the claim
		x.flags &= static_cast<uint16_t>(~(core::kJournalFirst | core::kFlushed));
		engine.start_lease(x);
		if (x.mark == Verb::none)
			engine.catch_up(x);
		return;
	}
	x.lease = 0;
	x.set_worker(kNil);
	// A reschedule, or the loss of a claim that was rolled back (kJournalFirst), keeps the count of rollbacks.
	if (op.verb != Verb::reschedule && !(op.verb == Verb::lose && x.has(core::kJournalFirst)))
		x.aborts = 0;
	x.timer = op.to == State::delayed ? op.due : core::kNever;
	if (op.verb == Verb::free && op.expires_at != core::kNever)
		x.expires_at = op.expires_at;
	const bool ends_attempt = op.verb == Verb::fail || op.verb == Verb::release || op.verb == Verb::lose;
	const bool held = ends_attempt || (op.keeps_time && x.has(core::kHeld));
	x.flags &= static_cast<uint16_t>(~(core::kCancelAsked | core::kHardTimeout | core::kLogged | core::kBound |
									   core::kOfWorker | core::kHandedOver | core::kClaimEnded | core::kHeld |
									   core::kJournalFirst | core::kFlushed));
	if (held)
		x.flags |= core::kHeld;
	if (new_life)
	{
		x.attempt = 0;
		x.expires_at = core::kNever; // it applied to the previous life
		x.flags &= static_cast<uint16_t>(~core::kSuperseded);
	}
	else if (op.event == journal::EventType::released && x.attempt > 0)
		--x.attempt;
	end_superseded(x);
}

// Publishes a change of a job whose mark is this transaction's. Queue lock held.
void publish_marked(Db &db, Queue &q, const Op &op, Counting counting) noexcept
{
	const Entry &e = engine.entry(op.ref);
	if (op.verb == Verb::move)
		return publish_move(db, q, op, counting);
	if (op.verb == Verb::erase || op.verb == Verb::forget)
	{
		segment_at(db, op.segment).rows.fetch_sub(op.verb == Verb::erase);
		if (op.was_dead)
			count_dead(segment_at(db, op.segment), -1);
		engine.drop(q, op.ref, my_proc);
		return;
	}
	if ((e.state == State::blocked) != (op.to == State::blocked))
		count_blocked(engine.lane(op.lane), op.to == State::blocked ? 1 : -1, counting);
	if (e.state == State::running && op.to != State::running)
		q.runs.add(commit_time() - e.claimed_at);
	count_verb(q, op);
	if (e.state == State::placeholder) // a retry of an ended job, which counts as live again
	{
		count(db, op, 1, counting);
		note_ended(db, op.id); // the resolver looks at its children again
	}
	if (op.to == State::terminal)
	{
		q.dead += is_dead(op);
		count_notify_events(q, 0, 1, is_dead(op));
		count(db, op, -1, counting);
		if (op.makes_way)
			publish_enqueue_charges(q, op.queue, -1);
		note_ended(db, op.id);
		wake_for_end(db, op.id);
		if (op.more) // a later operation of this transaction, such as a retry, needs the entry
			engine.change(q, op.ref, [](Entry &x) noexcept { x.state = State::placeholder; });
		else
			engine.drop(q, op.ref, my_proc);
	}
	else if (op.to == State::blocked && !op.more)
		engine.drop(q, op.ref, my_proc);
	else
	{
		engine.change(q, op.ref, [&op](Entry &x) noexcept { set_state(x, op); });
		if (op.verb == Verb::free)
			evict_if_far(db, q, op.ref);
	}
}

// For all verbs but enqueue, claim and requests to cancel. The mark shows whether the entry still belongs to this
// transaction.
void publish_change(Db &db, const Op &op, Counting counting) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	const Entry &e = engine.entry(op.ref);
	if (engine.is(q, op.ref, op.id) && e.mark != Verb::none && e.owner == my_proc)
		publish_marked(db, q, op, counting);
	unlock_queue(op.queue);
}

void publish_queue(Db &db, const Bulk *bulks, int n, Counting counting) noexcept
{
	const uint16_t queue = bulks->queue;
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	for (int i = 0; i < n; ++i)
	{
		const Bulk &b = bulks[i];
		Lane &l = engine.lane(b.lane);
		if (b.group != nullptr)
		{
			if (*b.group != '\0')
				engine.lower_job_watermark(q, l, b.group, kNil, b.least, b.least_id);
			else
				engine.lower_group_watermarks(q, b.least, b.least_id);
			continue;
		}
		q.enqueued += static_cast<uint64_t>(b.count);
		count_notify_events(q, b.count, 0, false);
		count(segment_at(db, b.segment), l, b.count, counting);
		publish_enqueue_charges(q, queue, b.count);
		if (b.blocked)
		{
			count_blocked(l, b.count, counting);
			continue;
		}
		count_on_disk(l, b.ndelayed, counting);
		engine.note_on_disk(index_of(db), b.least_expiry);
		if (b.ndelayed > 0)
			engine.lower_timer_watermark(index_of(db), b.least_due);
		if (!b.grouped && b.count > b.ndelayed)
			engine.lower_watermark(q, l, b.least, b.least_id);
	}
	unlock_queue(queue);
}

} // namespace

void end_superseded(Entry &e) noexcept
{
	if (e.has(core::kSuperseded) && e.mark == Verb::none && (e.state == State::ready || e.state == State::delayed))
		core::to_be_cancelled(e, wall_now());
}

bool register_enqueue(Db &db, Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	const Key key{op.priority, op.id};
	const Micros now = wall_now();
	if (op.due <= now)
		op.due = core::kNever;
	lock_queue(op.queue);
	const Lane &l = engine.lane(op.lane);
	const bool delayed = op.due != core::kNever;
	const bool must = (op.enqueue.flags & core::kOverride) != 0;
	const char *group = op.enqueue.group;
	const core::Waiting job{.key = key, .due = op.due, .delayed = delayed, .grouped = group != nullptr};
	const auto group_takes = [&]() noexcept {
		if (!delayed)
			return engine.takes(q, group, key);
		// Until the first load ends, slots of groups are kept for jobs that must be in memory.
		return db.load_state.load() == static_cast<uint32>(LoadState::loaded) && engine.spares_slot(q, group);
	};
	bool wanted = must || core::belongs_in_memory(job, vouched_at(db, l, now), group_takes);
	// The entry is pinned until the commit, that of a rescheduled job for as long as the job waits.
	wanted = wanted && (must ? engine.changes_left(q) : engine.waiting_left(q)) > 0;
	if (wanted)
		make_committing(db, op, must, delayed);
	unlock_queue(op.queue);
	return op.ref != kNil || !must;
}

void publish(Db &db, const Op &op, Counting counting) noexcept
{
	switch (op.verb)
	{
		case Verb::enqueue:
			if (op.to == State::terminal)
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
			if (!is_cancel_request(op))
				publish_change(db, op, counting);
			else if (op.makes_way)
				publish_superseded(op);
			else
				publish_ask(op);
	}
}

void publish_bulks(Db &db, Counting counting) noexcept
{
	const pg::Array<Bulk> &bulks = pending_bulks();
	// A queue's sum for all groups comes last: a group that gets a slot after it would assume jobs on disk.
	const auto all_groups = [](const Bulk &b) noexcept { return b.group != nullptr && *b.group == '\0'; };
	std::sort(bulks.begin(), bulks.end(), [&](const Bulk &a, const Bulk &b) noexcept {
		return a.queue != b.queue ? a.queue < b.queue : all_groups(a) < all_groups(b);
	});
	for (Bulk *from = bulks.begin(), *to = from; from < bulks.end(); from = to)
	{
		to = std::find_if(from, bulks.end(), [from](const Bulk &b) noexcept { return b.queue != from->queue; });
		publish_queue(db, from, static_cast<int>(to - from), counting);
	}
}

} // namespace tq
