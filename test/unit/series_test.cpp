// Counts by minute: what was counted is found again, at the resolution that the memory allows.
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "core/series.hpp"

namespace tq::test
{

using namespace core;

namespace
{

constexpr int64_t kStart = 14'000'000 / 60 * 60; // some minute at which an hour begins

SeriesCounts enqueued(uint32_t n)
{
	SeriesCounts c{};
	c.totals[0] = n;
	return c;
}

class SeriesTest : public ::testing::Test
{
protected:
	void make(uint32_t queues, uint32_t pages)
	{
		memory_.assign(Series::size(queues, pages) + 64, 0);
		auto at = reinterpret_cast<uintptr_t>(memory_.data());
		series.create(memory_.data() + (64 - at % 64), queues, pages);
		total.assign(queues, 0);
	}

	void count(uint32_t slot, int64_t minute, uint32_t n)
	{
		total[slot] += n;
		series.sample(slot, owner(slot), minute, enqueued(total[slot]));
	}

	static SeriesOwner owner(uint32_t slot) { return {5, 6, static_cast<int32_t>(slot) + 1}; }

	// minute -> (minutes, events), of what was sampled
	std::map<int64_t, std::pair<uint32_t, uint32_t>> read(uint32_t slot, int64_t from = 0)
	{
		std::map<int64_t, std::pair<uint32_t, uint32_t>> found;
		series.visit(slot, owner(slot), from, 0, enqueued(total[slot]),
					 [&](int64_t at, uint32_t step, const SeriesCounts &c) {
						 EXPECT_TRUE(found.emplace(at, std::pair(step, c.totals[0])).second);
					 });
		return found;
	}

	uint64_t sum(uint32_t slot)
	{
		uint64_t all = 0;
		for (const auto &[at, point] : read(slot))
			all += point.second;
		return all;
	}

