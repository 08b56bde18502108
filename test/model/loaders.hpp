// Loaders, step by step (rule R12): candidates, placeholders, a new snapshot, entries and the watermark. The atomic
// operations on the timers' watermark are separate steps.
// Regime: core tests, one thread.
#pragma once

#include "model/world.hpp"

namespace tq::model
{

class Loaders : public Stage
{
public:
	using Stage::Stage;

	// Whether a blocked actor simply has nothing to do.
	static bool idle(const Actor &a) { return a.done || (a.pc == 0 && a.sinking == kNever); }

protected:
	bool lock_free() const { return w.locked_by < 0; }

	// --- the journal
	void close(int j)
	{
		if (++w.rows[j].closed > 1)
			fail("a job ended twice");
	}

	// --- timers: the engine's atomic operations one by one, under the queue's lock
	void begin_sink_timer(int i, Micros due)
	{
		w.actors[i].sinking = due;
		w.actors[i].sink_phase = 0;
		w.locked_by = static_cast<int8_t>(i);
	}
	bool sink_timer_step(int i)
	{
		Actor &a = w.actors[i];
		lower((a.sink_phase == 0) == has(kTimerSinkLast) ? db().timer_limit : db().timer_watermark, a.sinking);
		if (++a.sink_phase == 2)
		{
			a.sinking = kNever;
			a.sink_phase = 0;
			w.locked_by = -1;
		}
		return true;
	}

	void again(int i)
	{
		Actor &a = w.actors[i];
		const Micros sinking = a.sinking;
		const uint8_t phase = a.sink_phase;
		const int8_t job = a.role == Role::worker || a.role == Role::reaper ? int8_t{-1} : a.job;
		const int budget = a.budget - 1;
		a = actor(a.role, budget, job);
		if (w.timer_loader == i)
			w.timer_loader = -1;
		a.sinking = sinking;
		a.sink_phase = phase;
		a.done = budget <= 0;
	}

	// Only its loader may touch a placeholder.
	bool still(Ref r, int j, State state)
	{
		if (r != kNil && e().is(q(), r, key(j).id) && e().entry(r).state == state)
			return true;
		fail("an entry was taken from its owner");
		return false;
	}
	void drop_placeholder(int j)
	{
		const Ref r = entry_of(j);
		if (still(r, j, State::placeholder))
			e().drop(q(), r, 0);
	}
	void adopt_placeholder(int j, const Row &row)
	{
		const Ref r = entry_of(j);
		if (still(r, j, State::placeholder))
			adopt(r, row);
	}

	// A job with an entry takes the state that the journal records.
	void adopt(Ref r, const Row &row)
	{
		e().change(q(), r, [&](Entry &x) noexcept {
			const bool later = row.due != kNever && row.due > w.now;
			x.state = later ? State::delayed : State::ready;
			x.timer = later ? row.due : kNever;
			x.segment = row.place;
		});
	}

	// --- loaders
	// Gives placeholders to the candidates, in `order`, until memory is full; returns the first that gets none, or -1.
	// Later ones are no candidates any more. Entries at or above the watermark may fill the memory, and none of them
	// can be claimed. So a lane's loader must evict.
	int take_placeholders(Actor &a, const std::vector<int> &order)
	{
		auto insert_or_evict = [&](int j, Ref *existing) {
			Ref r = insert(j, State::placeholder, false, existing);
			if (r == kNil && *existing == kNil && has(kEvictWhenFull) && e().evict_ready(q(), lane(), key(j), 0))
				r = insert(j, State::placeholder, false, existing);
			return r != kNil;
		};
		bool full = false;
		int first = -1;
		for (const int j : order)
			if (a.cand[j])
			{
				Ref existing = kNil;
				if (!full)
					a.mine[j] = insert_or_evict(j, &existing);
				if (!full && !a.mine[j] && existing == kNil)
				{
					full = true;
					first = j;
				}
				if (full)
					a.cand[j] = false;
			}
		return first;
	}

	// A loader fails between its read and its last step.
	bool abandon(int i)
	{
		Actor &a = w.actors[i];
		if (!lock_free())
			return false;
		Micros due = kNever;
		for (int j = 0; j < jobs(); ++j)
			if (a.mine[j])
			{
				drop_placeholder(j);
				if (!has(kSinkAbandoned))
					continue;
				e().lower_watermark(q(), lane(), key(j), key(j).id);
				due = std::min(due, a.seen[j].due);
			}
		if (a.role == Role::loader)
			lane().loader = kNil;
		if (due != kNever)
			begin_sink_timer(i, due);
		again(i);
		return true;
	}

	void take_snapshot(Actor &a) { std::copy(w.rows, w.rows + kMaxJobs, a.seen); }

