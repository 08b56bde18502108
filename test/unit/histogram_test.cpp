// Histograms of times, and a read-only lookup: the first job of each priority.
#include <gtest/gtest.h>

#include <numeric>

#include "core/histogram.hpp"
#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

uint64_t count(const Histogram &h) { return std::accumulate(std::begin(h.counts), std::end(h.counts), uint64_t{0}); }

TEST(Histogram, CountsInTheBucketWhoseBoundIsNotPassed)
{
	for (int i = 0; i < Histogram::kBuckets - 1; ++i)
	{
		Histogram h{};
		h.add(Histogram::kBounds[i]);
		EXPECT_EQ(h.counts[i], 1U) << i;
		h.add(Histogram::kBounds[i] + 1);
		EXPECT_EQ(h.counts[i + 1], 1U) << i;
		EXPECT_EQ(count(h), 2U);
		EXPECT_EQ(h.sum, static_cast<uint64_t>(2 * Histogram::kBounds[i] + 1));
	}
}

TEST(Histogram, AcceptsAnyClockValue)
{
	Histogram h{};
	h.add(0);
	h.add(-5);
	h.add(INT64_MIN);
	EXPECT_EQ(h.counts[0], 3U);
	EXPECT_EQ(h.sum, 0U);
	h.add(INT64_MAX);
	EXPECT_EQ(h.counts[Histogram::kBuckets - 1], 1U);
}

TEST(Histogram, BoundsAscend)
{
	EXPECT_TRUE(std::is_sorted(std::begin(Histogram::kBounds), std::end(Histogram::kBounds)));
	EXPECT_LE(sizeof(Histogram), 56U);
}

TEST(Histogram, ANewQueueHasEmptyOnes)
{
	Rig t;
	t.q().waits.add(5);
	t.q().runs.add(5);
	t.engine.free_queue(t.q());
	t.engine.init_queue(t.q(), 0, 77, "again", QueueState::active);
	EXPECT_EQ(count(t.q().waits) + count(t.q().runs) + t.q().waits.sum + t.q().runs.sum, 0U);
}

TEST(ReadyFrom, FindsTheFirstOfEachPriority)
{
	Rig t;
	Lane &l = t.engine.lane(t.lane());
	EXPECT_EQ(t.engine.ready_from(l, INT32_MIN), kNil);
	const Ref late = t.ready(9, 5), first = t.ready(3, 5);
	t.ready(4, 5);
	const Ref urgent = t.ready(7, -2), last = t.ready(1, INT32_MAX);
	EXPECT_EQ(t.engine.ready_from(l, INT32_MIN), urgent);
	EXPECT_EQ(t.engine.ready_from(l, -2), urgent);
	EXPECT_EQ(t.engine.ready_from(l, -1), first);
	EXPECT_EQ(t.engine.ready_from(l, 5), first);
	EXPECT_EQ(t.engine.ready_from(l, 6), last);
	EXPECT_EQ(t.engine.ready_from(l, INT32_MAX), last);
	t.engine.drop(t.q(), first, 0);
	t.engine.drop(t.q(), late, 0);
	EXPECT_EQ(t.engine.entry(t.engine.ready_from(l, 0)).id, 4);
	t.engine.drop(t.q(), last, 0);
	EXPECT_EQ(t.engine.ready_from(l, 6), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

} // namespace
