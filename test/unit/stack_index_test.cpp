// Compares the index with a linear search, over random pushes and pops.
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/stack_index.hpp"

namespace tq::test
{

namespace
{

using core::StackIndex;

// An index with its memory.
struct Indexed
{
	std::vector<int32_t> memory;
	StackIndex index;

	explicit Indexed(int32_t capacity) : memory(StackIndex::words(capacity)) { index.attach(memory.data(), capacity); }
};

// The elements with a given hash, in chain order: newest first.
std::vector<int32_t> found(const StackIndex &index, const std::vector<uint64_t> &stack, uint64_t hash)
{
	std::vector<int32_t> out;
	for (int32_t i = index.last(hash); i != StackIndex::kNone; i = index.before(i))
		if (stack[static_cast<size_t>(i)] == hash)
			out.push_back(i);
	return out;
}

std::vector<int32_t> searched(const std::vector<uint64_t> &stack, uint64_t hash)
{
	std::vector<int32_t> out;
	for (size_t i = stack.size(); i-- > 0;)
		if (stack[i] == hash)
			out.push_back(static_cast<int32_t>(i));
	return out;
}

} // namespace

TEST(StackIndex, AgreesWithALinearSearch)
{
	std::mt19937_64 random(1);
	for (const int32_t capacity : {2, 64, 1024})
	{
		Indexed x(capacity);
		std::vector<uint64_t> stack;
		for (int step = 0; step < 20000; ++step)
		{
			if (stack.size() < static_cast<size_t>(capacity) && (stack.empty() || random() % 8 < 5))
			{
				stack.push_back(random() % 100);
				x.index.push(stack.back());
			}
			else
			{
				x.index.pop(stack.back());
				stack.pop_back();
			}
			ASSERT_EQ(x.index.size(), static_cast<int32_t>(stack.size()));
			const uint64_t hash = random() % 100;
			ASSERT_EQ(found(x.index, stack, hash), searched(stack, hash))
				<< "capacity " << capacity << ", step " << step;
		}
	}
}

TEST(StackIndex, StartsEmptyAgain)
{
	Indexed x(16);
	for (uint64_t i = 0; i < 16; ++i)
		x.index.push(i);
	x.index.attach(x.memory.data(), 16);
	EXPECT_EQ(x.index.size(), 0);
	for (uint64_t i = 0; i < 16; ++i)
		EXPECT_EQ(x.index.last(i), StackIndex::kNone);
}

TEST(StackIndex, SpreadsNeighbouringNumbers)
{
	constexpr int32_t kCapacity = 1 << 16;
	Indexed x(kCapacity);
	for (uint64_t i = 0; i < kCapacity; ++i)
		x.index.push(1'000'000 + i);
	int32_t longest = 0;
	for (uint64_t i = 0; i < kCapacity; ++i)
	{
		int32_t length = 0;
		for (int32_t e = x.index.last(1'000'000 + i); e != StackIndex::kNone; e = x.index.before(e))
			++length;
		longest = std::max(longest, length);
	}
	EXPECT_LE(longest, 3);
}

} // namespace tq::test
