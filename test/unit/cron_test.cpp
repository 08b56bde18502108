// Cron expressions: accepted input, errors with their position, and fire times. Fire times are compared with a scan of
// every second in zones with clock changes.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "core/cron_text.hpp"
#include "unit/clock.hpp"

namespace
{

using namespace tq::core;
using tq::test::Clock;

constexpr Seconds kDay = 86400;
constexpr Seconds kHour = 3600;

// Seconds since 2000 of a date in 2000, a leap year that starts on a Saturday.
constexpr Seconds at(int day_of_year, int hour = 0, int minute = 0, int second = 0)
{
	return (day_of_year - 1) * kDay + hour * kHour + minute * 60 + second;
}

Cron read(const std::string &text)
{
	Cron c{};
	CronError e{};
	EXPECT_TRUE(parse_cron(text.c_str(), &c, &e))
		<< text << ": position " << e.position << ": " << (e.text != nullptr ? e.text : "");
	return c;
}

Seconds next(const std::string &text, Seconds from, const Zone &zone = kUtc)
{
	const Micros fire = next_fire(read(text), from * 1'000'000, zone);
	EXPECT_TRUE(fire == kNever || fire % 1'000'000 == 0);
	return fire == kNever ? -1 : fire / 1'000'000;
}

bool same(const std::string &a, const std::string &b)
{
	const Cron x = read(a), y = read(b);
	Seconds from = 0;
	for (int i = 0; i < 200; ++i)
	{
		const Micros next_x = next_fire(x, from * 1'000'000, kUtc);
		if (next_x != next_fire(y, from * 1'000'000, kUtc))
			return false;
		if (next_x == kNever)
			return true;
		from = next_x / 1'000'000;
	}
	return true;
}

TEST(Cron, Reads)
{
	const struct
	{
		const char *text, *means;
	} cases[] = {
		{"@yearly", "0 0 1 1 *"},
		{"@annually", "0 0 1 1 *"},
		{"@monthly", "0 0 1 * *"},
		{"@weekly", "0 0 * * 0"},
		{"@daily", "0 0 * * *"},
		{" @Midnight ", "0 0 * * *"},
		{"@HOURLY", "0 * * * *"},
		{"0 5 * * *", "0 0 5 * * *"},
		{"\t0  5 *\n* * ", "0 5 * * *"},
		{"*/15 * * * *", "0,15,30,45 * * * *"},
		{"7/20 * * * *", "7,27,47 * * * *"},
		{"10-30/7 * * * *", "10,17,24 * * * *"},
		{"5,1,3-4,3 * * * *", "1,3,4,5 * * * *"},
		{"*,5 * * * *", "* * * * *"},
		{"0 0 * jan,Feb-APR,12 *", "0 0 * 1,2,3,4,12 *"},
		{"0 0 * * mon-FRI", "0 0 * * 1-5"},
		{"0 0 * * 7", "0 0 * * 0"},
		{"0 0 * * 5-7", "0 0 * * 0,5,6"},
		{"0 0 * * FRI-SUN", "0 0 * * 0,5,6"},
		{"0 0 * * SUN-TUE", "0 0 * * 0-2"},
		{"0 0 * * 0-7", "0 0 * * *"},
		{"0 0 * * 1/2", "0 0 * * 1,3,5,7"},
		{"0 0 * * 6/7", "0 0 * * 6"},
		{"0 0 l * *", "0 0 L * *"},
		{"0 0 * * 0L", "0 0 * * sunl"},
		{"0 0 * * 7#2,7L", "0 0 * * SUN#2,SUNL"},
		{"59 59 23 31 12 *", "59 59 23 31 DEC *"},
		{"00 007 * * *", "0 7 * * *"},
	};
	for (const auto &c : cases)
		EXPECT_TRUE(same(c.text, c.means)) << c.text;
	EXPECT_FALSE(same("0 5 * * *", "5 0 * * *"));
}

TEST(Cron, ReportsErrorsAndTheirPosition)
{
	const struct
	{
		const char *text;
		CronField field;
		int position;
		const char *part;
	} cases[] = {
		{"", CronField::whole, 1, "five fields"},
		{"   ", CronField::whole, 4, "five fields"},
		{"* * * *", CronField::whole, 8, "five fields"},
		{"* * * * * * *", CronField::whole, 13, "five fields"},
		{"@reboot", CronField::whole, 1, "Known are"},
		{"@dailyx", CronField::whole, 1, "Known are"},
		{"@", CronField::whole, 1, "Known are"},
		{" @daily 5", CronField::whole, 9, "Nothing comes after"},
		{"60 * * * *", CronField::minute, 1, "0 to 59"},
		{"60 * * * * *", CronField::second, 1, "Seconds"},
		{"* 24 * * *", CronField::hour, 3, "0 to 23"},
		{"* * 0 * *", CronField::day, 5, "1 to 31"},
		{"* * 32 * *", CronField::day, 5, "1 to 31"},
		{"* * * 0 *", CronField::month, 7, "1 to 12"},
		{"* * * 13 *", CronField::month, 7, "1 to 12"},
		{"* * * * 8", CronField::weekday, 9, "0 to 7"},
		{"* * * FOO *", CronField::month, 7, "JAN"},
		{"* * * MON *", CronField::month, 7, "JAN"},
		{"* * * * JAN", CronField::weekday, 9, "SUN"},
		{"* * * * MONDAY", CronField::weekday, 12, "An item"},
		{"* * * * MO", CronField::weekday, 9, "SUN"},
		{"x * * * *", CronField::minute, 1, "0 to 59"},
		{"-1 * * * *", CronField::minute, 1, "An item"},
		{"1- * * * *", CronField::minute, 3, "An item"},
		{"1-2-3 * * * *", CronField::minute, 4, "An item"},
		{"1,,2 * * * *", CronField::minute, 3, "An item"},
		{"1, * * * *", CronField::minute, 3, "An item"},
		{",1 * * * *", CronField::minute, 1, "An item"},
		{"** * * * *", CronField::minute, 2, "An item"},
		{"*5 * * * *", CronField::minute, 2, "An item"},
		{"5* * * * *", CronField::minute, 2, "An item"},
		{"*-5 * * * *", CronField::minute, 2, "An item"},
		{"1.5 * * * *", CronField::minute, 2, "An item"},
		{"*/ * * * *", CronField::minute, 3, "step"},
		{"*/0 * * * *", CronField::minute, 3, "step"},
		{"*/60 * * * *", CronField::minute, 3, "step"},
		{"*/5/5 * * * *", CronField::minute, 4, "An item"},
		{"* */24 * * *", CronField::hour, 5, "step"},
		{"* * * */13 *", CronField::month, 9, "step"},
		{"* 5,22-2 * * *", CronField::hour, 5, "backwards"},
		{"* * * DEC-JAN *", CronField::month, 7, "backwards"},
		{"* * * * SAT-MON", CronField::weekday, 9, "backwards"},
		{"99999999999999999999 * * * *", CronField::minute, 1, "0 to 59"},
		{"* * 15W * *", CronField::day, 7, "W (the weekday nearest"},
		{"* * LW * *", CronField::day, 5, "L stands alone"},
		{"* * W * *", CronField::day, 5, "W (the weekday nearest"},
		{"* * L-3 * *", CronField::day, 5, "L stands alone"},
		{"* * 3-L * *", CronField::day, 7, "L stands alone"},
		{"* * 5L * *", CronField::day, 6, "L stands alone"},
		{"* * ? * *", CronField::day, 5, "write *"},
		{"* * * * ?", CronField::weekday, 9, "write *"},
		{"* L * * *", CronField::hour, 3, "An item"},
		{"* * * * L", CronField::weekday, 9, "behind one weekday"},
		{"* * * * 1-5L", CronField::weekday, 12, "behind one weekday"},
		{"* * * * 5LL", CronField::weekday, 11, "behind one weekday"},
		{"* * * * 5L/2", CronField::weekday, 11, "An item"},
		{"* * * * #2", CronField::weekday, 9, "between one weekday"},
		{"* * * * 1-5#2", CronField::weekday, 12, "between one weekday"},
		{"* * * * 5#", CronField::weekday, 11, "1 to 5"},
		{"* * * * 5#0", CronField::weekday, 11, "1 to 5"},
		{"* * * * 5#6", CronField::weekday, 11, "1 to 5"},
		{"* * 5#2 * *", CronField::day, 6, "between one weekday"},
		{"0 0 30 2 *", CronField::day, 5, "ever comes"},
		{"0 0  31 FEB,4,6,9,NOV *", CronField::day, 6, "ever comes"},
		{"0 0 */31 2-2 MON#5,*/7", CronField::day, 5, ""},
		{"* * * * *\x01", CronField::weekday, 10, "An item"},
		{"\xc3\xa9 * * * *", CronField::minute, 1, "An item"},
	};
	for (const auto &c : cases)
	{
		Cron cron{};
		cron.days = 77;
		CronError e{};
		if (*c.part == '\0')
		{
			EXPECT_TRUE(parse_cron(c.text, &cron, &e)) << c.text;
			continue;
		}
		EXPECT_FALSE(parse_cron(c.text, &cron, &e)) << c.text;
		EXPECT_EQ(e.field, c.field) << c.text;
		EXPECT_EQ(e.position, c.position) << c.text;
		ASSERT_NE(e.text, nullptr) << c.text;
		EXPECT_NE(std::string(e.text).find(c.part), std::string::npos) << c.text << ": " << e.text;
		EXPECT_EQ(e.text[std::string(e.text).size() - 1], '.') << e.text;
		EXPECT_EQ(cron.days, 77U) << c.text;
	}
	EXPECT_STREQ(cron_field_name(CronField::day), "day of month");
	EXPECT_STREQ(cron_field_name(CronField::whole), "");
}

TEST(Cron, FiresAfterFrom)
{
	EXPECT_EQ(next("0 0 * * *", 0), at(2));
	EXPECT_EQ(next("0 0 * * *", -1), at(1));
	EXPECT_EQ(next("* * * * * *", 59), 60);
	EXPECT_EQ(next("59 59 23 31 12 *", 0), at(366, 23, 59, 59));
	const Cron c = read("* * * * *");
	EXPECT_EQ(next_fire(c, -1, kUtc), 0);
	EXPECT_EQ(next_fire(c, 0, kUtc), 60'000'000);
	EXPECT_EQ(next_fire(c, 59'999'999, kUtc), 60'000'000);
	EXPECT_EQ(next_fire(c, INT64_MAX - 5, kUtc), kNever);
	EXPECT_NE(next_fire(c, INT64_MIN + 5, kUtc), kNever);
}

TEST(Cron, EitherDayField)
{
	// 2000-01-01 is a Saturday, the 3rd a Monday
	EXPECT_EQ(next("0 0 5 * MON", 0), at(3));
	EXPECT_EQ(next("0 0 5 * MON", at(3)), at(5));
	EXPECT_EQ(next("0 0 5 * *", 0), at(5));
	EXPECT_EQ(next("0 0 * * MON", 0), at(3));
	// a field that begins with * does not restrict by itself: then both fields must match
	EXPECT_EQ(next("0 0 */2 * MON", 0), at(3));
	EXPECT_EQ(next("0 0 */2 * MON", at(3)), at(17));
	EXPECT_EQ(next("0 0 3 * */2", 0), at(31 + 3)); // a Thursday, while the 3rd of January was a Monday
	// ... but not a field that merely lists all values
	EXPECT_EQ(next("0 0 1-31 * MON", 0), at(2));
	EXPECT_EQ(next("0 0 13 * FRI#2", 0), at(13));
	EXPECT_EQ(next("0 0 13 * FRI#2", at(13)), at(14));
}

TEST(Cron, LastAndNth)
{
	EXPECT_EQ(next("0 0 L * *", 0), at(31));
	EXPECT_EQ(next("0 0 L * *", at(31)), at(31 + 29));
	EXPECT_EQ(next("0 0 L 2 *", at(100)), at(366 + 31 + 28));
	EXPECT_EQ(next("0 0 15,L * *", at(15)), at(31));
	EXPECT_EQ(next("0 0 * * FRIL", 0), at(28));
	EXPECT_EQ(next("0 0 * * FRIL", at(28)), at(31 + 25));
	EXPECT_EQ(next("0 0 * * SAT#1", -1), at(1));
	EXPECT_EQ(next("0 0 * * SAT#5", 0), at(29));
	EXPECT_EQ(next("0 0 * * SAT#5", at(29)), at(31 + 29 + 31 + 29));
	EXPECT_EQ(next("0 0 * * MON,FRI#2", at(11)), at(14));
	EXPECT_EQ(next("0 0 * 2 MON#5", 0), 4 * 1461 * kDay + at(60)); // 2016-02-29
}

TEST(Cron, RareDays)
{
	EXPECT_EQ(next("0 0 29 2 *", at(60)), (4 * 365 + 1) * kDay + at(60));
	// a Sunday, the 29th of February: 2004, 2032, ..., 2088, and then 2128
	EXPECT_EQ(next("0 0 29 2 */7", 0), (4 * 365 + 1) * kDay + at(60));
	const Seconds y2088 = next("0 0 29 2 */7", 1461 * 21 * kDay);
	EXPECT_EQ(y2088, 1461 * 22 * kDay + at(60));
	EXPECT_EQ(next("0 0 29 2 */7", y2088) - y2088, (1461 * 10 - 1) * kDay);
}

// ---- zones

// In 2000: an hour forward at 02:00 of day 86 (March 26th), an hour back at 03:00 of day 303 (October 29th).
const Clock kEurope{kHour, {{at(86, 1), 2 * kHour}, {at(303, 1), kHour}}};

TEST(CronZone, ASkippedTimeFiresOnceAfterTheGap)
{
	const Zone z = kEurope.zone();
	const Seconds gap_end = at(86, 1);
	EXPECT_EQ(next("30 2 * * *", at(85, 12), z), gap_end);
	EXPECT_EQ(next("30 2 * * *", gap_end, z), at(87, 0, 30));
	EXPECT_EQ(next("*/5 2 * * *", at(85, 12), z), gap_end);
	EXPECT_EQ(next("*/5 2 * * *", gap_end, z), at(87, 0, 0));
	// the same instant as 03:00
	EXPECT_EQ(next("30 2,3 * * *", at(85, 12), z), gap_end);
	EXPECT_EQ(next("30 2,3 * * *", gap_end, z), at(86, 1, 30));
	EXPECT_EQ(next("0 2,3 * * *", gap_end, z), at(87, 0));
	// only on that day
	EXPECT_EQ(next("30 2 26 3 *", at(1), z), gap_end);
}

TEST(CronZone, ARepeatedTimeFiresOnceWhenItComesFirst)
{
	const Zone z = kEurope.zone();
	EXPECT_EQ(next("30 2 * * *", at(302, 12), z), at(303, 0, 30));
	EXPECT_EQ(next("30 2 * * *", at(303, 0, 30), z), at(304, 1, 30));
	EXPECT_EQ(next("30 2 * * *", at(303, 1, 10), z), at(304, 1, 30)); // within the second pass
	EXPECT_EQ(next("0 3 * * *", at(303, 1, 10), z), at(303, 2));
	EXPECT_EQ(next("*/20 1-3 * * *", at(303, 0, 40), z), at(303, 2));
	EXPECT_EQ(next("0 2 * * *", at(303, 0), z), at(304, 1));
}

TEST(CronZone, EveryHourFollowsTheClock)
{
	const Zone z = kEurope.zone();
	EXPECT_EQ(next("30 * * * *", at(86, 0, 30), z), at(86, 1, 30));
	EXPECT_EQ(next("30 * * * *", at(303, 0, 30), z), at(303, 1, 30));
	EXPECT_EQ(next("30 * * * *", at(303, 0, 45), z), at(303, 1, 30));
	EXPECT_EQ(next("30 0-23 * * *", at(303, 0, 45), z), at(303, 1, 30));
	EXPECT_EQ(next("0 */2 * * *", at(86, 0), z), at(86, 2));   // 02:00 is skipped
	EXPECT_EQ(next("0 */2 * * *", at(303, 0), z), at(303, 1)); // 02:00 comes again
	EXPECT_EQ(next("* * * * *", at(303, 0, 59), z), at(303, 1));
	EXPECT_EQ(next("* * * * * *", at(86, 0, 59, 59), z), at(86, 1));
	EXPECT_EQ(next("0 * 26 3 *", at(1), z), at(85, 23));
}

TEST(CronZone, ADayThatIsSkipped)
{
	const Clock samoa{-11 * kHour, {{at(200, 11), 13 * kHour}}}; // day 199 is followed by day 201
	const Zone z = samoa.zone();
	EXPECT_EQ(next("0 12 * * *", at(199, 23), z), at(200, 11));
	EXPECT_EQ(next("0 12 * * *", at(200, 11), z), at(200, 23));
	EXPECT_EQ(next("0 0 * * *", at(199, 11), z), at(200, 11));
	EXPECT_EQ(next("0 0 18 7 *", at(1), z), at(200, 11)); // day 200 itself
	EXPECT_EQ(next("0 */6 * * *", at(200, 10), z), at(200, 11));
	EXPECT_EQ(next("0 * 18 7 *", at(1), z), at(366 + 198, 11)); // in the following year
}

// The specification of next_fire, applied second by second.
Seconds naive(const Cron &c, Seconds from, const Clock &clock, Seconds end)
{
	Seconds most = INT64_MIN; // the latest time that the clock has shown
	for (Seconds t = from - 2 * kDay; t <= from; ++t)
		most = std::max(most, Clock::local(&clock, t));
	for (Seconds t = from + 1; t < end; ++t)
	{
		const Seconds shown = Clock::local(&clock, t);
		if (c.every_hour)
		{
			if (matches(c, shown))
				return t;
			continue;
		}
		for (Seconds s = most + 1; s <= shown; ++s) // one second, or a gap
			if (matches(c, s))
				return t;
		most = std::max(most, shown);
	}
	return -1;
}

TEST(CronZone, AgreesWithTryingEverySecond)
{
	std::mt19937 random(1);
	const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
	const Seconds shifts[] = {kHour,	  -kHour,	  kHour / 2,   -kHour / 2, 2 * kHour,
							  -3 * kHour, 24 * kHour, -24 * kHour, 17,		   -1207};
	for (int i = 0; i < 100; ++i)
	{
		// one change, or two changes more than two days apart
		Clock clock{below(27 * 60) * 60 - 12 * kHour - 7 * 60, {}};
		const Seconds shift = shifts[below(10)];
		const Seconds change = at(100) + below(2 * 24 * 60) * 30;
		clock.changes.push_back({change, clock.offset + shift});
		if (below(2) == 0)
			clock.changes.push_back({change + 2 * kDay + below(1000), clock.offset});
		std::string hour = std::to_string(below(24));
		switch (below(5))
		{
			case 0:
				hour = "*";
				break;
			case 1:
				hour = "*/" + std::to_string(1 + below(12));
				break;
			case 2:
				hour += "," + std::to_string(below(24)) + ",0";
				break;
			default:
				break;
		}
		const char *minutes[] = {"*", "*/7", "0", "30", "59", "0,1,29"};
		const std::string text =
			std::string(below(4) == 0 ? "*/13 " : "0 ") + minutes[below(6)] + " " + hour + " * * *";
		const Cron c = read(text);
		for (int k = 0; k < 4; ++k)
		{
			const Seconds from = change - 30 * kHour + below(56 * 3600);
			const Seconds end = from + 5 * kDay;
			const Seconds wanted = naive(c, from, clock, end);
			const Seconds got = next_fire(c, from * 1'000'000 + below(1'000'000), clock.zone()) / 1'000'000;
			ASSERT_EQ(wanted, got >= end ? -1 : got) << text << " from " << from - change << ", shift " << shift;
		}
	}
}

} // namespace