	bool loader(int i, int choice)
	{
		Actor &a = w.actors[i];
		if (choice > (a.pc == 3 && sc.loads_fail ? 1 : 0))
			return false;
		switch (a.pc)
		{
			case 0:
				if (!lock_free() || lane().watermark == kMaxKey || (has(kOneLoader) && lane().loader != kNil))
					return false;
				lane().loader = static_cast<uint32_t>(i);
				lane().limit = kMaxKey;
				a.from = lane().watermark;
				a.resume = lane().resume;
				a.floor = lane().floor;
				break;
			case 1: {
				take_snapshot(a);
				a.last = kMaxKey;
				int n = 0;
				for (const int j : by_key())
					if (a.seen[j].visible && key(j) >= a.from && !(key(j) < a.resume && key(j).id < a.floor))
					{
						if (n++ < sc.batch)
							a.cand[j] = true;
						else
							a.last = std::min(a.last, key(j));
					}
				break;
			}
			case 2:
				if (!has(kPlaceholders))
					break;
				if (!lock_free())
					return false;
				if (const int first = take_placeholders(a, by_key()); first >= 0)
					a.last = std::min(a.last, key(first));
				break;
			case 3:
				if (choice == 1)
					return abandon(i);
				if (has(kFreshSnapshot))
					take_snapshot(a);
				break;
			default:
				if (!lock_free())
					return false;
				apply_lane(i);
				return true;
		}
		++a.pc;
		return true;
	}

	void apply_lane(int i)
	{
		Actor &a = w.actors[i];
		Micros left = kNever; // to the timers
		for (int j = 0; j < jobs(); ++j)
		{
			const Row &row = a.seen[j];
			if (!a.cand[j] || (has(kPlaceholders) && !a.mine[j]))
				continue;
			const bool timers = row.alive() && row.due != kNever && row.due >= db().timer_watermark.load();
			if (timers)
				left = std::min(left, row.due);
			if (!has(kPlaceholders))
			{
				if (row.alive() && !timers)
					if (const Ref r = insert(j, State::placeholder); r != kNil)
						adopt(r, row);
			}
			else if (row.alive() && !timers)
				adopt_placeholder(j, row);
			else
				drop_placeholder(j);
		}
		if (!has(kLimit))
			lane().limit = kMaxKey;
		e().raise_watermark(q(), lane(), a.last);
		lane().loader = kNil;
		if (left != kNever && has(kSinkTimerSkipped))
			begin_sink_timer(i, left);
		again(i);
	}

	bool timer_loader(int i, int choice)
	{
		Actor &a = w.actors[i];
		if (choice > (a.pc == 4 && sc.loads_fail ? 1 : 0))
			return false;
		switch (a.pc)
		{
			case 0:
				if (db().timer_watermark.load() == kNever || (has(kOneTimerLoader) && w.timer_loader >= 0))
					return false;
				w.timer_loader = static_cast<int8_t>(i);
				db().timer_limit.store(kNever);
				break;
			case 1:
				a.tfrom = db().timer_watermark.load();
				break;
			case 2: {
				take_snapshot(a);
				a.tlast = kNever;
				int n = 0;
				for (const int j : by_due(a))
					if (n++ < sc.batch)
						a.cand[j] = true;
					else
						a.tlast = std::min(a.tlast, a.seen[j].due);
				break;
			}
			case 3:
				if (!lock_free())
					return false;
				if (const int first = take_placeholders(a, by_due(a)); first >= 0)
					a.tlast = std::min(a.tlast, a.seen[first].due);
				break;
			case 4:
				if (choice == 1)
					return abandon(i);
				take_snapshot(a);
				break;
			case 5:
				if (!lock_free())
					return false;
				for (int j = 0; j < jobs(); ++j)
					if (a.mine[j])
					{
						const Row &row = a.seen[j];
						const bool to_lane = row.alive() && row.due <= w.now && key(j) >= lane().watermark;
						if (row.alive() && !to_lane)
							adopt_placeholder(j, row);
						else
							drop_placeholder(j);
						if (to_lane && has(kSinkLaneHanded))
							e().lower_watermark(q(), lane(), key(j), key(j).id);
					}
				break;
			case 6:
				if (db().timer_watermark.load() != a.tfrom && has(kTimerRaiseChecked)) // compare and exchange
				{
					again(i);
					return true;
				}
				db().timer_watermark.store(a.tlast);
				if (!has(kTimerLimit))
				{
					again(i);
					return true;
				}
				break;
			case 7:
				a.tlast = db().timer_limit.load();
				break;
			default:
				lower(db().timer_watermark, a.tlast);
				again(i);
				return true;
		}
		++a.pc;
		return true;
	}

	std::vector<int> by_key() const
	{
		std::vector<int> order(static_cast<size_t>(jobs()));
		for (int j = 0; j < jobs(); ++j)
			order[static_cast<size_t>(j)] = j;
		std::sort(order.begin(), order.end(), [this](int x, int y) { return key(x) < key(y); });
		return order;
	}
	std::vector<int> by_due(const Actor &a) const
	{
		std::vector<int> order;
		for (int j = 0; j < jobs(); ++j)
			if (a.seen[j].visible && a.seen[j].due != kNever && a.seen[j].due >= a.tfrom)
				order.push_back(j);
		std::sort(order.begin(), order.end(), [&a](int x, int y) { return a.seen[x].due < a.seen[y].due; });
		return order;
	}
};

} // namespace tq::model
