// The actors' programs (rules R10 and R13), step by step. A step is atomic. It does nothing if it is not enabled.
// Regime: core tests, one thread.
#pragma once

#include "model/loaders.hpp"

namespace tq::model
{

class Actors : public Loaders
{
public:
	using Loaders::Loaders;

	// One step of an actor; `choice` is the explorer's decision. Returns false if the step is not enabled.
	bool step(int i, int choice)
	{
		Actor &a = w.actors[i];
		if (a.sinking != kNever)
			return choice == 0 && sink_timer_step(i);
		if (a.done)
			return false;
		switch (a.role)
		{
			case Role::producer:
				return producer(i, choice);
			case Role::bulk:
				return choice == 0 && bulk(i);
			case Role::worker:
				return worker(i, choice);
			case Role::loader:
				return loader(i, choice);
			case Role::timer_loader:
				return timer_loader(i, choice);
			case Role::evictor:
				return evictor(i, choice);
			case Role::canceller:
			case Role::mover:
				return verb(i, choice);
			case Role::firer:
				return choice == 0 && firer(i);
			case Role::reaper:
				return choice == 0 && reaper(i);
			case Role::clock:
				return choice == 0 && clock(i);
		}
		return false;
	}

private:
	// --- a transaction that enqueues one job
	bool producer(int i, int choice)
	{
		Actor &a = w.actors[i];
		const int j = a.job;
		switch (a.pc)
		{
			case 0: // PRE_COMMIT: 0 = with an entry, 1 = without
				if (!lock_free() || choice > 1 || (choice == 0 && !has(kCommitting)))
					return false;
				if (choice == 0 && (a.ref = insert(j, State::committing)) == kNil)
					return false;
				break;
			case 1:
				if (choice == 0)
				{
					w.rows[j].visible = true;
					break;
				}
				if (choice > 1 || !sc.enqueues_abort || !lock_free())
					return false;
				if (a.ref != kNil && still(a.ref, j, State::committing))
					e().drop(q(), a.ref, 0);
				again(i); // no callback
				return true;
			default: // COMMIT callback
				if (!lock_free() || choice > 0)
					return false;
				w.published[j] = true;
				if (!has(kCommitting)) // "insert if absent"
				{
					if (Ref existing; (a.ref = insert(j, State::placeholder, false, &existing)) != kNil)
						adopt(a.ref, first_state(j));
				}
				else if (a.ref != kNil)
				{
					if (still(a.ref, j, State::committing))
						adopt(a.ref, first_state(j));
				}
				else if (w.rows[j].due != kNever)
					begin_sink_timer(i, w.rows[j].due);
				else
					e().lower_watermark(q(), lane(), key(j), key(j).id);
				again(i);
				return true;
		}
		++a.pc;
		return true;
	}

	Row first_state(int j) const { return Row{true, 0, 0, w.rows[j].due}; }

	// --- a transaction that enqueues all jobs not yet visible, beginning with its own, without entries
	bool bulk(int i)
	{
		Actor &a = w.actors[i];
		if (a.pc == 0)
		{
			for (int j = 0; j < jobs(); ++j)
				if (j >= a.job && !w.rows[j].visible)
					a.mine[j] = w.rows[j].visible = true;
			a.pc = 1;
			return true;
		}
		if (!lock_free())
			return false;
		Key least = kMaxKey;
		JobId least_id = INT64_MAX;
		Micros due = kNever;
		for (int j = 0; j < jobs(); ++j)
			if (a.mine[j])
			{
				w.published[j] = true;
				due = std::min(due, w.rows[j].due);
				if (w.rows[j].due == kNever)
				{
					least = std::min(least, key(j));
					least_id = std::min(least_id, key(j).id);
				}
			}
		if (has(kSinkBulk))
		{
			if (least != kMaxKey)
				e().lower_watermark(q(), lane(), least, has(kLeastId) ? least_id : INT64_MAX);
			if (due != kNever)
				begin_sink_timer(i, due);
		}
		again(i);
		return true;
	}

	// --- a worker: claim, run, finish
	Ref claim(int i)
	{
		if (has(kGate))
			return e().claim(q(), test::Rig::terms(static_cast<uint32_t>(i)));
		const Key watermark = lane().watermark, limit = lane().limit;
		lane().limit = kMaxKey;
		e().raise_watermark(q(), lane(), kMaxKey);
		const Ref r = e().claim(q(), test::Rig::terms(static_cast<uint32_t>(i)));
		e().lower_watermark(q(), lane(), watermark);
		lane().limit = limit;
		return r;
	}

