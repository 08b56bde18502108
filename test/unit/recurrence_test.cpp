// Fire times of a schedule: `every` and its anchor, start and end, catch-up after a pause, and jitter.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/cron_text.hpp"
#include "core/recurrence.hpp"

namespace
{

using namespace tq::core;

constexpr Micros kMinute = 60 * kSecond;
constexpr Micros kHour = 60 * kMinute;

Recurrence every(Micros length, Micros anchor = 0)
{
	Recurrence r{};
	r.every = length;
	r.anchor = anchor;
	r.last = kNever;
	return r;
}

Recurrence by_cron(const char *text)
{
	Recurrence r{};
	r.by_cron = true;
	CronError e{};
	EXPECT_TRUE(parse_cron(text, &r.cron, &e)) << text;
	r.zone = kUtc;
	r.last = kNever;
	return r;
}

struct Answer
{
	std::vector<Micros> times;
	int64_t missed;
	Micros last;
	bool operator==(const Answer &) const = default;
};

Answer due(const Recurrence &r, Micros from, Micros now, CatchUp catch_up, int most = 100, Micros late = kMinute)
{
	std::vector<Micros> times(static_cast<size_t>(most));
	const Due d = due_times(r, from, now, {catch_up, late, most}, times.data());
	times.resize(static_cast<size_t>(d.n));
	return {times, d.missed, d.last};
}

// A simple reference implementation.
Answer naive(const Recurrence &r, Micros from, Micros now, CatchUp catch_up, int most, Micros late)
{
	std::vector<Micros> all;
	for (Micros t = next_time(r, from); t <= now; t = next_time(r, t))
		all.push_back(t);
	if (all.empty())
		return {{}, 0, kNever};
	const Micros last = all.back();
	size_t keep = catch_up == CatchUp::all ? static_cast<size_t>(most) : 1;
	if (catch_up == CatchUp::none && now - last > late)
		keep = 0;
	const size_t drop = all.size() > keep ? all.size() - keep : 0;
	all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(drop));
	return {all, static_cast<int64_t>(drop), last};
}

TEST(Recurrence, EveryCountsFromItsAnchor)
{
	const Recurrence r = every(10 * kSecond, 3 * kSecond);
	EXPECT_EQ(next_time(r, 0), 3 * kSecond);
	EXPECT_EQ(next_time(r, 3 * kSecond - 1), 3 * kSecond);
	EXPECT_EQ(next_time(r, 3 * kSecond), 13 * kSecond);
	EXPECT_EQ(next_time(r, 12 * kSecond), 13 * kSecond);
	EXPECT_EQ(next_time(r, 1003 * kSecond), 1013 * kSecond);
}

// The distance between the first and the last timestamp overflows a signed number.
TEST(Recurrence, EveryFromOneEndOfTimeToTheOther)
{
	constexpr Micros kFirst = -211'813'488'000'000'000, kLast = 9'223'371'331'199'999'999;
	Recurrence r = every(10 * kSecond, kFirst);
	const Micros next = next_time(r, kLast);
	EXPECT_GT(next, kLast);
	EXPECT_LE(next, kLast + 10 * kSecond);
	EXPECT_EQ((static_cast<uint64_t>(next) - static_cast<uint64_t>(kFirst)) % static_cast<uint64_t>(r.every), 0U);
}

TEST(Recurrence, StartAndEndAreIncluded)
{
	Recurrence r = by_cron("0 * * * *");
	r.first = 2 * kHour;
	r.last = 4 * kHour;
	EXPECT_EQ(next_time(r, 0), 2 * kHour);
	EXPECT_EQ(next_time(r, 2 * kHour), 3 * kHour);
	EXPECT_EQ(next_time(r, 3 * kHour), 4 * kHour);
	EXPECT_EQ(next_time(r, 4 * kHour), kNever);
	r.first += 1;
	EXPECT_EQ(next_time(r, 0), 3 * kHour);
	r.last -= 1;
	EXPECT_EQ(next_time(r, 3 * kHour), kNever);
	Recurrence e = every(kHour);
	e.first = 90 * kMinute;
	EXPECT_EQ(next_time(e, 0), 2 * kHour);
}

