// Limits of a queue: running jobs, rate of starts, and fair turns.
// Fair turns are start-time fair queueing (Goyal, Vin and Cheng, 1996): a start costs its group one turn / weight.
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
	int64_t left = places_to_start(q);
	if (q.settings.max_running > 0)
		left = std::clamp<int64_t>(int64_t{q.settings.max_running} - q.running, 0, left);
	if (q.settings.rate.limits() && left > 0)
		left = q.starts.available(q.settings.rate, platform_.mono(), left);
	return left;
}

int Engine::claim_share(const Queue &q, int max, bool granted) const noexcept
{
	const uint32_t own = granted ? 1 : 0;
	if (q.tokens <= own || max <= 1)
		return max;
	// Sleeping waiters do not count: each startable job that a waiter wants has a token.
	const int64_t claims = int64_t{q.tokens} - own + 1;
	const int64_t all = claims * max;
	int64_t ready = 0;
	for (Ref i = q.startable.min; i != kNil && ready < all; i = by_head().next(i))
		ready += group_limit(q) == 1 ? lanes_[i].ready.size + lanes_[i].heads.size
									 : lanes_[i].counts[static_cast<int>(State::ready)];
	ready = std::min(ready, starts_left(q));
	return static_cast<int>(std::clamp<int64_t>((ready + claims - 1) / claims, 1, max));
}

// Called after leave() and before enter().
void Engine::charge(Queue &q, Entry &e) noexcept
{
	const QueueSettings &s = q.settings;
	// the clock of starts_left, not the claim's, which may have waited for the lock
	if (s.rate.limits())
		q.starts.take(s.rate, platform_.mono());
	if (e.group != kNil)
		if (const Rate &rate = group_rate(q, groups_[e.group]); rate.limits())
			groups_[e.group].bucket.take(rate, platform_.mono());
	if (!s.fair)
		return;
	// claim_own() starts a job other than the head, whose order depends on the turn; update_group() offers it again
	if (e.group != kNil && groups_[e.group].head != kNil)
		withdraw_head(q, groups_[e.group]);
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
		update_group(q, q.resting.min);
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
	uint32_t all = 0, pinned = 0;
	for (Ref r = 0; r < shared_->limits.entries; ++r)
	{
		const Entry &e = entries_[r];
		if (home_of(e) != index_of(q) + 1) // as in Engine::is
			continue;
		all += e.state == State::running;
		pinned += is_pinned(e);
		if (e.group == kNil)
			continue;
		++entries[e.group];
		running[e.group] += e.state == State::running;
		held[e.group] += blocks_group(e);
	}
	int64_t wrong = (all != q.running) + (pinned != q.pinned);
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

namespace
{

// An odd multiplier for each counter of each group. The products are summed, so sums of different counters are equal
// only by chance (Carter and Wegman, 1979). The mixing is splitmix64 (Steele, Lea and Flood, 2014).
uint64_t factor(Ref g, uint64_t counter) noexcept
{
	uint64_t x = (uint64_t{g} * 4 + counter + 1) * 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return (x ^ (x >> 31)) | 1;
}

uint64_t checksum(Ref g, uint64_t entries, uint64_t running, uint64_t held) noexcept
{
	return entries * factor(g, 0) + running * factor(g, 1) + held * factor(g, 2);
}

} // namespace

void Engine::count_entry(const Entry &e, LimitSums *sums) noexcept
{
	const bool running = e.state == State::running;
	sums->running += running;
	sums->pinned += is_pinned(e);
	if (e.group != kNil)
		sums->groups += checksum(e.group, 1, running, blocks_group(e));
}

void Engine::count_kept(const Queue &q, LimitSums *sums) noexcept
{
	sums->running += q.running;
	sums->pinned += q.pinned;
}

void Engine::count_kept(Ref g, const Group &group, LimitSums *sums) noexcept
{
	sums->groups += checksum(g, group.entries, group.running, group.held);
}

// Makes jobs startable again that waiters saw but could not take because of a limit.
void Engine::reopen(Queue &q) noexcept
{
	for (Ref i = q.startable.min; i != kNil; i = by_head().next(i))
		lanes_[i].startable_at = ++q.startable_seq;
	wake_for_startable(q);
}

// When the scheduler must check this queue's limits.
void Engine::publish_opening(Queue &q) noexcept
{
	constexpr Micros kLook = 100000; // polling interval for slots that other queues release
	const Rate &rate = q.settings.rate;
	const bool planned = q.rate_opens_at != kNever;
	if (q.startable.min == kNil)
		q.rate_opens_at = kNever;
	else if (planned || is_throttled(q))
	{
		const Micros now = platform_.mono();
		if (rate.limits() && !q.starts.open(rate, now))
			q.rate_opens_at = q.starts.opens_at(rate);
		else if (places_to_start(q) == 0 && (has_waiters(q) || q.call))
			q.rate_opens_at = std::min(q.rate_opens_at, now + kLook);
		else if (planned) // jobs may start now, but the waiters still sleep: open_due wakes them
			q.rate_opens_at = std::min(q.rate_opens_at, now);
	}
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
		set_opening(q, r, kNever);
		update_group(q, r);
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
