// Random operations, with a full recount after each.
#include <gtest/gtest.h>

#include <random>

#include "unit/driver.hpp"

namespace
{

using namespace tq::test;

struct Dice
{
	std::mt19937 *random;
	uint32_t operator()(uint32_t n) const { return (*random)() % n; }
};

void run(const Limits &limits, uint32_t seeds, int steps)
{
	for (uint32_t seed = 1; seed <= seeds; ++seed)
	{
		std::mt19937 random(seed);
		Driver<Dice> driver(limits, Dice{&random});
		for (int i = 0; i < steps; ++i)
		{
			const std::string wrong = driver.step();
			ASSERT_EQ(wrong, "") << "seed " << seed << " step " << i;
		}
		ASSERT_EQ(driver.finish(), "") << "seed " << seed;
	}
}

TEST(Random, SixteenEntries) { run({16, 6, 2, 1, 2, 2, 3}, 40, 2000); }
TEST(Random, ManyEntriesOneQueue) { run({200, 3, 1, 1, 2, 3, 16}, 8, 2000); }
TEST(Random, SeveralQueues) { run({64, 12, 4, 1, 4, 3, 8}, 15, 2000); }

} // namespace
