// tq.retry as text: what is read, and that nothing malformed is taken or crashes.
#include <gtest/gtest.h>

#include <string>

#include "core/retry_text.hpp"

namespace
{

using namespace tq::core;

constexpr Micros kSecond = 1'000'000;

bool read(const std::string &text, RetryPolicy *p)
{
	const char *error = nullptr;
	const bool ok = parse_retry_text(text.c_str(), p, &error);
	EXPECT_EQ(ok, error == nullptr) << text;
	return ok;
}

TEST(RetryText, ReadsEveryKey)
{
	RetryPolicy p;
	ASSERT_TRUE(read(R"( {"policy":"list", "delay" : "10 s","max":"1 h","factor":3.5,"jitter":0,"on_lost":"5 s",
		"delays":["1 s", "2 min", "00:00:03"]} )",
					 &p));
	EXPECT_EQ(p.backoff, Backoff::list);
	EXPECT_EQ(p.delay, 10 * kSecond);
	EXPECT_EQ(p.max, 3600 * kSecond);
	EXPECT_FLOAT_EQ(p.factor, 3.5F);
	EXPECT_EQ(p.jitter, 0);
	EXPECT_EQ(p.on_lost, 5 * kSecond);
	ASSERT_EQ(p.ndelays, 3);
	EXPECT_EQ(p.delays[1], 120 * kSecond);
	EXPECT_EQ(p.delays[2], 3 * kSecond);
}

TEST(RetryText, LeavesWhatIsNotGiven)
{
	RetryPolicy p;
	ASSERT_TRUE(read(R"({"max":null,"delay":"1 s"})", &p));
	EXPECT_EQ(p.delay, kSecond);
	EXPECT_EQ(p.max, RetryPolicy{}.max);
	ASSERT_TRUE(read("{}", &p));
	EXPECT_EQ(p.delay, kSecond);
}

TEST(RetryText, AListIsNotCutShort)
{
	RetryPolicy p;
	ASSERT_TRUE(read(R"({"policy": "list", "delays": ["1 s", "1 day"]})", &p));
	EXPECT_EQ(retry_delay(p, 2, 0), 86400 * kSecond);
	ASSERT_TRUE(read(R"({"policy": "list", "delays": ["1 s", "1 day"], "max": "2 h"})", &p));
	EXPECT_EQ(retry_delay(p, 2, 0), 7200 * kSecond);
}

TEST(RetryText, RefusesWhatIsWrongAndChangesNothing)
{
	for (const char *text : {
			 "",
			 " ",
			 "{",
			 "}",
			 "[]",
			 "null",
			 "x",
			 "{\"delay\"}",
			 "{\"delay\":}",
			 "{\"delay\":\"10 s\"",
			 "{\"delay\":\"10 s\",}",
			 "{\"delay\":\"10 s\"}x",
			 "{delay:\"10 s\"}",
			 "{\"delay\":10}",
			 "{\"delay\":\"\"}",
			 "{\"delay\":\"10\"}",
			 "{\"delay\":\"-1 s\"}",
			 "{\"delay\":\"1 month\"}",
			 "{\"delay\":\"9999 days\"}",
			 "{\"delay\":\"1e9 s\"}",
			 "{\"factor\":0.5}",
			 "{\"factor\":1001}",
			 "{\"factor\":\"2\"}",
			 "{\"factor\":-1}",
			 "{\"jitter\":1.5}",
			 "{\"policy\":\"other\"}",
			 "{\"policy\":\"list\"}",
			 "{\"policy\":1}",
			 "{\"delays\":[]}",
			 "{\"delays\":[\"1 s\"",
			 "{\"delays\":[1]}",
			 "{\"delays\":\"1 s\"}",
			 "{\"unknown\":1}",
			 "{\"de\\u006cay\":\"1 s\"}",
			 "{\"delay\":\"1 s\n\"}",
			 "{\"delays\":[\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 s\",\"1 "
			 "s\",\"1 s\","
			 "\"1 s\",\"1 s\",\"1 s\",\"1 s\"]}",
			 "{\"delay\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
		 })
	{
		RetryPolicy p;
		EXPECT_FALSE(read(text, &p)) << text;
		EXPECT_EQ(p.delay, RetryPolicy{}.delay) << text;
		EXPECT_EQ(p.backoff, RetryPolicy{}.backoff) << text;
	}
}

TEST(RetryText, EveryPrefixIsRefused)
{
	const std::string whole = R"({"policy":"exponential","delays":["1 s"],"factor":2.5})";
	RetryPolicy p;
	for (size_t n = 0; n < whole.size(); ++n)
		EXPECT_FALSE(read(whole.substr(0, n), &p)) << n;
	EXPECT_TRUE(read(whole, &p));
}

TEST(RetryText, Durations)
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
		{"3 us", 3},
	};
	for (const auto &g : good)
	{
		Micros m = -1;
		EXPECT_TRUE(parse_duration(g.text, &m)) << g.text;
		EXPECT_EQ(m, g.micros) << g.text;
	}
	for (const char *bad :
		 {"", "s", "1", "1 x", "-1 s", "1 s 2", "1:60", "1:1:60", "4000 d", "1 : 2", "1..5 s", "1e3 s", "infinity"})
	{
		Micros m = 0;
		EXPECT_FALSE(parse_duration(bad, &m)) << bad;
	}
}

} // namespace
