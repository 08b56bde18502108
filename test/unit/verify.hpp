// Walks every structure of an engine and compares it with a recount of the entries.
// Regime: core tests. The engine must be at rest: no other thread may use it.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "unit/rig.hpp"

namespace tq::test
{

using namespace tq::core;

class Verifier
{
public:
	explicit Verifier(const Engine &e) : e_(e) {}

	// The errors; empty if there are none.
	std::string run()
	{
		entries();
		groups();
		for (uint32_t i = 0; i < e_.limits().queues && bad_.empty(); ++i)
			if (e_.queue(static_cast<uint16_t>(i)).state != QueueState::free)
				queue(static_cast<uint16_t>(i));
		if (bad_.empty() && trees_ != placed_)
			fail("entries in trees: " + std::to_string(trees_) + ", should be: " + std::to_string(placed_));
		if (bad_.empty())
			workers();
		for (uint16_t d = 0; d < e_.limits().databases && bad_.empty(); ++d)
			lent(d);
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

	void lent(uint16_t d)
	{
		uint32_t n = 0;
		for (uint32_t i = 0; i < e_.limits().queues; ++i)
		{
			const Queue &q = e_.queue(static_cast<uint16_t>(i));
			if (q.state != QueueState::free && q.db == d && q.pinned > e_.entry_share().guaranteed)
				n += q.pinned - e_.entry_share().guaranteed;
		}
		want(n == e_.db(d).lent_entries.load(), "the count of entries of the pool of a database", d);
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
				want(e.lane < e_.lane_slots() && e_.lane(e.lane).used && e_.lane(e.lane).queue == e.queue, "its lane", r);
			if (!ours)
				return;
			uint16_t q;
			want(e_.find(e_.queue(e.queue).db, e.id, &q) == r && q == e.queue, "the hash does not lead to the entry",
				 r);
			if (e.state == State::running)
			{
				want(leases.insert(e.lease).second, "a lease number twice", e.lease);
				want(e.lease < e_.db(e_.queue(e.queue).db).next_lease.load(), "a lease number from the future", e.lease);
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
			want(e.state == state && e.queue == q && in_tree(e), "a foreign entry among the timers", r);
			want(state != State::delayed || stays(e) || e.timer <= e_.queue(q).evictable,
				 "what may be evicted of the timers", r);
		}
		want(published == (nodes.empty() ? kNever : e_.entry(nodes.front()).timer), "a published timer", published);
		trees_ += static_cast<uint32_t>(nodes.size());
	}

	// Waiting, never started jobs that have an expiry: in the tree, or set aside by a claim.
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
			want(ends == (found.count(r) == 1), "an entry's position among the expiring entries", r);
			should += ends;
		}
		want(found.size() == should, "the number of expiring jobs");
		const Micros next = q.expired_head != kNil ? 0 : nodes.empty() ? kNever : e_.entry(nodes.front()).expires_at;
		want(q.next_expiry.load() == next, "the published expiry");
	}

	// Must stay in memory.
	static bool stays(const Entry &e)
	{
		return e.has(kOverride) || Engine::has_place(e) || (e.aborts > 0 && e.after_claim != 0) ||
			   (e.state == State::delayed && e.aborts == 0 && e.group != kNil && e.has(kHeld));
	}

	std::vector<Ref> by_key(const Root &t)
	{
		const auto nodes = tree(
			t, [&](Ref r) -> const Links & { return e_.entry(r).main; },
			[&](Ref a, Ref b) { return e_.entry(a).key() < e_.entry(b).key(); },
			[&](Ref r) { return mix32(static_cast<uint64_t>(e_.entry(r).id)); });
		trees_ += static_cast<uint32_t>(nodes.size());
		return nodes;
	}