	Series series;
	std::vector<uint32_t> total;

private:
	std::vector<char> memory_;
};

} // namespace

TEST_F(SeriesTest, KeepsEachMinuteWhileMemorySuffices)
{
	make(2, 100);
	for (int m = 0; m < 1440; ++m)
		count(0, kStart + m, static_cast<uint32_t>(m % 7));
	const auto found = read(0);
	for (int m = 0; m < 1440; ++m)
		if (m % 7 != 0)
		{
			EXPECT_EQ(found.at(kStart + m), std::pair(1U, static_cast<uint32_t>(m % 7)));
		}
	EXPECT_EQ(read(0, kStart + 1439).size(), 1U);
	EXPECT_EQ(series.free_pages(), 100U - 24U);
}

TEST_F(SeriesTest, ShowsWhatWasNotSampledYet)
{
	make(1, 4);
	series.visit(0, owner(0), 0, 77, enqueued(3), [](int64_t at, uint32_t step, const SeriesCounts &c) {
		EXPECT_EQ(at, 77);
		EXPECT_EQ(step, 1U);
		EXPECT_EQ(c.totals[0], 3U);
	});
	count(0, kStart, 3);
	EXPECT_EQ(read(0).size(), 1U);
}

TEST_F(SeriesTest, MinutesWithoutEventsNeedNoPage)
{
	make(1, 4);
	for (int m = 0; m < 100000; ++m)
		count(0, kStart + m, 0);
	EXPECT_EQ(series.free_pages(), 4U);
}

TEST_F(SeriesTest, MergesOldPagesAndLosesNoCount)
{
	make(3, 20);
	for (int m = 0; m < 1440; ++m)
		for (uint32_t slot = 0; slot < 3; ++slot)
			count(slot, kStart + m, slot + 1);
	for (uint32_t slot = 0; slot < 3; ++slot)
	{
		EXPECT_EQ(sum(slot), 1440U * (slot + 1));
		for (const auto &[at, point] : read(slot))
		{
			EXPECT_LE(point.second, point.first * (slot + 1)) << "a point has the counts of its own minutes";
			EXPECT_EQ(at % point.first, 0);
		}
	}
	EXPECT_LT(read(0).rbegin()->second.first, read(0).begin()->second.first) << "recent counts are the finest";
}

TEST_F(SeriesTest, DropsTheOldestWhenNothingCanBeMerged)
{
	make(8, 4);
	for (int m = 0; m < 3000; ++m)
		for (uint32_t slot = 0; slot < 8; ++slot)
			count(slot, kStart + m, 1);
	uint64_t all = 0;
	for (uint32_t slot = 0; slot < 8; ++slot)
		all += sum(slot);
	EXPECT_GT(all, 0U);
}

TEST_F(SeriesTest, ForgetsCountsOlderThanADayWhenItNeedsPages)
{
	make(2, 24);
	for (int h = 0; h < 24; ++h)
		count(0, kStart + h * 60, 1);
	count(1, kStart + 24 * 60 + 59, 1);
	EXPECT_EQ(sum(1), 1U);
	EXPECT_EQ(sum(0), 24U) << "the first hour has not been over for a day";
	make(2, 24);
	for (int h = 0; h < 24; ++h)
		count(0, kStart + h * 60, 1);
	count(1, kStart + 25 * 60, 1);
	EXPECT_EQ(sum(0), 23U);
	EXPECT_EQ(read(0).begin()->second.first, 1U) << "nothing had to be merged";
}

TEST_F(SeriesTest, CountsForTheNewestPageWhenTheClockGoesBack)
{
	make(1, 4);
	count(0, kStart + 70, 1);
	count(0, kStart + 5, 2);
	EXPECT_EQ(sum(0), 3U);
	EXPECT_EQ(read(0).begin()->first, kStart + 60);
}

TEST_F(SeriesTest, AnotherQueueInTheSlotStartsEmpty)
{
	make(1, 4);
	count(0, kStart, 5);
	series.sample(0, {5, 6, 99}, kStart + 1, enqueued(2));
	EXPECT_EQ(sum(0), total[0]) << "all of the counters, since nothing of the old queue was kept";
	EXPECT_EQ(series.free_pages(), 3U);
	uint32_t n = 0;
	series.visit(0, {5, 6, 99}, 0, 0, enqueued(2), [&](int64_t, uint32_t, const SeriesCounts &c) { n += c.totals[0]; });
	EXPECT_EQ(n, 2U);
}

TEST_F(SeriesTest, CountersThatWereResetCountFromZero)
{
	make(1, 4);
	count(0, kStart, 50);
	series.sample(0, owner(0), kStart + 1, enqueued(7));
	total[0] = 7;
	EXPECT_EQ(sum(0), 57U);
}

TEST_F(SeriesTest, CountersThatWrapCountOn)
{
	make(1, 4);
	SeriesCounts now{};
	now.totals[0] = UINT32_MAX - 2;
	now.totals[1] = 1'000'000;
	series.sample(0, owner(0), kStart, now);
	now.totals[0] = 4;
	now.totals[1] += 5;
	series.sample(0, owner(0), kStart + 1, now);
	int points = 0;
	series.visit(0, owner(0), kStart + 1, 0, now, [&](int64_t, uint32_t, const SeriesCounts &c) {
		++points;
		EXPECT_EQ(c.totals[0], 7U);
		EXPECT_EQ(c.totals[1], 5U);
	});
	EXPECT_EQ(points, 1);
}

TEST_F(SeriesTest, SavedPagesReturnToTheirQueues)
{
	make(2, 30);
	for (int m = 0; m < 200; ++m)
	{
		count(0, kStart + m, 1);
		count(1, kStart + m, 2);
	}
	for (int restarts = 0; restarts < 2; ++restarts) // the first ends before a queue adopts its pages
	{
		std::vector<SeriesPage> saved;
		series.visit_pages([&](const SeriesPage &p) { saved.push_back(p); });
		make(2, 30);
		for (const SeriesPage &p : saved)
			series.restore(p);
	}
	series.adopt([](const SeriesOwner &o) { return int64_t{o.queue == 1 ? 1 : -1}; });
	EXPECT_EQ(series.free_pages(), 30U - 8U) << "the other queue's pages wait for it";
	uint32_t n = 0;
	series.visit(1, owner(0), 0, 0, {}, [&](int64_t, uint32_t, const SeriesCounts &c) { n += c.totals[0]; });
	EXPECT_EQ(n, 200U);
}

TEST(Quantile, InterpolatesWithinABucket)
{
	uint64_t counts[Histogram::kBuckets] = {};
	EXPECT_EQ(quantile(counts, 0.5), -1);
	counts[0] = 100; // up to 1 ms
	EXPECT_EQ(quantile(counts, 0.5), 500);
	counts[1] = 100; // 1 to 5 ms
	EXPECT_EQ(quantile(counts, 0.75), 3000);
	counts[Histogram::kBuckets - 1] = 1000;
	EXPECT_EQ(quantile(counts, 0.99), 7'200'000'000);
}

} // namespace tq::test
