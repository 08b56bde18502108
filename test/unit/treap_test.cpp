// Compares the tree with std::set, over random operations.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "core/treap.hpp"

namespace
{

using namespace tq::core;

struct Node
{
	Links links;
	int value;
};

struct Ops
{
	std::vector<Node> *nodes;
	Links &links(Ref r) const noexcept { return (*nodes)[r].links; }
	bool less(Ref a, Ref b) const noexcept
	{
		const Node &x = (*nodes)[a], &y = (*nodes)[b];
		return x.value != y.value ? x.value < y.value : a < b;
	}
	uint32_t rank(Ref r) const noexcept { return mix32(r); }
};

struct Tree
{
	std::vector<Node> nodes;
	Root root;
	std::set<std::pair<int, Ref>> model;

	explicit Tree(size_t n) : nodes(n) {}
	Treap<Ops> treap() { return {{&nodes}}; }

	void insert(Ref r, int value)
	{
		nodes[r].value = value;
		treap().insert(root, r);
		model.emplace(value, r);
	}
	void remove(Ref r)
	{
		treap().remove(root, r);
		model.erase({nodes[r].value, r});
	}
	bool has(Ref r) const { return model.count({nodes[r].value, r}) != 0; }

	int depth(Ref n) { return n == kNil ? 0 : 1 + std::max(depth(nodes[n].links.left), depth(nodes[n].links.right)); }

	void check()
	{
		ASSERT_EQ(root.size, model.size());
		ASSERT_EQ(root.min, model.empty() ? kNil : model.begin()->second);
		ASSERT_EQ(root.max, model.empty() ? kNil : model.rbegin()->second);
		Ref r = root.min;
		for (const auto &want : model)
		{
			ASSERT_EQ(r, want.second);
			const Links &l = nodes[r].links;
			for (const Ref child : {l.left, l.right})
				if (child != kNil)
				{
					ASSERT_EQ(nodes[child].links.parent, r);
					ASSERT_LE(mix32(child), mix32(r));
				}
			r = treap().next(r);
		}
		ASSERT_EQ(r, kNil);
		r = root.max;
		for (auto it = model.rbegin(); it != model.rend(); ++it, r = treap().prev(r))
			ASSERT_EQ(r, it->second);
		ASSERT_EQ(r, kNil);
	}
};

TEST(Treap, AgreesWithSetOverRandomOperations)
{
	for (uint32_t seed = 1; seed <= 20; ++seed)
	{
		std::mt19937 random(seed);
		Tree t(64);
		for (int step = 0; step < 2000; ++step)
		{
			const Ref r = random() % 64;
			if (t.has(r))
				t.remove(r);
			else // few values, so that many are equal
				t.insert(r, static_cast<int>(random() % (seed * 5)));
			t.check();
			if (HasFatalFailure())
				FAIL() << "seed " << seed << " step " << step;
		}
	}
}

TEST(Treap, StaysShallowForSortedInput)
{
	constexpr uint32_t kN = 1U << 16;
	Tree up(kN), down(kN);
	for (Ref r = 0; r < kN; ++r)
	{
		up.treap().insert(up.root, (up.nodes[r].value = static_cast<int>(r), r));
		down.treap().insert(down.root, (down.nodes[r].value = -static_cast<int>(r), r));
	}
	EXPECT_LT(up.depth(up.root.root), 60); // expected about 2 ln n = 22, 99.9 % below 45
	EXPECT_LT(down.depth(down.root.root), 60);
}

TEST(Treap, AnyEndCanBeTakenUntilItIsEmpty)
{
	Tree t(100);
	for (Ref r = 0; r < 100; ++r)
		t.insert(r, static_cast<int>(r * 37 % 100));
	for (int i = 0; !t.model.empty(); ++i)
	{
		t.remove(i % 2 == 0 ? t.root.min : t.root.max);
		t.check();
	}
	EXPECT_EQ(t.root.root, kNil);
	t.insert(5, 1);
	t.check();
}

} // namespace