	double turn_of(Ref r) { return e_.group(e_.entry(r).group).turn; }
	bool before(Ref a, double ta, Ref b, double tb)
	{
		const Entry &x = e_.entry(a), &y = e_.entry(b);
		return std::tuple(x.priority, ta, x.key()) < std::tuple(y.priority, tb, y.key());
	}

	void lane(const Queue &q, uint16_t qi, uint16_t li)
	{
		const Lane &l = e_.lane(li);
		const auto nodes = by_key(l.ready);
		for (const Ref r : nodes)
		{
			const Entry &e = e_.entry(r);
			want(e.state == State::ready && e.lane == li && e.group == kNil && in_tree(e), "a foreign entry in a lane", r);
			want(stays(e) || e.key() <= l.evictable, "the evictable entries of a lane", r);
		}
		const auto heads = tree(
			l.heads, [&](Ref r) -> const Links & { return e_.entry(r).main; },
			[&](Ref a, Ref b) { return before(a, turn_of(a), b, turn_of(b)); },
			[&](Ref r) { return mix32(static_cast<uint64_t>(e_.entry(r).id)); });
		trees_ += static_cast<uint32_t>(heads.size());
		for (const Ref r : heads)
		{
			const Entry &e = e_.entry(r);
			want(e.state == State::ready && e.lane == li && e.group != kNil && e_.group(e.group).head == r,
				 "a stranger among a lane's heads", r);
		}
		first_of(q, l, li, nodes.empty() ? kNil : nodes.front(), heads.empty() ? kNil : heads.front());
		uint32_t counts[kStates] = {};
		for (Ref r = 0; r < e_.limits().entries; ++r)
			if (e_.entry(r).home != 0 && e_.entry(r).lane == li)
				++counts[static_cast<int>(e_.entry(r).state)];
		for (int s = 0; s < kStates; ++s)
			want(counts[s] == l.counts[s], "a lane's count of a state", s);
		want(l.queue == qi, "a lane's queue", li);
	}

	// Which of a lane's two first jobs a claim gets.
	void first_of(const Queue &q, const Lane &l, uint16_t li, Ref loose, Ref head)
	{
		const bool fair = q.settings.fair;
		if (loose != kNil && !(e_.entry(loose).key() < l.watermark))
			loose = kNil;
		if (head != kNil && (fair ? e_.entry(head).priority > l.watermark.priority : !(e_.entry(head).key() < l.watermark)))
			head = kNil;
		const bool open = (loose != kNil || head != kNil) && l.paused_until == 0 && q.paused_until == 0;
		if (!want(open == l.in_startable, "a lane's position among the startable lanes", li) || !open)
		{
			want(open || l.first == kNil, "a lane without startable jobs has a first one", li);
			return;
		}
		const double loose_turn = fair ? std::max(q.loose_turn, q.vclock) : 0; // never decreases
		want(l.first == loose || l.first == head, "a lane's first", li);
		if (l.first == loose)
			want(fair ? l.turn <= loose_turn : l.turn == 0, "a lane's turn", li);
		else
			want(l.turn == turn_of(head), "a lane's turn", li);
		if (loose != kNil && head != kNil)
			want((l.first == loose) == before(loose, l.first == loose ? l.turn : loose_turn, head, turn_of(head)),
				 "which job a lane gives first", li);
	}

	// --- groups

	void groups()
	{
		const uint32_t n = e_.limits().groups;
		const auto *shared = reinterpret_cast<const Shared *>(&e_.limits()); // its first member
		std::set<Ref> free;
		for (auto g = static_cast<Ref>(shared->free_groups.load()); g != kNil && bad_.empty(); g = e_.group(g).hash_next)
			want(g < n && free.insert(g).second && !e_.is_group(g), "the free slots of groups", g);
		for (Ref g = 0; g < n && bad_.empty(); ++g)
		{
			const Group &x = e_.group(g);
			if (e_.is_group(g) == free.contains(g))
				fail("a group's slot is lost, or used and free (" + std::to_string(g) + ")");
			// a free slot must not be found under its old key
			auto &engine = const_cast<Engine &>(e_);
			if (x.key[0] != '\0')
				want((engine.group_for(e_.queue(x.queue), x.key, false) == g) == e_.is_group(g),
					 "the hash of groups", g);
			if (e_.is_group(g))
				group(g);
		}
	}

