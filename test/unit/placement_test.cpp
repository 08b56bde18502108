// Whether a waiting job belongs in memory.
#include <gtest/gtest.h>

#include "core/placement.hpp"

namespace tq::test
{

namespace
{

using namespace tq::core;

constexpr Vouched kVouched{.lane = {0, 100}, .tail = false, .timers = 50, .horizon = 40};

constexpr Waiting ready(JobId id, bool grouped = false)
{
	return {.key = {0, id}, .due = kNever, .delayed = false, .grouped = grouped};
}

constexpr Waiting delayed(Micros due, bool grouped = false)
{
	return {.key = {0, 1}, .due = due, .delayed = true, .grouped = grouped};
}

bool belongs(const Waiting &job, const Vouched &vouched, bool group_takes = true)
{
	return belongs_in_memory(job, vouched, [group_takes]() noexcept { return group_takes; });
}

} // namespace

TEST(Placement, KeepsAReadyJobBelowTheWatermarkOfItsLane)
{
	EXPECT_TRUE(belongs(ready(99), kVouched));
	EXPECT_FALSE(belongs(ready(100), kVouched));
	EXPECT_FALSE(belongs(ready(101), kVouched));
}

TEST(Placement, ComparesPrioritiesBeforeIds)
{
	EXPECT_TRUE(belongs({.key = {-1, 500}, .due = kNever, .delayed = false, .grouped = false}, kVouched));
	EXPECT_FALSE(belongs({.key = {1, 1}, .due = kNever, .delayed = false, .grouped = false}, kVouched));
}

TEST(Placement, KeepsEachReadyJobWhileNothingIsBehindTheLane)
{
	Vouched v = kVouched;
	v.tail = true;
	EXPECT_TRUE(belongs(ready(1'000), v));
}

TEST(Placement, LeavesAReadyJobOfAGroupToTheGroup)
{
	EXPECT_TRUE(belongs(ready(1'000, true), kVouched, true));
	EXPECT_FALSE(belongs(ready(1, true), kVouched, false));
}

TEST(Placement, KeepsADelayedJobUpToTheHorizon)
{
	EXPECT_TRUE(belongs(delayed(40), kVouched));
	EXPECT_FALSE(belongs(delayed(41), kVouched));
}

TEST(Placement, LeavesADelayedJobFromTheWatermarkOfTheTimersOnDisk)
{
	Vouched v = kVouched;
	v.timers = 30;
	EXPECT_TRUE(belongs(delayed(29), v));
	EXPECT_FALSE(belongs(delayed(30), v));
}

TEST(Placement, WantsTheGroupsConsentForADelayedJobThatIsNear)
{
	EXPECT_TRUE(belongs(delayed(40, true), kVouched, true));
	EXPECT_FALSE(belongs(delayed(40, true), kVouched, false));
}

TEST(Placement, AsksTheGroupOnlyIfItDecides)
{
	const auto asked = [](const Waiting &job) {
		int times = 0;
		static_cast<void>(belongs_in_memory(job, kVouched, [&times]() noexcept { return ++times > 0; }));
		return times;
	};
	EXPECT_EQ(asked(ready(1)), 0);
	EXPECT_EQ(asked(delayed(41, true)), 0);
	EXPECT_EQ(asked(delayed(40, false)), 0);
	EXPECT_EQ(asked(delayed(40, true)), 1);
	EXPECT_EQ(asked(ready(1, true)), 1);
}

} // namespace tq::test
