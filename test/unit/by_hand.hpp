// An independent computation of the entry that a claim must return, from the entries alone. Also checks starts against
// their rate.
// Regime: core tests, one thread.
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "unit/rig.hpp"

namespace tq::test
{

// The first startable entry by priority, turn and age; kNil if there is none. A group whose opening time has come stays
// closed until Engine::open_due has visited it.
class ByHand
{
public:
	ByHand(const Engine &e, uint16_t queue, const uint64_t *kinds, int nkinds)
		: e_(e), q_(e.queue(queue)), kinds_(kinds), nkinds_(nkinds)
	{
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &x = e_.entry(r);
			if (x.home == queue + 1 && x.state == State::ready && x.mark == Verb::none)
				x.group == kNil ? consider(r, loose_turn(x), x.key() < lane(x).watermark) : of_group(x.group, r);
		}
		for (const auto &[g, next] : nexts_)
			if (may_start(g, next))
			{
				const Entry &x = e_.entry(next);
				consider(next, e_.group(g).turn,
						 q_.settings.fair ? x.priority <= lane(x).watermark.priority : x.key() < lane(x).watermark);
			}
	}

	Ref best() const { return best_; }
	double turn() const { return turn_; }
	bool within_limits() const
	{
		const QueueSettings &s = q_.settings;
		uint32_t running = 0;
		for (Ref r = 0; r < e_.limits().entries; ++r)
			running += e_.entry(r).home == e_.index_of(q_) + 1 && e_.entry(r).state == State::running;
		return (s.max_running <= 0 || running < static_cast<uint32_t>(s.max_running)) && q_.starts.open(s.rate, mono_now()) &&
			   e_.places_to_start(q_) > 0;
	}

private:
	const Engine &e_;
	const Queue &q_;
	const uint64_t *kinds_;
	int nkinds_;
	Ref best_ = kNil;
	double turn_ = 0;
	std::vector<std::pair<Ref, Ref>> nexts_; // the first job of each group

	const Lane &lane(const Entry &x) const { return e_.lane(x.lane); }

	// The turn of a job without a group is set when it becomes the next job of its lane.
	double loose_turn(const Entry &x) const
	{
		if (!q_.settings.fair)
			return 0;
		return lane(x).first == e_.ref_of(x) ? lane(x).turn : std::max(q_.loose_turn, q_.vclock);
	}

	void of_group(Ref g, Ref r)
	{
		for (auto &[group, next] : nexts_)
			if (group == g)
			{
				if (e_.entry(r).key() < e_.entry(next).key())
					next = r;
				return;
			}
		nexts_.emplace_back(g, r);
	}

	bool may_start(Ref g, Ref next) const
	{
		const Group &x = e_.group(g);
		const QueueSettings &s = q_.settings;
		const int32_t most = x.own.max_running != kUnset ? x.own.max_running : s.group_max_running;
		const uint32_t limit = most != kUnset ? static_cast<uint32_t>(most) : s.fair ? 0 : 1;
		uint32_t running = 0;
		bool held = false;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &y = e_.entry(r);
			if (y.home == 0 || y.group != g)
				continue;
			running += y.state == State::running;
			held = held || (y.state == State::delayed && y.has(kHeld)) ||
				   (y.mark == Verb::move && (y.state == State::delayed || y.state == State::ready));
		}
		if (limit > 0 && (running >= limit || (held && !s.loose_groups)))
			return false;
		const Rate &rate = x.own.rate.limits() ? x.own.rate : s.group_rate;
		return x.own.paused_until == 0 && e_.entry(next).key() < x.watermark && x.bucket.open(rate, mono_now()) && !x.opening;
	}

	void consider(Ref r, double turn, bool below_watermark)
	{
		const Entry &x = e_.entry(r);
		if (!below_watermark || lane(x).paused_until != 0 || q_.paused_until != 0)
			return;
		if (nkinds_ > 0 && std::find(kinds_, kinds_ + nkinds_, lane(x).kind_hash) == kinds_ + nkinds_)
			return;
		const auto rank = [](const Entry &e, double its_turn) { return std::tuple(e.priority, its_turn, e.key()); };
		if (best_ != kNil && rank(e_.entry(best_), turn_) < rank(x, turn))
			return;
		best_ = r;
		turn_ = turn;
	}
};

// The sums that a queue's limits use, from its entries.
inline LimitSums counted(const Engine &e, uint16_t queue)
{
	LimitSums sums{};
	for (Ref r = 0; r < e.limits().entries; ++r)
		if (e.entry(r).home == queue + 1)
			Engine::count_entry(e.entry(r), &sums);
	return sums;
}

// The same, from the queue's own counters.
inline LimitSums kept(const Engine &e, uint16_t queue)
{
	LimitSums sums{};
	Engine::count_kept(e.queue(queue), &sums);
	for (Ref g = 0; g < e.limits().groups; ++g)
		if (e.owns(e.queue(queue), g))
			Engine::count_kept(g, e.group(g), &sums);
	return sums;
}

// Starts under one rate: no window has more than the burst plus the refill of that window.
class Starts
{
public:
	bool add(const Rate &rate, Micros now)
	{
		at_.push_back(now);
		if (at_.size() > 64)
			at_.erase(at_.begin());
		for (size_t i = 0; i < at_.size(); ++i)
			if (static_cast<int64_t>(at_.size() - i) > rate.burst + (now - at_[i]) * 1000 / rate.interval)
				return false;
		return true;
	}

private:
	std::vector<Micros> at_;
};

} // namespace tq::test