TEST(Recurrence, DueTimes)
{
	const Recurrence r = every(kHour);
	for (const CatchUp c : {CatchUp::none, CatchUp::latest, CatchUp::all})
	{
		EXPECT_EQ(due(r, 0, kHour - 1, c), (Answer{{}, 0, kNever}));
		EXPECT_EQ(due(r, 0, kHour, c), (Answer{{kHour}, 0, kHour})) << "in time";
		EXPECT_EQ(due(r, kHour, 0, c), (Answer{{}, 0, kNever})) << "a clock that was set back";
	}
	const Micros now = 5 * kHour + 30 * kMinute;
	EXPECT_EQ(due(r, kHour, now, CatchUp::none), (Answer{{}, 4, 5 * kHour}));
	EXPECT_EQ(due(r, kHour, now, CatchUp::none, 100, kHour), (Answer{{5 * kHour}, 3, 5 * kHour}));
	EXPECT_EQ(due(r, kHour, now, CatchUp::latest), (Answer{{5 * kHour}, 3, 5 * kHour}));
	EXPECT_EQ(due(r, kHour, now, CatchUp::all), (Answer{{2 * kHour, 3 * kHour, 4 * kHour, 5 * kHour}, 0, 5 * kHour}));
	EXPECT_EQ(due(r, kHour, now, CatchUp::all, 3), (Answer{{3 * kHour, 4 * kHour, 5 * kHour}, 1, 5 * kHour}));
	EXPECT_EQ(due(r, kHour, now, CatchUp::all, 1), (Answer{{5 * kHour}, 3, 5 * kHour}));
	EXPECT_EQ(due(r, kHour, kHour + kMinute + 1, CatchUp::none), (Answer{{}, 0, kNever}));
}

TEST(Recurrence, AnEndDuringTheDowntime)
{
	Recurrence r = every(kHour);
	r.last = 3 * kHour;
	EXPECT_EQ(due(r, kHour, 9 * kHour, CatchUp::latest), (Answer{{3 * kHour}, 1, 3 * kHour}));
	EXPECT_EQ(due(r, 3 * kHour, 9 * kHour, CatchUp::latest), (Answer{{}, 0, kNever}));
}

TEST(Recurrence, AYearOfSecondsIsNotScanned)
{
	const Recurrence r = every(kSecond);
	const Micros now = 365 * 24 * kHour + 1;
	const Answer a = due(r, 0, now, CatchUp::all, 3);
	EXPECT_EQ(a.times, (std::vector<Micros>{now - 1 - 2 * kSecond, now - 1 - kSecond, now - 1}));
	EXPECT_EQ(a.missed, kMostMissed - 3);
	const Answer b = due(by_cron("* * * * * *"), 0, now, CatchUp::latest);
	EXPECT_EQ(b.times, (std::vector<Micros>{now - 1}));
	EXPECT_GE(b.missed, kMostMissed - 1);
	// counting stops at the last timestamp
	const Answer c = due(r, 0, kMostMissed * kSecond, CatchUp::all, 2);
	EXPECT_EQ(c.times, (std::vector<Micros>{(kMostMissed - 1) * kSecond, kMostMissed * kSecond}));
	EXPECT_EQ(c.missed, kMostMissed - 2);
}

TEST(Recurrence, AgreesWithAFullScan)
{
	std::mt19937_64 random(20261120);
	const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
	const char *const crons[] = {"* * * * *", "*/7 3-9 * * *", "30 */2 * * *", "0 0 * * MON", "15,45 * 1-7 * *"};
	for (int i = 0; i < 3000; ++i)
	{
		// at most kMostMissed times in two days
		Recurrence r = below(2) == 0 ? every((20 + below(5000)) * kSecond, below(kHour)) : by_cron(crons[below(5)]);
		if (below(4) == 0)
			r.first = below(1000) * kMinute;
		if (below(4) == 0)
			r.last = below(3000) * kMinute;
		const Micros from = below(48 * kHour), now = from + below(48 * kHour);
		const auto c = static_cast<CatchUp>(below(3));
		const int most = static_cast<int>(1 + below(20));
		const Micros late = below(2 * kHour);
		ASSERT_EQ(due(r, from, now, c, most, late), naive(r, from, now, c, most, late)) << i;
	}
}

TEST(Recurrence, TheRandomPartIsSpreadAndKept)
{
	std::vector<int> hits(10);
	for (int i = 0; i < 10000; ++i)
	{
		const Micros part = spread(static_cast<uint64_t>(i % 7), i * kMinute, 10 * kSecond);
		ASSERT_GE(part, 0);
		ASSERT_LT(part, 10 * kSecond);
		++hits[static_cast<size_t>(part / kSecond)];
	}
	for (const int n : hits)
		EXPECT_NEAR(n, 1000, 150);
	EXPECT_EQ(spread(7, kHour, kMinute), spread(7, kHour, kMinute));
	EXPECT_NE(spread(7, kHour, kMinute), spread(8, kHour, kMinute));
	EXPECT_EQ(spread(7, kHour, 0), 0);
	EXPECT_EQ(spread(7, kHour, 1), 0);
}

} // namespace
