#include "commit/publish.hpp"

namespace tq
{

namespace
{

void undo_claim(Db &db, const Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	Op *enqueue = pending_enqueue(op.id);
	lock_queue(op.queue);
	Entry &e = engine.entry(op.ref);
	if (engine.is(q, op.ref, op.id) && e.state == State::running && e.lease == op.lease)
	{
		if (enqueue != nullptr)
		{
			// No other session has seen the job. Its enqueue is undone next, or stays if a savepoint is rolled back.
			engine.drop(q, op.ref, my_proc);
			enqueue->ref = kNil;
		}
		else if (e.mark == Verb::claim && e.owner == my_proc)
		{
			db.aborted_claims.fetch_add(1, std::memory_order_relaxed);
			engine.change(q, op.ref, [&](Entry &x) noexcept {
				x.mark = Verb::none;
				x.aborts = static_cast<uint8_t>(std::min<int>(x.aborts + op.claim.charge, UINT8_MAX));
				if (x.has(core::kJournalFirst) && !x.has(core::kCancelAsked))
				{
					// the journal has the claim, or gets it, so the reaper ends the attempt there
					core::revoke(x);
					return;
				}
				x.lease = 0;
				x.set_worker(kNil);
				x.attempt = op.prev.attempt;
				if (x.after_claim == 0) // a request to cancel has taken a step after the claim
					x.step = op.prev.step;
				if (x.has(core::kCancelAsked))
				{
					core::to_be_cancelled(x, wall_now());
					return;
				}
				const Micros pause = core::abort_pause(x.aborts);
				x.state = pause == 0 ? State::ready : State::delayed;
				x.flags |= core::kHeld;
				x.timer = pause == 0 ? core::kNever : wall_now() + pause;
				end_superseded(x);
			});
		}
		else if (e.mark == Verb::lose)
			e.flags |= core::kClaimEnded;
	}
	unlock_queue(op.queue);
}

void undo_change(Db &db, const Op &op) noexcept
{
	Queue &q = engine.queue(op.queue);
	lock_queue(op.queue);
	Entry &e = engine.entry(op.ref);
	if (engine.is(q, op.ref, op.id) && e.mark != Verb::none && e.owner == my_proc)
	{
		if (op.stale)
		{
			// Memory and journal disagree about this job, so the journal is read again. A lane is read from its
			// watermark on, by the priority of the row. That of an override may be lower, so a count finds the job.
			if (e.has(core::kOverride))
			{
				db.reload.store(true);
				wake_scheduler(db);
			}
			engine.note_on_disk(q, e);
			engine.lower_job_watermark(q, engine.lane(e.lane), nullptr, e.group, e.row_key());
			engine.lower_timer_watermark(q.db, wall_now());
			engine.drop(q, op.ref, my_proc);
		}
		else if ((e.state == State::placeholder || e.state == State::blocked) && op.prev.mark == Verb::none)
			// without this verb the job has ended, or is blocked, on disk
			engine.drop(q, op.ref, my_proc);
		else
			engine.change(q, op.ref, [&](Entry &x) noexcept {
				x.mark = op.prev.mark;
				x.pending = op.prev.pending;
				x.owner = op.prev.owner;
				// Otherwise another operation has taken a later step, and the step of this one stays unused.
				if (x.step == op.prev.step + 1)
				{
					x.step = op.prev.step;
					if (x.state == State::running)
						--x.after_claim;
				}
				if (op.verb == Verb::lose && x.has(core::kClaimEnded))
				{
					x.mark = Verb::none;
					x.flags &= static_cast<uint16_t>(~core::kClaimEnded);
				}
				if (x.state == State::running && x.mark == Verb::none)
					engine.catch_up(x);
				end_superseded(x);
			});
	}
	unlock_queue(op.queue);
}

} // namespace

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
			if (!is_cancel_request(op)) // a cancel request has only taken a step, which stays unused
				undo_change(db, op);
	}
}

} // namespace tq
