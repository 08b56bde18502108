// Rates as text: accepted input; malformed input is rejected.
#include <gtest/gtest.h>

#include "core/rate_text.hpp"

namespace
{

using namespace tq::core;

constexpr int64_t kSecond = 1'000'000'000;

TEST(RateText, ReadsEveryUnit)
{
	const struct
	{
		const char *text;
		int64_t interval;
		int32_t burst;
	} cases[] = {
		{"1/s", kSecond, 1},
		{"100/s", kSecond / 100, 10},
		{"100/sec", kSecond / 100, 10},
		{"19/second", kSecond / 19 + 1, 1},
		{"1000000/s", 1000, 100000},
		{"5/min", 12 * kSecond, 1},
		{"60/minute", kSecond, 1},
		{"6000/min", kSecond / 100, 10},
		{"1000/h", 3600 * kSecond / 1000, 1},
		{"1000/hour", 3600 * kSecond / 1000, 1},
		{"3/d", 28800 * kSecond, 1},
		{"1000000/day", 86400 * kSecond / 1000000, 1},
		{"  7 /  s ", kSecond / 7 + 1, 1},
		{"007/s", kSecond / 7 + 1, 1},
	};
	for (const auto &c : cases)
	{
		Rate r;
		ASSERT_TRUE(parse_rate(c.text, &r)) << c.text;
		EXPECT_EQ(r.interval, c.interval) << c.text;
		EXPECT_EQ(r.burst, c.burst) << c.text;
		EXPECT_TRUE(r.limits()) << c.text;
	}
}

TEST(RateText, RejectsInvalidTextAndChangesNothing)
{
	for (const char *text : {"", " ", "/", "1", "1/", "/s", "0/s", "1000001/s", "99999999999999999999999/s", "-1/s", "+1/s", "1.5/s", "1/ss",
							 "1/S", "1/week", "1/s x", "1/1s", "1//s", "1 1/s", "x/s", "1e3/s", "1/s/s", "0x10/s", "1\t/s", "/", "1/m"})
	{
		Rate r{42, 7};
		EXPECT_FALSE(parse_rate(text, &r)) << text;
		EXPECT_EQ(r.interval, 42) << text;
		EXPECT_EQ(r.burst, 7) << text;
	}
}

TEST(RateText, ABurstIsFullAgainWithinTenYears)
{
	Rate r;
	EXPECT_TRUE(burst_fits(r, 1000000));
	EXPECT_FALSE(burst_fits(r, 0));
	ASSERT_TRUE(parse_rate("1/d", &r));
	EXPECT_TRUE(burst_fits(r, 3652));
	EXPECT_FALSE(burst_fits(r, 3653));
	ASSERT_TRUE(parse_rate("1/s", &r));
	EXPECT_TRUE(burst_fits(r, 1000000));
}

} // namespace
