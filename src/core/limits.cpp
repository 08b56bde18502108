// Limits of a queue: how many run at a time, how many start in a time, and whose turn it is.
// Fair turns are start-time fair queueing (Goyal, Vin and Cheng, 1996): each start costs its group one turn divided by the job's weight.
#include "core/engine.hpp"

namespace tq::core
{

int64_t Engine::live_jobs(const Queue &q) const noexcept
{
	int64_t n = 0;
	for (uint16_t l = q.lanes; l != kNoLane; l = lanes_[l].next)
		n += lanes_[l].count.live;
	return n;
}

int64_t Engine::starts_left(const Queue &q) const noexcept
{
	int64_t left = INT64_MAX;
	if (q.settings.max_running > 0)
		left = std::max<int64_t>(int64_t{q.settings.max_running} - q.running, 0);
	if (q.settings.rate.limits() && left > 0)
		left = q.starts.available(q.settings.rate, platform_.mono(), left);
	return left;
}

// Between leaving its old place and entering the new one.
void Engine::charge(Queue &q, Entry &e) noexcept
{
	const QueueSettings &s = q.settings;
	// by the same clock as starts_left, not by the claim's, which may have waited for the lock
	if (s.rate.limits())
		q.starts.take(s.rate, platform_.mono());
	if (e.group != kNil && s.group_rate.limits())
		groups_[e.group].bucket.take(s.group_rate, platform_.mono());
	if (!s.fair)
		return;
	const double cost = 100.0 / (e.weight != 0 ? e.weight : 100);
	double &turn = e.group != kNil ? groups_[e.group].turn : q.loose_turn;
	const double at = std::max(turn, q.vclock);
	turn = at + cost;
	advance(q, at);
	if (e.group == kNil) // all jobs without a group have moved back
		for (uint16_t i = q.lanes; i != kNoLane; i = lanes_[i].next)
			if (lanes_[i].in_startable && entries_[lanes_[i].first].group == kNil)
			{
				lane_out(q, lanes_[i]);
				lane_in(q, lanes_[i]);
			}
}

// Groups without jobs are forgotten when the virtual time has reached their turn.
void Engine::advance(Queue &q, double turn) noexcept
{
	q.vclock = std::max(q.vclock, turn);
	while (q.resting.min != kNil && groups_[q.resting.min].turn <= q.vclock)
		settle(q, q.resting.min);
}

void Engine::forget_starts(Queue &q, Micros mono) noexcept
{
	q.starts_from = mono;
	q.starts.empty(q.settings.rate, mono);
	q.enqueues.empty(q.settings.enqueue_rate, mono);
}

int64_t Engine::wrong_counts(const Queue &q, uint32_t *scratch) const noexcept
{
	const uint32_t n = shared_->limits.groups;
	uint32_t *entries = scratch, *running = scratch + n, *held = scratch + 2 * size_t{n};
	std::fill_n(scratch, 3 * size_t{n}, 0);
	uint32_t all = 0;
	for (Ref r = 0; r < shared_->limits.entries; ++r)
	{
		const Entry &e = entries_[r];
		// with q locked, `home` cannot become q + 1 nor cease to be it
		if (std::atomic_ref<uint16_t>(const_cast<Entry &>(e).home).load(std::memory_order_acquire) != index_of(q) + 1)
			continue;
		all += e.state == State::running;
		if (e.group == kNil)
			continue;
		++entries[e.group];
		running[e.group] += e.state == State::running;
		held[e.group] += holds(e);
	}
	int64_t wrong = all != q.running;
	for (Ref g = 0; g < n; ++g)
	{
		const Group &x = groups_[g];
		if (owns(q, g))
			wrong += x.entries != entries[g] || x.running != running[g] || x.held != held[g];
		else
			wrong += entries[g] != 0;
	}
	return wrong;
}

// Jobs that waiters have seen, and could not have because of a limit, are startable again.
void Engine::reopen(Queue &q) noexcept
{
	for (uint16_t i = q.lanes; i != kNoLane; i = lanes_[i].next)
		if (lanes_[i].in_startable)
			lanes_[i].startable_at = ++q.startable_seq;
	wake_for_startable(q);
}

// When the scheduler is to look at this queue's limits.
void Engine::publish_opening(Queue &q) noexcept
{
	const Rate &rate = q.settings.rate;
	if (!rate.limits() || q.startable.min == kNil)
		q.rate_opens_at = kNever;
	else if (const Micros now = platform_.mono(); !q.starts.open(rate, now))
		q.rate_opens_at = q.starts.opens_at(rate);
	else if (q.rate_opens_at > now) // else open_due is to wake those who wait
		q.rate_opens_at = kNever;
	const Micros at = std::min(q.rate_opens_at, q.opening.min != kNil ? groups_[q.opening.min].opens_at : kNever);
	const Micros before = q.next_open.load(std::memory_order_relaxed);
	if (at == before)
		return;
	q.next_open.store(at);
	if (at < before)
		platform_.sooner(q.db, at, true);
}

int Engine::open_due(Queue &q, Micros mono, int max) noexcept
{
	int n = 0;
	for (; n < max && q.opening.min != kNil && groups_[q.opening.min].opens_at <= mono; ++n)
	{
		const Ref r = q.opening.min;
		opens_at(q, r, kNever);
		settle(q, r);
	}
	if (q.rate_opens_at <= mono)
	{
		q.rate_opens_at = kNever;
		reopen(q);
	}
	publish_opening(q);
	return n;
}

} // namespace tq::core