	bool holds(const Actor &a)
	{
		const Entry &x = e().entry(a.ref);
		return e().is(q(), a.ref, key(a.job).id) && x.state == State::running && x.lease == a.lease;
	}

	bool worker(int i, int choice)
	{
		Actor &a = w.actors[i];
		switch (a.pc)
		{
			case 0:
				if (choice > 0 || !lock_free() || (a.ref = claim(i)) == kNil)
					return false;
				a.job = static_cast<int8_t>(job_of(a.ref));
				a.lease = e().entry(a.ref).lease;
				check_claim(a);
				if (!sc.claims_abort)
				{
					rig.commit_claim(a.ref);
					a.pc = 1;
				}
				break;
			case 1: // 0 = the claim commits, 1 = it rolls back
				if (choice > 1 || !lock_free())
					return false;
				if (holds(a) && e().entry(a.ref).mark == Verb::claim)
				{
					if (choice == 0)
						rig.commit_claim(a.ref);
					else
						rig.undo_claim(a.ref);
				}
				if (choice == 1)
				{
					again(i);
					return true;
				}
				break;
			case 2: // a finish is called: 0 = complete, 1 = fail, with a retry later
				if (choice > (sc.jobs_fail ? 1 : 0) || !lock_free())
					return false;
				a.failing = choice == 1;
				if (has(kLeaseChecked) &&
					(!holds(a) ||
					 e().mark(q(), a.ref, static_cast<uint32_t>(i), a.failing ? Verb::fail : Verb::complete,
							  a.failing ? State::delayed : State::terminal) != MarkResult::ok))
				{
					again(i); // lost
					return true;
				}
				break;
			case 3:
				if (choice > 0)
					return false;
				if (has(kVisibleFirst))
					commit_finish(a);
				else if (!lock_free())
					return false;
				else
					end_entry(a);
				break;
			default:
				if (choice > 0)
					return false;
				if (!has(kVisibleFirst))
					commit_finish(a);
				else if (!lock_free())
					return false;
				else
					end_entry(a);
				again(i);
				return true;
		}
		++a.pc;
		return true;
	}

	void commit_finish(Actor &a)
	{
		if (a.failing)
			w.rows[a.job].due = w.now + 10;
		else
			close(a.job);
	}
	void end_entry(Actor &a)
	{
		if (!e().is(q(), a.ref, key(a.job).id))
			return;
		if (!a.failing)
			e().drop(q(), a.ref, 0);
		else
			e().change(q(), a.ref, [&](Entry &x) noexcept {
				x.mark = Verb::none;
				x.state = State::delayed;
				x.timer = w.rows[a.job].due;
				x.lease = 0;
			});
	}

	void check_claim(const Actor &a)
	{
		const Row &row = w.rows[a.job];
		if (!row.visible)
			fail("a job was claimed before its enqueue was committed");
		if (row.closed > 0)
			fail("a finished job was claimed");
		if (e().entry(a.ref).segment != row.place)
			fail("a claim looks for the row in its old segment");
		for (int i = 0; i < kMaxActors; ++i)
		{
			const Actor &b = w.actors[i];
			if (&b != &a && b.role == Role::worker && b.job == a.job && b.pc > 0 && b.pc < 4 && holds(b))
				fail("a job has two live leases");
		}
		for (int j = 0; j < jobs(); ++j)
		{
			const Ref r = entry_of(j);
			const bool on_disk = r == kNil || (e().entry(r).state == State::placeholder && !held_by_verb(j));
			if (key(j) < key(a.job) && w.published[j] && w.rows[j].alive() && w.rows[j].due == kNever && on_disk)
				fail("a ready job on disk was overtaken");
		}
	}

	// Pinned for a verb: claims skip it, as they skip marked entries.
	bool held_by_verb(int j) const
	{
		return std::any_of(w.actors, w.actors + kMaxActors, [j](const Actor &a) {
			return (a.role == Role::canceller || a.role == Role::mover) && a.mine[j];
		});
	}

