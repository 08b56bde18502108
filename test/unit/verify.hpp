// Walks every structure of an engine and compares it with a recount of the entries.
// Regime: core tests. The engine must be at rest: no other thread may use it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/engine.hpp"

namespace tq::test
{

using namespace tq::core;

class Verifier
{
public:
	explicit Verifier(const Engine &e) : e_(e) {}

	// What is wrong; empty if nothing is.
	std::string run()
	{
		entries();
		for (uint32_t i = 0; i < e_.limits().queues && bad_.empty(); ++i)
			if (e_.queue(static_cast<uint16_t>(i)).state != QueueState::free)
				queue(static_cast<uint16_t>(i));
		if (bad_.empty() && trees_ != placed_)
			fail("entries in trees: " + std::to_string(trees_) + ", should be: " + std::to_string(placed_));
		if (bad_.empty())
			workers();
		return bad_;
	}

private:
	const Engine &e_;
	std::string bad_;
	uint32_t trees_ = 0, placed_ = 0;

	bool fail(const std::string &what)
	{
		if (bad_.empty())
			bad_ = what;
		return false;
	}
	bool want(bool ok, const char *what, int64_t which = -1)
	{
		return ok || fail(std::string(what) + (which >= 0 ? " (" + std::to_string(which) + ")" : ""));
	}

	void entries()
	{
		const Limits &l = e_.limits();
		uint32_t used = 0;
		std::set<LeaseNo> leases;
		for (Ref r = 0; r < l.entries && bad_.empty(); ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home == 0)
			{
				want(e.state == State::none, "a free entry has a state", r);
				continue;
			}
			++used;
			const bool ours =
				want(e.state != State::none && e.state != State::terminal, "an entry's state", r) &&
				want(e.home == e.queue + 1, "an entry's home", r) &&
				want(e.queue < l.queues && e_.queue(e.queue).state != QueueState::free, "its queue", r) &&
				want(e.lane < l.lanes && e_.lane(e.lane).used && e_.lane(e.lane).queue == e.queue, "its lane", r);
			if (!ours)
				return;
			uint16_t q;
			want(e_.find(e_.queue(e.queue).db, e.id, &q) == r && q == e.queue, "the hash does not lead to the entry",
				 r);
			if (e.state == State::running)
			{
				want(leases.insert(e.lease).second, "a lease number twice", e.lease);
				want(e.lease < e_.db(e_.queue(e.queue).db).next_lease.load(), "a lease number to come", e.lease);
			}
			placed_ += in_tree(e);
		}
		want(e_.free_entries() == static_cast<int64_t>(l.entries) - used, "the count of free entries",
			 e_.free_entries());
	}

	static bool in_tree(const Entry &e)
	{
		if (e.state == State::ready || e.state == State::delayed)
			return e.mark == Verb::none;
		return e.state == State::running && (e.mark == Verb::none || e.mark == Verb::claim);
	}

	// Order, heap order, links, size, ends; returns the nodes in order.
	template <class LinksOf, class Less, class Rank>
	std::vector<Ref> tree(const Root &t, LinksOf links, Less less, Rank rank)
	{
		std::vector<Ref> out;
		std::vector<Ref> path;
		Ref n = t.root;
		want(n == kNil || links(n).parent == kNil, "a root has a parent");
		while ((n != kNil || !path.empty()) && bad_.empty())
		{
			for (; n != kNil; n = links(n).left)
			{
				for (const Ref child : {links(n).left, links(n).right})
					want(child == kNil || (links(child).parent == n && rank(child) <= rank(n)),
						 "a tree's links or heap", n);
				path.push_back(n);
				if (!want(path.size() <= t.size, "a tree is deeper than it is large"))
					return out;
			}
			n = path.back();
			path.pop_back();
			want(out.empty() || less(out.back(), n), "a tree's order", n);
			out.push_back(n);
			n = links(n).right;
		}
		want(out.size() == t.size, "a tree's size", t.size);
		want(t.min == (out.empty() ? kNil : out.front()), "a tree's least node");
		want(t.max == (out.empty() ? kNil : out.back()), "a tree's greatest node");
		return out;
	}