	void group(Ref g)
	{
		const Group &x = e_.group(g);
		const Queue &q = e_.queue(x.queue);
		const QueueSettings &s = q.settings;
		if (!want(x.home == x.queue + 1 && q.state != QueueState::free, "a group's queue", g))
			return;
		uint32_t entries = 0, running = 0, held = 0, waiting = 0;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home == 0 || e.group != g)
				continue;
			want(e.queue == x.queue, "a job's group is of another queue", r);
			++entries;
			running += e.state == State::running;
			held += (e.state == State::delayed && e.has(kHeld)) ||
					(e.mark == Verb::move && (e.state == State::delayed || e.state == State::ready));
			waiting += e.state == State::ready && e.mark == Verb::none;
		}
		want(entries == x.entries, "a group's count of entries", g);
		want(running == x.running, "a group's count of running jobs", g);
		want(held == x.held, "a group's count of jobs that block it", g);
		const auto nodes = by_key(x.ready);
		for (const Ref r : nodes)
			want(e_.entry(r).group == g && e_.entry(r).state == State::ready && in_tree(e_.entry(r)) && r != x.head,
				 "a stranger in a group", r);
		want(waiting == nodes.size() + (x.head != kNil), "the jobs of a group that wait", g);
		if (x.head != kNil && !nodes.empty())
			want(e_.entry(x.head).key() < e_.entry(nodes.front()).key(), "a group's head is not its first job", g);

		// whether it may start
		const Ref next = x.head != kNil ? x.head : nodes.empty() ? kNil : nodes.front();
		const int32_t most = x.own.max_running != kUnset ? x.own.max_running : s.group_max_running;
		const uint32_t limit = most != kUnset ? static_cast<uint32_t>(most) : s.fair ? 0 : 1;
		const Rate &rate = x.own.rate.limits() ? x.own.rate : s.group_rate;
		const bool may = next != kNil && x.own.paused_until == 0 &&
						 (limit == 0 || (running < limit && (s.loose_groups || held == 0))) &&
						 e_.entry(next).key() < x.watermark;
		const Micros now = mono_now();
		const Micros at = rate.limits() ? x.bucket.opens_at(rate) : 0;
		const bool late = x.opening && x.opens_at <= now; // the scheduler opens it later
		if (x.head != kNil)
			want(may && at <= now, "a group that may not start offers a job", g);
		else if (may)
			want(at <= now ? late : x.opening && x.opens_at == at, "a group that may start offers nothing", g);

		// why it holds a slot
		const bool nothing = entries == 0 && x.watermark == kMaxKey && x.loader == kNil && !x.own.any() &&
							 x.holds == 0;
		const Micros full = rate.limits() ? x.bucket.full_by() : 0;
		if (x.resting)
			want(nothing && s.fair && x.turn > q.vclock && !x.opening, "a group is idle", g);
		else if (x.opening)
			want(late || (may && x.opens_at == at) || (nothing && x.opens_at == full), "a group waits for the time", g);
		else
			want(!nothing, "a group keeps a slot without a reason", g);
		want(s.fair || x.turn == 0, "a group's turn in a queue without turns", g);
	}

	// The queue's counters about its groups.
	void group_lists(const Queue &q)
	{
		uint32_t groups = 0, sunk = 0, loads = 0, wanted = 0, opening = 0, resting = 0;
		for (Ref g = 0; g < e_.limits().groups; ++g)
			if (e_.owns(q, g))
			{
				const Group &x = e_.group(g);
				++groups;
				sunk += x.watermark != kMaxKey;
				loads += x.loader != kNil;
				wanted += x.wanted;
				opening += x.opening;
				resting += x.resting;
			}
		want(groups == q.groups, "the count of groups with a slot", q.groups);
		want(sunk == q.paged_groups, "the count of groups on disk", q.paged_groups);
		want(loads == q.group_loads, "the count of groups being read in", q.group_loads);
		uint32_t chained = 0;
		for (Ref g = q.groups_head, before = kNil; g != kNil && chained <= groups; before = g, g = e_.group(g).next, ++chained)
			want(e_.owns(q, g) && e_.group(g).prev == before, "a foreign group in a queue's list", g);
		want(chained == groups, "the list of groups of a queue", chained);
		uint32_t paged_lanes = 0;
		for (uint16_t l = q.lanes; l != kNoLane; l = e_.lane(l).next)
			paged_lanes += e_.lane(l).watermark != kMaxKey;
		want(paged_lanes == q.paged_lanes, "the count of lanes on disk", q.paged_lanes);
		uint32_t listed = 0;
		Ref last = kNil;
		for (Ref g = q.wanted; g != kNil && listed <= wanted; last = g, g = e_.group(g).wanted_next, ++listed)
			want(e_.owns(q, g) && e_.group(g).wanted, "a foreign group among the groups to be read in", g);
		want(listed == wanted && last == q.wanted_tail, "the list of groups to be read in", listed);
		const auto links = [&](Ref g) -> const Links & { return e_.group(g).timer; };
		const auto rank = [](Ref g) { return mix32(g + 1); };
		const auto opens = tree(
			q.opening, links,
			[&](Ref a, Ref b) { return std::tuple(e_.group(a).opens_at, a) < std::tuple(e_.group(b).opens_at, b); }, rank);
		for (const Ref g : opens)
			want(e_.owns(q, g) && e_.group(g).opening, "a foreign group among the groups that wait for the time", g);
		want(opens.size() == opening, "the number of groups that wait for the time");
		const auto rests = tree(
			q.resting, links, [&](Ref a, Ref b) { return std::tuple(e_.group(a).turn, a) < std::tuple(e_.group(b).turn, b); },
			rank);
		for (const Ref g : rests)
			want(e_.owns(q, g) && e_.group(g).resting, "a foreign group among the idle groups", g);
		want(rests.size() == resting, "the number of idle groups");
		want(q.next_open.load() == std::min(q.rate_opens_at, opens.empty() ? kNever : e_.group(opens.front()).opens_at),
			 "the published opening");
		uint32_t running = 0;
		for (Ref r = 0; r < e_.limits().entries; ++r)
			running += e_.entry(r).home == e_.index_of(q) + 1 && e_.entry(r).state == State::running;
		want(running == q.running, "the count of running jobs", q.running);
		uint32_t entries = 0, pinned = 0, kinds = 0;
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != e_.index_of(q) + 1)
				continue;
			++entries;
			const bool waits = (e.state == State::ready || e.state == State::delayed) && e.mark == Verb::none;
			pinned += !waits || stays(e);
		}
		for (uint16_t l = q.lanes; l != kNoLane; l = e_.lane(l).next)
			kinds += e_.lane(l).has_kind;
		want(entries == q.entries, "the count of entries", q.entries);
		want(pinned == q.pinned, "the count of entries that cannot be evicted", q.pinned);
		want(kinds == q.kinds, "the count of kinds", q.kinds);
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
			[&](Ref a, Ref b) {
				const Lane &x = e_.lane(static_cast<uint16_t>(a)), &y = e_.lane(static_cast<uint16_t>(b));
				return before(x.first, x.turn, y.first, y.turn);
			},
			[](Ref r) { return mix32(r + 1); });
		want(lanes.size() == open, "the number of startable lanes");
		want(e_.any_startable([qi](uint16_t slot) { return slot == qi; }) == (open > 0),
			 "a queue's bit among those with startable jobs", qi);
		timers(q.due, qi, State::delayed, q.next_due.load());
		timers(q.leases, qi, State::running, q.next_lease.load());
		expiry(q, qi);
		group_lists(q);
		claims(q, qi);
		waiters(q, qi, lanes);
	}

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
			want(to_log == e.has(kClaimListed), "an entry's position in the list of claims", r);
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
		const bool open = starts_left(q) > 0;
		const Micros now = mono_now();
		const Rate &rate = q.settings.rate;
		if (rate.limits() && q.waiters_head != kNil && !lanes.empty() && !q.starts.open(rate, now))
			want(q.rate_opens_at == q.starts.opens_at(rate), "waiters wait for the rate, and no opening time is set");
		for (Ref i = q.waiters_head; i != kNil && bad_.empty(); prev = i, i = e_.waiter(i).next)
		{
			const Waiter &w = e_.waiter(i);
			want(w.linked && !w.granted && w.queue == qi && w.prev == prev, "the list of waiters", i);
			want(prev == kNil || e_.waiter(prev).since <= w.since, "the order of the waiters", i);
			if (!want(++linked <= n, "the list of waiters is a ring"))
				return;
			// no waiter sleeps beside a job that it could claim, unless a token is out; the holder of that token
			// returns
			for (const Ref l : lanes)
				want(q.tokens > 0 || !open || q.rate_opens_at <= now || !wants(w, e_.lane(static_cast<uint16_t>(l))), "a waiter was forgotten", i);
		}
		want(q.waiters_tail == prev, "the end of the list of waiters");
		uint32_t granted = 0;
		for (Ref i = 0; i < n; ++i)
		{
			const Waiter &w = e_.waiter(i);
			granted += w.granted && w.queue == qi && w.generation == q.generation;
		}
		for (uint32_t proc = 0; proc < e_.limits().procs; ++proc)
			granted += e_.token_of_watcher(proc) == qi && e_.generation_of_token(proc) == q.generation;
		want(granted == q.tokens, "the number of tokens", q.tokens);
		for (const Ref l : lanes)
			for (uint32_t proc = 0; proc < e_.limits().procs; ++proc)
				want(q.tokens > 0 || !open || q.rate_opens_at <= now || !e_.watches(proc, q, e_.lane(static_cast<uint16_t>(l)).kind_hash),
					 "a watcher was forgotten", proc);
	}

	int64_t starts_left(const Queue &q) const
	{
		const QueueSettings &s = q.settings;
		int64_t left = s.max_running > 0 ? std::max<int64_t>(int64_t{s.max_running} - q.running, 0) : INT64_MAX;
		left = std::min<int64_t>(left, e_.places_to_start(q));
		if (s.rate.limits())
			left = std::min<int64_t>(left, q.starts.open(s.rate, mono_now()) ? INT64_MAX : 0);
		return left;
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
		std::vector<int32_t> running(e_.limits().workers), own(running), asked(running);
		for (Ref r = 0; r < e_.limits().entries; ++r)
		{
			const Entry &e = e_.entry(r);
			if (e.home != 0 && e.state == State::running && e.worker() != kNil)
			{
				const bool mine = e.has(kOfWorker) && e.mark != Verb::lose && e.deadline != 0;
				++running[e.worker()];
				own[e.worker()] += mine;
				asked[e.worker()] += mine && e.has(kCancelAsked);
			}
		}
		for (uint32_t w = 0; w < e_.limits().workers; ++w)
		{
			want(running[w] == e_.worker(w).running.load(), "a worker's count of running jobs", w);
			want(own[w] == e_.worker(w).leases.load(), "a worker's count of its own leases", w);
			want(asked[w] == e_.worker(w).asked.load(), "a worker's count of its jobs asked to stop", w);
		}
	}
};

inline std::string verify(const Engine &e) { return Verifier(e).run(); }

} // namespace tq::test
