// Claims: the job that starts next, its lease and its limits; marks of open transactions.
// Regime: core; everything is noexcept. Locks: the caller holds the queue's.
#include "core/engine.hpp"

#include <algorithm>

namespace tq::core
{

namespace
{

// Returns 0 if no reserved number is left. Other queues of the database draw concurrently.
LeaseNo draw_lease(DbCore &db) noexcept
{
	LeaseNo next = db.next_lease.load(std::memory_order_relaxed);
	do
	{
		if (next >= db.lease_limit.load())
			return 0;
	} while (!db.next_lease.compare_exchange_weak(next, next + 1, std::memory_order_relaxed));
	return next;
}

} // namespace

uint16_t Engine::next_lane(const Queue &q, const uint64_t *kinds, int nkinds, bool except) const noexcept
{
	if (nkinds == 0)
		return q.startable.min != kNil ? static_cast<uint16_t>(q.startable.min) : kNoLane;
	for (Ref i = q.startable.min; i != kNil; i = by_head().next(i))
		if ((std::find(kinds, kinds + nkinds, lanes_[i].kind_hash) != kinds + nkinds) != except)
			return static_cast<uint16_t>(i);
	return kNoLane;
}

bool Engine::claimable(const Queue &q, const uint64_t *kinds, int nkinds, Key *key, bool except) const noexcept
{
	const uint16_t l = next_lane(q, kinds, nkinds, except);
	*key = l != kNoLane ? entries_[lanes_[l].first].key() : kMaxKey;
	return l != kNoLane && starts_left(q) > 0;
}

Ref Engine::claim(Queue &q, const ClaimTerms &t, bool *held_back) noexcept
{
	if (q.startable.min == kNil && q.resting.min != kNil)
		advance(q, groups_[q.resting.max].turn); // nothing is startable: advance past all turns
	const uint16_t l = next_lane(q, t.kinds, t.nkinds, t.except);
	if (l == kNoLane || starts_left(q) == 0)
		return kNil;
	const Ref r = lanes_[l].first;
	if (held_back != nullptr && wants_to_be_alone(entries_[r]))
	{
		*held_back = true;
		return kNil;
	}
	return start(q, r, t) ? r : kNil;
}

bool Engine::claim_own(Queue &q, Ref r, const ClaimTerms &t) noexcept
{
	const Entry &own = entries_[r];
	const auto is_paused = [&t](Micros paused_until) noexcept { return paused_until != 0 && paused_until > t.wall; };
	if (is_paused(q.paused_until) || is_paused(lanes_[own.lane].paused_until) || starts_left(q) == 0)
		return false;
	if (own.group != kNil)
	{
		const Group &g = groups_[own.group];
		const Block block = blocked(q, g); // the first reason: `held` and `disk` do not matter here, but hide the rate
		const Rate &rate = group_rate(q, g);
		if (block == Block::paused || block == Block::running ||
			(rate.limits() && !g.bucket.open(rate, platform_.mono())))
			return false;
	}
	if (!start(q, r, t))
		return false;
	change(q, r, [](Entry &e) noexcept { e.timer = kNever; });
	return true;
}

// Moves an entry into running, marked by the owner. False if no lease number is left.
bool Engine::start(Queue &q, Ref r, const ClaimTerms &t) noexcept
{
	const LeaseNo lease = draw_lease(dbs_[q.db]);
	if (lease == 0)
		return false;
	change(q, r, [&](Entry &e) noexcept {
		uint32_t ms = t.lease_ms;
		if (ms == 0)
			ms = q.settings.lease_ms > 0 ? static_cast<uint32_t>(q.settings.lease_ms) : t.default_lease_ms;
		e.state = State::running;
		e.mark = Verb::claim;
		e.pending = State::running;
		e.owner = t.owner;
		e.lease = lease;
		e.lease_ms = ms;
		e.deadline = e.timer = t.mono + static_cast<Micros>(ms) * 1000;
		e.claimed_at = t.wall;
		e.set_worker(t.worker);
		e.hard_deadline = kNever;
		e.flags &= static_cast<uint16_t>(
			~(kLogged | kBound | kOfWorker | kHandedOver | kClaimEnded | kHardTimeout | kHeld | kJournalFirst |
			  kFlushed));
		const int64_t timeout = q.settings.timeout_ms != kUnset ? q.settings.timeout_ms : t.default_timeout_ms;
		if (timeout > 0)
			set_hard_deadline(e, t.mono + timeout * 1000);
		if (t.binding != Binding::none)
			e.flags |= t.binding == Binding::session ? kBound : kOfWorker;
		if (e.attempt < UINT16_MAX)
			++e.attempt;
		++e.step;
		e.after_claim = 0;
		charge(q, e);
	});
	if (q.settings.rate.limits())
		publish_opening(q);
	return true;
}

void Engine::set_limits(Queue &q, Ref r, uint32_t lease_ms, Micros timeout, Micros mono) noexcept
{
	const bool waits = entries_[r].timer == kNever; // for start_lease()
	change(q, r, [&](Entry &e) noexcept {
		if (lease_ms != 0 && e.deadline != 0)
		{
			e.lease_ms = lease_ms;
			e.deadline = mono + static_cast<Micros>(lease_ms) * 1000;
		}
		e.timer = e.deadline != 0 ? e.deadline : e.timer;
		// an entry with a cancel request keeps its remaining time
		if (timeout != 0)
			set_hard_deadline(e, e.has(kCancelAsked) && e.has(kHardTimeout) ? std::min(e.hard_deadline, mono + timeout)
																			: mono + timeout);
		else if (e.has(kHardTimeout))
			e.timer = std::min(e.timer, e.hard_deadline);
		if (waits)
			e.timer = kNever;
	});
}

MarkResult Engine::mark(Queue &q, Ref r, uint32_t owner, Verb verb, State pending) noexcept
{
	const Entry &e = entries_[r];
	if (e.state == State::placeholder || e.state == State::committing || marked_by_other(e, owner))
		return MarkResult::busy;
	set_mark(q, r, owner, verb, pending);
	return MarkResult::ok;
}

} // namespace tq::core