	void timers(const Root &t, uint16_t q, State state, Micros published)
	{
		const auto nodes = tree(
			t, [&](Ref r) -> const Links & { return e_.entry(r).main; },
			[&](Ref a, Ref b) {
				const Entry &x = e_.entry(a), &y = e_.entry(b);
				return x.timer != y.timer ? x.timer < y.timer : x.id < y.id;
			},
			[&](Ref r) { return mix32(static_cast<uint64_t>(e_.entry(r).id)); });
		for (const Ref r : nodes)
		{
			const Entry &e = e_.entry(r);
			want(e.state == state && e.queue == q && in_tree(e), "a stranger among the timers", r);
			want(state != State::delayed || e.has(kOverride) || e.aborts > 0 || e.timer <= e_.queue(q).evictable,
				 "what may be evicted of the timers", r);
		}
		want(published == (nodes.empty() ? kNever : e_.entry(nodes.front()).timer), "a published timer", published);
		trees_ += static_cast<uint32_t>(nodes.size());
	}

	// Waiting jobs that have an end and were never started: in the tree, or set aside by a claim.
	void expiry(const Queue &q, uint16_t qi)
	{
		const auto nodes = tree(
			q.expiry, [&](Ref r) -> const Links & { return e_.entry(r).aux; },
			[&](Ref a, Ref b) {
				const Entry &x = e_.entry(a), &y = e_.entry(b);
				return x.expires_at != y.expires_at ? x.expires_at < y.expires_at : x.id < y.id;
			},
			[&](Ref r) { return mix32(static_cast<uint64_t>(e_.entry(r).id)); });
		std::set<Ref> found(nodes.begin(), nodes.end());
		Ref prev = kNil;
		for (Ref r = q.expired_head; r != kNil && bad_.empty(); prev = r, r = e_.entry(r).aux.right)
			want(e_.entry(r).aux.left == prev && e_.entry(r).mark == Verb::expire && found.insert(r).second,
				 "the list of expired jobs", r);
		size_t should = 0;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			const bool waits = e.home == qi + 1 && (e.state == State::ready || e.state == State::delayed);
			const bool ends = waits && e.expires_at != kNever && e.attempt == 0 && !e.has(kCancelAsked) &&
							  (e.mark == Verb::none || (e.mark == Verb::expire && e.owner == kNil));
			want(ends == (found.count(r) == 1), "an entry's place among those that expire", r);
			should += ends;
		}
		want(found.size() == should, "the number of jobs that expire");
		const Micros next = q.expired_head != kNil ? 0 : nodes.empty() ? kNever : e_.entry(nodes.front()).expires_at;
		want(q.next_expiry.load() == next, "the published expiry");
	}

	void lane(const Queue &q, uint16_t qi, uint16_t li)
	{
		const Lane &l = e_.lane(li);
		const auto nodes = tree(
			l.ready, [&](Ref r) -> const Links & { return e_.entry(r).main; },
			[&](Ref a, Ref b) { return e_.entry(a).key() < e_.entry(b).key(); },
			[&](Ref r) { return mix32(static_cast<uint64_t>(e_.entry(r).id)); });
		for (const Ref r : nodes)
		{
			const Entry &e = e_.entry(r);
			want(e.state == State::ready && e.lane == li && in_tree(e), "a stranger in a lane", r);
			want(e.has(kOverride) || e.aborts > 0 || e.key() <= l.evictable, "what may be evicted from a lane", r);
		}
		trees_ += static_cast<uint32_t>(nodes.size());
		uint32_t counts[kStates] = {};
		for (Ref r = 0; r < e_.limits().entries; ++r)
			if (e_.entry(r).home != 0 && e_.entry(r).lane == li)
				++counts[static_cast<int>(e_.entry(r).state)];
		for (int s = 0; s < kStates; ++s)
			want(counts[s] == l.counts[s], "a lane's count of a state", s);
		const bool open =
			!nodes.empty() && l.paused_until == 0 && q.paused_until == 0 && e_.entry(nodes.front()).key() < l.watermark;
		want(open == l.in_startable, "a lane's place among the startable", li);
		want(l.queue == qi, "a lane's queue", li);
	}

	void queue(uint16_t qi)
	{
		const Queue &q = e_.queue(qi);
		uint32_t open = 0;
		for (uint16_t li = q.lanes; li != kNoLane && bad_.empty(); li = e_.lane(li).next)
		{
			lane(q, qi, li);
			open += e_.lane(li).in_startable;
		}
		const auto lanes = tree(
			q.startable, [&](Ref r) -> const Links & { return e_.lane(static_cast<uint16_t>(r)).startable; },
			[&](Ref a, Ref b) { return head(a) < head(b); }, [](Ref r) { return mix32(r + 1); });
		want(lanes.size() == open, "the number of startable lanes");
		timers(q.due, qi, State::delayed, q.next_due.load());
		timers(q.leases, qi, State::running, q.next_lease.load());
		expiry(q, qi);
		claims(q, qi);
		waiters(q, qi, lanes);
	}

	Key head(Ref lane) { return e_.entry(e_.lane(static_cast<uint16_t>(lane)).ready.min).key(); }

	void claims(const Queue &q, uint16_t qi)
	{
		uint32_t listed = 0, should = 0;
		Ref prev = kNil;
		for (Ref r = q.claims_head; r != kNil && bad_.empty(); prev = r, r = e_.entry(r).aux.right)
		{
			const Entry &e = e_.entry(r);
			want(e.has(kClaimListed) && e.queue == qi && e.aux.left == prev, "the list of claims", r);
			if (!want(++listed <= e_.limits().entries, "the list of claims is a ring"))
				return;
		}
		want(q.claims_tail == prev, "the end of the list of claims");
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != qi + 1)
				continue;
			const bool to_log = e.state == State::running && e.mark == Verb::none && !e.has(kLogged);
			want(to_log == e.has(kClaimListed), "an entry's place in the list of claims", r);
			should += to_log;
		}
		want(listed == should, "the length of the list of claims", listed);
		want(q.next_claim.load() == (q.claims_head == kNil ? kNever : e_.entry(q.claims_head).claimed_at),
			 "the published claim");
	}

	void waiters(const Queue &q, uint16_t qi, const std::vector<Ref> &lanes)
	{
		Ref prev = kNil;
		uint32_t linked = 0;
		const uint32_t n = e_.limits().procs * kWaitersPerProc;
		for (Ref i = q.waiters_head; i != kNil && bad_.empty(); prev = i, i = e_.waiter(i).next)
		{
			const Waiter &w = e_.waiter(i);
			want(w.linked && !w.granted && w.queue == qi && w.prev == prev, "the list of waiters", i);
			if (!want(++linked <= n, "the list of waiters is a ring"))
				return;
			// nobody sleeps beside a job he could have, unless a token is out whose holder will come back
			for (const Ref l : lanes)
				want(q.tokens > 0 || !wants(w, e_.lane(static_cast<uint16_t>(l))), "a waiter was forgotten", i);
		}
		want(q.waiters_tail == prev, "the end of the list of waiters");
		uint32_t granted = 0;
		for (Ref i = 0; i < n; ++i)
		{
			const Waiter &w = e_.waiter(i);
			granted += w.granted && w.queue == qi && w.generation == q.generation;
		}
		want(granted == q.tokens, "the number of tokens", q.tokens);
	}

	static bool wants(const Waiter &w, const Lane &l)
	{
		if (w.since >= l.startable_at)
			return false;
		for (int k = 0; k < w.nkinds; ++k)
			if (w.kinds[k] == l.kind_hash)
				return true;
		return w.nkinds == 0;
	}

	void workers()
	{
		std::vector<int32_t> running(e_.limits().workers);
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != 0 && e.state == State::running && e.worker() != kNil)
				++running[e.worker()];
		}
		for (uint32_t w = 0; w < e_.limits().workers; ++w)
			want(running[w] == e_.worker(w).running.load(), "a worker's count of running jobs", w);
	}
};

inline std::string verify(const Engine &e) { return Verifier(e).run(); }

} // namespace tq::test
