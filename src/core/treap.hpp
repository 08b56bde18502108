// An ordered tree over array indexes, without allocation. A treap with a hash of the node as its heap order is balanced
// in expectation for any order of insertion (Seidel and Aragon, 1996). The smallest and largest nodes are cached:
// inserting at either end, as queues do, is expected O(1), everything else O(log n).
// Regime: core. Locks: the lock of the nodes.
#pragma once

#include "core/types.hpp"

namespace tq::core
{

struct Links
{
	Ref left = kNil;
	Ref right = kNil;
	Ref parent = kNil;
};

struct Root
{
	Ref root = kNil;
	Ref min = kNil;
	Ref max = kNil;
	uint32_t size = 0;
};

inline uint32_t mix32(uint64_t x) noexcept
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	x ^= x >> 33;
	return static_cast<uint32_t>(x);
}

// Ops: Links &links(Ref), bool less(Ref, Ref), uint32_t rank(Ref); all noexcept.
template <class Ops> struct Treap
{
	Ops ops;

	void insert(Root &t, Ref n) noexcept
	{
		ops.links(n) = Links{};
		++t.size;
		if (t.root == kNil)
		{
			t.root = t.min = t.max = n;
			return;
		}
		if (!ops.less(n, t.max))
		{
			attach(t.max, n, false);
			t.max = n;
		}
		else if (ops.less(n, t.min))
		{
			attach(t.min, n, true);
			t.min = n;
		}
		else
		{
			Ref p = t.root;
			for (;;)
			{
				const bool left = ops.less(n, p);
				const Ref next = left ? ops.links(p).left : ops.links(p).right;
				if (next == kNil)
				{
					attach(p, n, left);
					break;
				}
				p = next;
			}
		}
		while (ops.links(n).parent != kNil && ops.rank(ops.links(n).parent) < ops.rank(n))
			rotate_up(t, n);
	}

	void remove(Root &t, Ref n) noexcept
	{
		if (t.min == n)
			t.min = next(n);
		if (t.max == n)
			t.max = prev(n);
		for (;;)
		{
			const Ref l = ops.links(n).left, r = ops.links(n).right;
			if (l == kNil && r == kNil)
				break;
			const bool use_left = r == kNil || (l != kNil && ops.rank(l) > ops.rank(r));
			rotate_up(t, use_left ? l : r);
		}
		const Ref p = ops.links(n).parent;
		if (p == kNil)
			t.root = kNil;
		else if (ops.links(p).left == n)
			ops.links(p).left = kNil;
		else
			ops.links(p).right = kNil;
		ops.links(n) = Links{};
		--t.size;
	}

	Ref next(Ref n) const noexcept { return neighbour<&Links::right, &Links::left>(n); }
	Ref prev(Ref n) const noexcept { return neighbour<&Links::left, &Links::right>(n); }

	// The last node for which `before` holds. `before` must hold up to some point of the order and not after it.
	template <class Before> Ref last(const Root &t, Before &&before) const noexcept
	{
		if (t.max != kNil && before(t.max))
			return t.max;
		Ref found = kNil;
		for (Ref n = t.root; n != kNil;)
		{
			const bool here = before(n);
			if (here)
				found = n;
			n = here ? ops.links(n).right : ops.links(n).left;
		}
		return found;
	}

  private:
	// The next node in the direction of `side`.
	template <Ref Links::*side, Ref Links::*other>
	Ref neighbour(Ref n) const noexcept
	{
		Ref r = ops.links(n).*side;
		if (r != kNil)
		{
			while (ops.links(r).*other != kNil)
				r = ops.links(r).*other;
			return r;
		}
		Ref p = ops.links(n).parent;
		while (p != kNil && ops.links(p).*side == n)
		{
			n = p;
			p = ops.links(p).parent;
		}
		return p;
	}

	void attach(Ref p, Ref n, bool left) noexcept
	{
		(left ? ops.links(p).left : ops.links(p).right) = n;
		ops.links(n).parent = p;
	}

	void rotate_up(Root &t, Ref n) noexcept
	{
		const Ref p = ops.links(n).parent;
		const Ref g = ops.links(p).parent;
		const bool left = ops.links(p).left == n;
		const Ref middle = left ? ops.links(n).right : ops.links(n).left;
		(left ? ops.links(p).left : ops.links(p).right) = middle;
		if (middle != kNil)
			ops.links(middle).parent = p;
		(left ? ops.links(n).right : ops.links(n).left) = p;
		ops.links(p).parent = n;
		ops.links(n).parent = g;
		if (g == kNil)
			t.root = n;
		else if (ops.links(g).left == p)
			ops.links(g).left = n;
		else
			ops.links(g).right = n;
	}
};

} // namespace tq::core
