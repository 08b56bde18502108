// The jobs without an entry and their readers: loaders of groups and searches for groups. They run as in the scheduler,
// one step at a time, so that any operation can happen between two steps. Also drains the engine at the end: all jobs
// must complete, whatever happened before.
// Regime: core tests, one thread.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "unit/rig.hpp"

namespace tq::test
{

constexpr uint32_t kLoader = 77; // owner of the loaders' placeholders

struct OnDisk
{
	uint16_t queue, lane;
	Key key;
	Micros due;		   // kNever: ready
	std::string group; // empty: none
	const char *group_key() const { return group.empty() ? nullptr : group.c_str(); }
};

class Disk
{
public:
	std::map<JobId, OnDisk> jobs;

	explicit Disk(Engine &e) : e_(e) {}

	// What memory reports about a job that it does not hold.
	std::string wrong() const
	{
		for (const auto &[id, d] : jobs)
		{
			Queue &q = e_.queue(d.queue);
			if (d.due != kNever)
			{
				if (d.due < e_.db(0).timer_watermark.load())
					return "a timer on disk lies before the timers' watermark";
				continue;
			}
			const Ref g = d.group.empty() ? kNil : e_.group_for(q, d.group.c_str(), false);
			if (d.group.empty() ? d.key < e_.lane(d.lane).watermark : g != kNil && d.key < e_.group(g).watermark)
				return "a job on disk lies below its watermark";
			if (!d.group.empty() && g == kNil && !Engine::unknown_groups(q))
				return "a group's jobs on disk are not recorded";
			if (e_.covered_by_watermark(q, e_.lane(d.lane), d.group_key(), g, d.key))
				return "a job on disk is vouched for";
		}
		return {};
	}

	void put(JobId id, const OnDisk &d)
	{
		jobs[id] = d;
		e_.lower_job_watermark(e_.queue(d.queue), e_.lane(d.lane), d.group_key(), kNil, d.key);
	}

	// --- loaders of groups
	size_t loads() const { return loads_.size(); }
	bool is_loading(uint16_t queue) const
	{
		return std::any_of(loads_.begin(), loads_.end(), [queue](const Load &l) { return l.queue == queue; });
	}

	void start_load(uint16_t queue, Ref g, size_t want)
	{
		Load l{};
		l.queue = queue;
		l.g = g;
		l.want = want;
		l.floor = e_.group(g).floor;
		l.from = e_.start_group_load(e_.queue(queue), g, 1);
		loads_.push_back(l);
	}

	// `luck` 0 makes the step fail.
	void step_load(size_t i, uint32_t luck)
	{
		Load &l = loads_[i];
		Queue &q = e_.queue(l.queue);
		Group &g = e_.group(l.g);
		switch (l.stage++)
		{
			case 0: // the snapshot
				for (const auto &[id, d] : jobs)
					if (d.queue == l.queue && d.group == g.key && d.due == kNever && !(d.key < l.from) && id >= l.floor)
						l.found.push_back(d.key);
				std::sort(l.found.begin(), l.found.end());
				l.reached = kMaxKey;
				if (l.found.size() > l.want)
				{
					l.reached = l.found[l.want];
					l.found.resize(l.want);
				}
				return;
			case 1: // placeholders, including for jobs that may have ended
				for (const Key &key : l.found)
				{
					const auto job = jobs.find(key.id);
					Ref existing;
					const bool starved = g.ready.size == 0 && g.head == kNil;
					const uint16_t lane = job != jobs.end() ? job->second.lane : q.lanes;
					const Ref r = e_.insert(
						q, {.lane = lane, .id = key.id, .priority = key.priority, .state = State::placeholder, .reserve = starved, .group = l.g},
						0, &existing);
					if (r != kNil)
					{
						e_.entry(r).owner = kLoader;
						l.placeholders.push_back(r);
					}
					else if (existing == kNil)
					{
						l.reached = key; // memory is full
						break;
					}
				}
				return;
			case 2: // what the journal says
				for (const Ref r : l.placeholders)
				{
					const JobId id = e_.entry(r).id;
					const auto job = jobs.find(id);
					if (job == jobs.end())
						e_.drop(q, r, 0);
					else if (luck == 0) // an error: as if nothing had been read
					{
						e_.lower_job_watermark(q, e_.lane(job->second.lane), nullptr, l.g, job->second.key);
						e_.drop(q, r, 0);
					}
					else
					{
						const Micros due = job->second.due;
						e_.change(q, r, [due](Entry &e) noexcept {
							e.state = due == kNever ? State::ready : State::delayed;
							e.timer = due;
							e.owner = 0;
						});
						jobs.erase(job);
					}
				}
				return;
			default:
				if (luck != 0)
					e_.raise_group(q, l.g, l.reached);
				e_.end_group_load(q, l.g, l.reached == kMaxKey || !l.placeholders.empty());
				loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(i));
		}
	}