	// --- memory pressure: 0 = a ready job, 1 = a timer
	bool evictor(int i, int choice)
	{
		if (!lock_free() || choice > 1)
			return false;
		if (choice == 0)
		{
			const Key watermark = lane().watermark, limit = lane().limit;
			if (!e().evict_ready(q(), lane(), kMinKey, 0))
				return false;
			if (!has(kSinkEvicted))
			{
				lane().limit = kMaxKey;
				e().raise_watermark(q(), lane(), watermark);
				lane().limit = limit;
			}
		}
		else
		{
			const Ref r = q().due.max;
			if (r == kNil)
				return false;
			const Micros due = e().entry(r).timer;
			e().drop(q(), r, 0);
			if (has(kSinkEvicted))
				begin_sink_timer(i, due);
		}
		again(i);
		return true;
	}

	// --- cancel and move: pin the job if it has no entry, mark it, commit, publish
	bool verb(int i, int choice)
	{
		Actor &a = w.actors[i];
		const int j = a.job;
		if (choice > (a.pc == 1 && sc.loads_fail ? 1 : 0))
			return false;
		switch (a.pc)
		{
			case 0: {
				if (!lock_free() || !w.rows[j].visible)
					return false;
				a.ref = entry_of(j);
				if (a.ref == kNil)
				{
					if ((a.ref = insert(j, State::placeholder, true)) == kNil)
						return false;
					a.mine[j] = true;
					break;
				}
				if (!mark_for(i))
				{
					again(i);
					return true;
				}
				a.pc = 2;
				break;
			}
			case 1:
				if (choice == 1)
				{
					std::copy(w.rows, w.rows + kMaxJobs, a.seen);
					return abandon(i);
				}
				take_snapshot(a);
				break;
			case 2:
				if (!lock_free())
					return false;
				if (!a.seen[j].alive())
				{
					drop_placeholder(j);
					again(i);
					return true;
				}
				adopt_placeholder(j, a.seen[j]);
				mark_for(i);
				break;
			case 3:
				if (a.role == Role::canceller)
					close(j);
				else
					w.rows[j].place = 1;
				break;
			default:
				if (!lock_free())
					return false;
				if (has(kMarks) && (!e().is(q(), a.ref, key(j).id) || e().entry(a.ref).mark == Verb::none ||
									e().entry(a.ref).owner != static_cast<uint32_t>(i)))
					fail("a marked entry was taken from its owner");
				else if (e().is(q(), a.ref, key(j).id))
				{
					if (a.role == Role::canceller)
						e().drop(q(), a.ref, 0);
					else
						e().change(q(), a.ref, [](Entry &x) noexcept {
							x.mark = Verb::none;
							x.segment = 1;
						});
				}
				again(i);
				return true;
		}
		++a.pc;
		return true;
	}

	bool mark_for(int i)
	{
		Actor &a = w.actors[i];
		const State state = e().entry(a.ref).state;
		if (state != State::ready && state != State::delayed)
			return false;
		if (!has(kMarks))
			return true;
		return e().mark(q(), a.ref, static_cast<uint32_t>(i), a.role == Role::canceller ? Verb::cancel : Verb::move,
						a.role == Role::canceller ? State::terminal : state) == MarkResult::ok;
	}

	// --- the scheduler
	bool firer(int i)
	{
		if (!lock_free() || e().fire_due(q(), w.now, 1) == 0)
			return false;
		again(i);
		return true;
	}

	bool reaper(int i)
	{
		Actor &a = w.actors[i];
		if (a.pc == 1)
		{
			w.rows[a.job].due = kNever; // "lost", flushed
			a.pc = 2;
			return true;
		}
		if (!lock_free())
			return false;
		if (a.pc == 0)
		{
			PrevMark prev;
			if (e().collect_lost(q(), {kNever, 1, static_cast<uint32_t>(i)}, &a.ref, &prev) == 0)
			{
				a.ref = kNil;
				return false;
			}
			a.job = static_cast<int8_t>(job_of(a.ref));
			a.pc = 1;
			return true;
		}
		if (!still(a.ref, a.job, State::running))
			return true;
		e().change(q(), a.ref, [](Entry &x) noexcept {
			x.mark = Verb::none;
			x.state = State::ready;
			x.timer = kNever;
			x.lease = 0;
		});
		again(i);
		return true;
	}

	bool clock(int i)
	{
		w.now = kLater;
		again(i);
		return true;
	}
};

} // namespace tq::model
