// Durations as text: accepted input; malformed input is refused and does not crash.
#include <gtest/gtest.h>

#include "core/duration.hpp"

namespace
{

using namespace tq::core;

TEST(DurationText, ReadsAndRefuses)
{
	const struct
	{
		const char *text;
		Micros micros;
	} good[] = {
		{"0 s", 0},
		{"10 s", 10 * kSecond},
		{"1.5 s", 1'500'000},
		{"250ms", 250'000},
		{"1 h 30 min", 5400 * kSecond},
		{" 2 Days ", 172800 * kSecond},
		{"01:02:03", 3723 * kSecond},
		{"00:00:00.25", 250'000},
		{"1:30", 5400 * kSecond},
		{"1:30:00.5", 5400 * kSecond + kSecond / 2},
		{"90 MINUTES", 5400 * kSecond},
		{"3 us", 3},
	};
	for (const auto &g : good)
	{
		Micros m = -1;
		EXPECT_TRUE(parse_duration(g.text, &m)) << g.text;
		EXPECT_EQ(m, g.micros) << g.text;
	}
	for (const char *bad :
		 {"", "s", "1", "1 x", "-1 s", "1 s 2", "1:60", "1:1:60", "1:30.5", "1 minutess", "1 secondssss", "4000 d", "1 : 2", "1..5 s", "1e3 s", "infinity",
		  "1 s 1 s", "1 s 1 min", "1 h 01:00", "01:00 1 s"})
	{
		Micros m = 0;
		EXPECT_FALSE(parse_duration(bad, &m)) << bad;
	}
}

} // namespace