	// --- searches for groups without a slot
	size_t searches() const { return searches_.size(); }

	void start_search(uint16_t queue)
	{
		Queue &q = e_.queue(queue);
		if (!q.discover.load() || !e_.has_free_group(q) || q.discovering.exchange(true))
			return;
		q.discover.store(false);
		searches_.push_back(Search{queue, {}});
	}

	void step_search(size_t i)
	{
		Search &s = searches_[i];
		Queue &q = e_.queue(s.queue);
		std::string next;
		for (const auto &[id, d] : jobs)
			if (d.queue == s.queue && d.group > s.after && (next.empty() || d.group < next))
				next = d.group;
		bool has_slot = true;
		if (!next.empty() && e_.group_for(q, next.c_str(), false) == kNil)
		{
			const Ref g = e_.group_for(q, next.c_str(), true);
			has_slot = g != kNil;
			if (has_slot)
				e_.lower_group_watermark(q, g, kMinKey);
		}
		s.after = next;
		if (has_slot && !next.empty())
			return;
		if (!has_slot)
			q.discover.store(true);
		q.discovering.store(false);
		searches_.erase(searches_.begin() + static_cast<std::ptrdiff_t>(i));
	}

	// Called before the queue is freed.
	void forget(uint16_t queue)
	{
		for (size_t i = loads_.size(); i-- > 0;)
			if (loads_[i].queue == queue)
			{
				e_.end_group_load(e_.queue(queue), loads_[i].g, true);
				loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(i));
			}
		std::erase_if(searches_, [queue](const Search &s) { return s.queue == queue; });
		std::erase_if(jobs, [queue](const auto &d) { return d.second.queue == queue; });
	}

	// Finishes all work under way, and then runs without faults: no pauses, all claims are finished, loaders read what
	// is requested, and `now` advances. Returns the jobs that no claim gets, or an empty string.
	std::string drain(Micros *now)
	{
		settle_all(*now);
		int idle = 0;
		for (int round = 0; round < 20'000; ++round)
		{
			*now += 50'000;
			surroundings().mono = *now;
			bool moved = false;
			for (uint16_t qi = 0; qi < e_.limits().queues; ++qi)
				if (e_.queue(qi).state != QueueState::free)
					moved = advance(qi, *now, idle > 0) || moved;
			if (jobs.empty() && e_.free_entries() == e_.limits().entries)
				return {};
			idle = moved ? 0 : idle + 1;
			if (idle > 400)
				break;
		}
		return "jobs that no claim gets: " + std::to_string(jobs.size()) + " on disk, " +
			   std::to_string(e_.limits().entries - e_.free_entries()) + " in memory";
	}

private:
	struct Load
	{
		uint16_t queue;
		Ref g;
		size_t want;
		Key from, reached;
		JobId floor;
		std::vector<Key> found;
		std::vector<Ref> placeholders;
		int stage;
	};
	struct Search
	{
		uint16_t queue;
		std::string after;
	};

	Engine &e_;
	std::vector<Load> loads_;
	std::vector<Search> searches_;

	void settle_all(Micros now)
	{
		while (!loads_.empty())
			step_load(0, 1);
		while (!searches_.empty())
			step_search(0);
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			Entry &x = e_.entry(r);
			if (x.home == 0)
				continue;
			Queue &q = e_.queue(x.queue);
			if (x.state == State::placeholder || x.state == State::committing)
				e_.change(q, r, [](Entry &e) noexcept { e.state = State::ready; });
			else if (x.mark != Verb::none && x.mark != Verb::claim)
				e_.change(q, r, [](Entry &e) noexcept { e.mark = Verb::none; });
		}
		for (uint16_t qi = 0; qi < e_.limits().queues; ++qi)
		{
			Queue &q = e_.queue(qi);
			if (q.state == QueueState::free)
				continue;
			e_.set_paused(q, nullptr, 0);
			for (uint16_t l = q.lanes; l != kNoLane; l = e_.lane(l).next)
				e_.set_paused(q, &e_.lane(l), 0);
		}
		for (Ref w = 0; w < e_.limits().procs * kWaitersPerProc; ++w)
			if (e_.waiter(w).linked || e_.waiter(w).granted)
				e_.wait_leave(e_.queue(e_.waiter(w).queue), w);
		static_cast<void>(now);
	}

	// One cycle of the scheduler and of a worker for one queue. Returns whether any job made progress. `sweep` adds the
	// work of each second.
	bool advance(uint16_t qi, Micros now, bool sweep)
	{
		Queue &q = e_.queue(qi);
		bool moved = false;
		if (q.next_open.load() <= now)
			e_.open_due(q, now, 1000);
		moved = e_.fire_due(q, now, 8) > 0;
		for (auto &[id, d] : jobs)
			if (d.queue == qi && d.due <= now)
			{
				d.due = kNever; // memory is full: its lane or group reads it in
				e_.lower_job_watermark(q, e_.lane(d.lane), d.group_key(), kNil, d.key);
				moved = true;
			}
		if (sweep)
		{
			e_.wake_for_startable(q);
			for (uint16_t l = q.lanes; l != kNoLane; l = e_.lane(l).next)
				if (e_.runs_dry(q, e_.lane(l)))
					q.want_refill.store(true);
			e_.want_groups_again(q);
		}
		if (q.want_refill.exchange(false))
			refill(qi);
		for (;;)
		{
			const Ref r = e_.claim(q, Rig::terms(1, now, now));
			if (r == kNil)
				break;
			moved = true;
		}
		for (Ref r = 0; r < e_.limits().entries; ++r)
			if (e_.entry(r).home == qi + 1 && e_.entry(r).state == State::running)
			{
				e_.drop(q, r, 0);
				moved = true;
			}
		return moved;
	}

	void refill(uint16_t qi)
	{
		Queue &q = e_.queue(qi);
		start_search(qi);
		while (!searches_.empty())
			step_search(0);
		for (int n = 0; n < 100; ++n)
		{
			const Ref g = e_.take_wanted(q);
			if (g == kNil)
				break;
			start_load(qi, g, 3);
			while (!loads_.empty())
				step_load(0, 1);
		}
		if (q.wanted != kNil)
			q.want_refill.store(true);
		for (uint16_t l = q.lanes; l != kNoLane; l = e_.lane(l).next)
			if (e_.runs_dry(q, e_.lane(l)))
				refill_lane(q, qi, l);
	}

	void refill_lane(Queue &q, uint16_t qi, uint16_t li)
	{
		Lane &l = e_.lane(li);
		l.limit = kMaxKey;
		std::vector<Key> found;
		for (const auto &[id, d] : jobs)
			if (d.queue == qi && d.lane == li && d.group.empty() && d.due == kNever && !(d.key < l.watermark) &&
				!(d.key < l.resume && d.key.id < l.floor)) // the cursor skips these
				found.push_back(d.key);
		std::sort(found.begin(), found.end());
		Key reached = kMaxKey;
		for (const Key &key : found)
		{
			Ref existing;
			Ref r;
			do
				r = e_.insert(q,
							  {.lane = li, .id = key.id, .priority = key.priority, .state = State::placeholder, .reserve = !l.in_startable},
							  0, &existing);
			while (r == kNil && evict(q, li, key));
			if (r == kNil)
			{
				reached = key;
				break;
			}
			e_.change(q, r, [](Entry &e) noexcept { e.state = State::ready; });
			jobs.erase(key.id);
		}
		e_.raise_watermark(q, l, reached);
		if (e_.runs_dry(q, l))
			q.want_refill.store(true);
	}

	bool evict(Queue &q, uint16_t li, Key above)
	{
		Lane &l = e_.lane(li);
		if (l.ready.max == kNil)
			return false;
		std::map<Ref, OnDisk> before;
		for (Ref r = 0; r < e_.limits().entries; ++r)
			if (e_.entry(r).home != 0)
				before[r] = OnDisk{e_.index_of(q), li, e_.entry(r).key(), kNever, {}};
		if (!e_.evict_ready(q, l, above, 0))
			return false;
		for (const auto &[r, d] : before)
			if (e_.entry(r).home == 0)
				jobs[d.key.id] = d;
		return true;
	}
};

} // namespace tq::test
