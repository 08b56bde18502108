// The delay before the next attempt after a failure.
#include <gtest/gtest.h>

#include <limits>

#include "core/retry.hpp"

namespace
{

using namespace tq::core;


RetryPolicy policy(Backoff backoff, Micros delay, Micros max)
{
	RetryPolicy p;
	p.backoff = backoff;
	p.delay = delay;
	p.max = max;
	p.jitter = 0;
	return p;
}

TEST(Retry, ExponentialDoublesUpToTheCap)
{
	const RetryPolicy p = policy(Backoff::exponential, 10 * kSecond, 100 * kSecond);
	EXPECT_EQ(retry_delay(p, 1, 0), 10 * kSecond);
	EXPECT_EQ(retry_delay(p, 2, 0), 20 * kSecond);
	EXPECT_EQ(retry_delay(p, 4, 0), 80 * kSecond);
	EXPECT_EQ(retry_delay(p, 5, 0), 100 * kSecond);
	EXPECT_EQ(retry_delay(p, 1'000'000, 0), 100 * kSecond); // pow is infinite
	EXPECT_EQ(retry_delay(p, std::numeric_limits<int>::max(), 0), 100 * kSecond);
}

TEST(Retry, NoDelayStaysNone)
{
	const RetryPolicy p = policy(Backoff::exponential, 0, 100 * kSecond);
	EXPECT_EQ(retry_delay(p, 1, 0), 0);
	EXPECT_EQ(retry_delay(p, 2000, 0), 0); // not 0 * inf
}

TEST(Retry, LinearAndFixed)
{
	EXPECT_EQ(retry_delay(policy(Backoff::linear, 3 * kSecond, 10 * kSecond), 3, 0), 9 * kSecond);
	EXPECT_EQ(retry_delay(policy(Backoff::linear, 3 * kSecond, 10 * kSecond), 4, 0), 10 * kSecond);
	EXPECT_EQ(retry_delay(policy(Backoff::fixed, 3 * kSecond, 10 * kSecond), 99, 0), 3 * kSecond);
	EXPECT_EQ(retry_delay(policy(Backoff::fixed, 30 * kSecond, 10 * kSecond), 1, 0), 10 * kSecond);
}

TEST(Retry, TheListsLastDelayRepeats)
{
	RetryPolicy p = policy(Backoff::list, 7 * kSecond, 3600 * kSecond);
	EXPECT_EQ(retry_delay(p, 1, 0), 7 * kSecond); // an empty list
	p.ndelays = 3;
	p.delays[0] = 1 * kSecond;
	p.delays[1] = 5 * kSecond;
	p.delays[2] = 60 * kSecond;
	EXPECT_EQ(retry_delay(p, 1, 0), 1 * kSecond);
	EXPECT_EQ(retry_delay(p, 2, 0), 5 * kSecond);
	EXPECT_EQ(retry_delay(p, 3, 0), 60 * kSecond);
	EXPECT_EQ(retry_delay(p, 300, 0), 60 * kSecond);
}

TEST(Retry, AttemptsBelowOneCountAsTheFirst)
{
	EXPECT_EQ(retry_delay(policy(Backoff::exponential, kSecond, 10 * kSecond), 0, 0), kSecond);
	EXPECT_EQ(retry_delay(policy(Backoff::linear, kSecond, 10 * kSecond), -3, 0), kSecond);
}

TEST(Retry, JitterAddsAShareAndRepeats)
{
	RetryPolicy p = policy(Backoff::fixed, 100 * kSecond, 3600 * kSecond);
	p.jitter = 0.5F;
	EXPECT_EQ(retry_delay(p, 1, 0), 100 * kSecond);
	const Micros most = retry_delay(p, 1, UINT64_MAX);
	EXPECT_GT(most, 149 * kSecond);
	EXPECT_LE(most, 150 * kSecond);
	EXPECT_EQ(retry_delay(p, 1, UINT64_MAX / 2), retry_delay(p, 1, UINT64_MAX / 2));
}

} // namespace
