// Limits on running jobs and on start rates, and the wakeups when a limit opens.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

constexpr Rate kTenASecond{100'000'000, 1};

// --- buckets

TEST(Buckets, NeverMoreThanTheBurstAndTheRefill)
{
	std::mt19937 random(7);
	for (const Rate rate : {Rate{1'000'000'000, 1}, Rate{333'333'333, 5}, Rate{1'000, 100}, Rate{1'500, 3}, Rate{86'400'000'000'000, 2}})
	{
		Bucket b;
		std::vector<Micros> taken;
		Micros now = 5;
		while (taken.size() < 1500)
		{
			if (random() % 4 == 0)
				now += static_cast<Micros>(random() % static_cast<uint64_t>(3 * rate.interval / 1000 + 3));
			const int64_t n = b.available(rate, now, 1'000'000);
			ASSERT_EQ(n > 0, b.open(rate, now));
			ASSERT_LE(n, rate.burst);
			if (n == 0)
			{
				// the reported time is the first at which a start is allowed
				const Micros at = b.opens_at(rate);
				ASSERT_GT(at, now);
				ASSERT_FALSE(b.open(rate, at - 1));
				ASSERT_TRUE(b.open(rate, at));
				continue;
			}
			b.take(rate, now);
			taken.push_back(now);
		}
		for (size_t i = 0; i < taken.size(); ++i)
			for (size_t j = i; j < taken.size() && j < i + 300; ++j)
				ASSERT_LE(static_cast<int64_t>(j - i + 1), rate.burst + (taken[j] - taken[i]) * 1000 / rate.interval);
	}
}

TEST(Buckets, AFullBurstComesBackAfterItsTime)
{
	const Rate r{100'000'000, 5};
	Bucket b;
	const Micros now = 3 * kSecond;
	EXPECT_EQ(b.available(r, now, 100), 5);
	EXPECT_EQ(b.available(r, now, 2), 2);
	b.take(r, now, 5);
	EXPECT_EQ(b.available(r, now, 100), 0);
	EXPECT_EQ(b.opens_at(r), now + 100'000);
	EXPECT_EQ(b.full_by(), now + 500'000);
	EXPECT_EQ(b.available(r, now + 250'000, 100), 2);
	EXPECT_EQ(b.available(r, now + 500'000, 100), 5);
	EXPECT_EQ(b.available(r, now + 500 * kSecond, 100), 5); // never more than the burst
}

// 110000 jobs enqueued at once at a rate of one per day: three centuries, which overflow 64-bit nanoseconds.
TEST(Buckets, MoreAtOnceThanTimeCanExpress)
{
	const Rate r{86'400'000'000'000, 1};
	for (const int64_t n : {int64_t{100'000}, int64_t{110'000}, INT64_MAX / r.interval, INT64_MAX})
	{
		Bucket b;
		const Micros now = 3 * kSecond;
		b.take(r, now, n);
		EXPECT_FALSE(b.open(r, now)) << n;
		EXPECT_EQ(b.available(r, now, 1), 0) << n;
		EXPECT_GT(b.opens_at(r), now + int64_t{99'999} * 86'400 * kSecond) << n;
		EXPECT_GE(b.full_by(), b.opens_at(r)) << n;
		b.fit(r, now);
		EXPECT_LE(b.opens_at(r), now + 86'400 * kSecond) << n;
	}
}

TEST(Buckets, EmptyMeansThatABurstIsToCome)
{
	const Rate r{100'000'000, 3};
	Bucket b;
	b.empty(r, kSecond);
	EXPECT_EQ(b.available(r, kSecond, 9), 0);
	EXPECT_EQ(b.opens_at(r), kSecond + 100'000);
	EXPECT_EQ(b.available(r, 2 * kSecond, 9), 3);
}

TEST(Buckets, ANewRateDoesNotWaitForAnOldOne)
{
	const Rate slow{86'400'000'000'000, 10}, fast{10'000'000, 1};
	Bucket b;
	b.take(slow, kSecond, 10); // full again in ten days
	b.fit(fast, kSecond);
	EXPECT_EQ(b.opens_at(fast), kSecond + 10'000);
	b.fit(Rate{}, kSecond);
	EXPECT_TRUE(b.open(fast, kSecond));
}

// --- max_running

TEST(MaxRunning, IsExact)
{
	Rig t;
	t.set([](QueueSettings &s) { s.max_running = 3; });
	for (JobId id = 1; id <= 9; ++id)
		t.ready(id, 0, id % 2 == 0 ? "x" : nullptr);
	std::vector<Ref> running;
	for (int i = 0; i < 3; ++i)
		running.push_back(t.claim());
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(t.engine.starts_left(t.q()), 0);
	Key key;
	EXPECT_FALSE(t.engine.claimable(t.q(), nullptr, 0, &key));
	t.finish(running[0]);
	EXPECT_EQ(t.id_of(t.claim()), 4);
	EXPECT_EQ(t.claim(), kNil);
	t.undo_claim(running[1]); // frees its slot
	EXPECT_EQ(t.claim(), running[1]);
	EXPECT_EQ(t.claim(), kNil);
	t.fail(running[2], 50); // a job that waits for its next attempt is not running
	EXPECT_EQ(t.id_of(t.claim()), 5);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
	t.set([](QueueSettings &s) { s.max_running = 2; }); // more run than the new limit allows
	t.finish(running[1]);
	EXPECT_EQ(t.claim(), kNil);
	t.set([](QueueSettings &s) { s.max_running = 0; });
	EXPECT_NE(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(MaxRunning, AFinishWakesABlockedWaiter)
{
	Rig t;
	t.set([](QueueSettings &s) { s.max_running = 1; });
	t.ready(1);
	t.ready(2);
	const Ref one = t.claim();
	t.engine.wait_enter(t.q(), 3, 3, nullptr, 0); // it has seen job 2
	t.engine.wait_enter(t.q(), 4, 4, nullptr, 0);
	t.ready(3);
	EXPECT_EQ(wakes_of(3), 0);
	t.finish(one);
	EXPECT_EQ(wakes_of(3), 1);
	EXPECT_EQ(wakes_of(4), 0); // one place, one token
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.id_of(t.claim()), 2);
	t.engine.wait_leave(t.q(), 3);
	EXPECT_EQ(wakes_of(4), 0);
	EXPECT_EQ(verify(t.engine), "");
	t.set([](QueueSettings &s) { s.max_running = 5; });
	EXPECT_EQ(wakes_of(4), 1);
}

TEST(MaxRunning, OnlyAsManyWaitersWakeAsJobsMayStart)
{
	Rig t;
	t.set([](QueueSettings &s) { s.max_running = 2; });
	for (Ref w = 0; w < 8; ++w)
		t.engine.wait_enter(t.q(), w, w, nullptr, 0);
	for (JobId id = 1; id <= 8; ++id)
		t.ready(id);
	EXPECT_EQ(t.q().tokens, 2U);
	const Ref one = t.claim();
	t.engine.wait_leave(t.q(), 0);
	EXPECT_EQ(t.q().tokens, 1U); // the other slot is reserved for the second token
	EXPECT_NE(t.claim(), kNil);
	t.engine.wait_leave(t.q(), 1);
	EXPECT_EQ(t.q().tokens, 0U);
	t.finish(one);
	EXPECT_EQ(t.q().tokens, 1U);
	EXPECT_EQ(verify(t.engine), "");
}

// --- rate

TEST(Rates, StartsNeverExceedTheRate)
{
	std::mt19937 random(3);
	for (const Rate rate : {Rate{1'000'000, 1}, Rate{2'500'000, 4}, Rate{700, 2}})
	{
		Rig t(kMiddle, Locks::none);
		t.set([&](QueueSettings &s) { s.rate = rate; });
		std::vector<Micros> starts;
		JobId id = 0;
		Micros now = 0;
		for (int i = 0; i < 3000; ++i)
		{
			t.at(now += static_cast<Micros>(random() % 1000));
			t.ready(++id);
			while (t.q().running < 200)
			{
				// a claim that waited for the lock
				const Ref r = t.claim(1, now - 500);
				if (r == kNil)
					break;
				starts.push_back(now);
				random() % 2 == 0 ? t.commit_claim(r) : t.undo_claim(r);
			}
			while (t.q().leases.size > 100)
				t.finish(t.q().leases.min);
		}
		for (size_t k = 0; k < starts.size(); ++k)
			for (size_t j = k; j < starts.size() && j < k + 200; ++j)
				ASSERT_LE(static_cast<int64_t>(j - k + 1), rate.burst + (starts[j] - starts[k]) * 1000 / rate.interval);
		EXPECT_EQ(verify(t.engine), "");
	}
}

TEST(Rates, TimeWakesWaiters)
{
	Rig t;
	t.set([](QueueSettings &s) { s.rate = kTenASecond; });
	t.at(kSecond);
	t.ready(1);
	t.ready(2);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(t.claim(), kNil);
	t.engine.wait_enter(t.q(), 3, 3, nullptr, 0);
	EXPECT_EQ(t.q().next_open.load(), kSecond + 100'000);
	EXPECT_EQ(surroundings().sooner_mono.load(), kSecond + 100'000);
	t.at(kSecond + 99'999);
	EXPECT_EQ(wakes_of(3), 0);
	t.at(kSecond + 100'000);
	EXPECT_EQ(wakes_of(3), 1);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Rates, AJobThatCameBeforeItsWaiterWakesItToo)
{
	Rig t;
	t.set([](QueueSettings &s) { s.rate = kTenASecond; });
	t.at(kSecond);
	t.ready(1);
	t.claim();
	t.ready(2); // no waiter yet
	EXPECT_EQ(t.claim(), kNil);
	t.engine.wait_enter(t.q(), 3, 3, nullptr, 0);
	EXPECT_EQ(t.q().next_open.load(), kSecond + 100'000);
	EXPECT_EQ(verify(t.engine), "");
	t.at(kSecond + 100'000);
	EXPECT_EQ(wakes_of(3), 1);
}

TEST(Rates, EveryWayToBecomeStartableSetsTheTime)
{
	for (const int how : {0, 1, 2, 3, 4})
	{
		Rig t;
		t.set([](QueueSettings &s) { s.rate = kTenASecond; });
		t.at(kSecond);
		t.ready(1);
		t.claim();
		Lane &l = t.lane_at();
		if (how == 1)
			t.engine.set_paused(t.q(), nullptr, kNever);
		if (how == 2)
			t.engine.lower_watermark(t.q(), l, kMinKey);
		if (how == 3)
			t.delayed(2, 50);
		else if (how == 4)
			t.grouped("a", 2), t.engine.lower_group_watermark(t.q(), t.group("a"), kMinKey);
		else if (how != 0)
			t.ready(2);
		t.engine.wait_enter(t.q(), 3, 3, nullptr, 0);
		EXPECT_EQ(t.q().next_open.load(), kNever) << how;
		switch (how)
		{
			case 0:
				t.ready(2);
				break;
			case 1:
				t.engine.set_paused(t.q(), nullptr, 0);
				break;
			case 2:
				l.limit = kMaxKey;
				t.engine.raise_watermark(t.q(), l, kMaxKey);
				break;
			case 3:
				t.fire(50);
				break;
			default:
				t.engine.start_group_load(t.q(), t.group("a"), 1);
				t.engine.raise_group(t.q(), t.group("a"), kMaxKey);
				t.engine.end_group_load(t.q(), t.group("a"), true);
		}
		EXPECT_EQ(t.q().next_open.load(), kSecond + 100'000) << how;
		EXPECT_EQ(wakes_of(3), 0) << how;
		EXPECT_EQ(verify(t.engine), "") << how;
		t.at(kSecond + 100'000);
		EXPECT_EQ(wakes_of(3), 1) << how;
		EXPECT_EQ(t.id_of(t.claim()), 2) << how;
	}
}

TEST(Rates, OneOpeningWakesAsManyAsMayStart)
{
	Rig t;
	t.set([](QueueSettings &s) { s.rate = Rate{100'000'000, 3}; });
	t.at(10 * kSecond);
	for (JobId id = 1; id <= 20; ++id)
		t.ready(id);
	while (t.claim() != kNil)
	{
	}
	for (Ref w = 0; w < 8; ++w)
		t.engine.wait_enter(t.q(), w, w, nullptr, 0);
	t.at(10 * kSecond + 250'000); // the scheduler was late: two may start
	int woken = 0;
	for (uint32_t w = 0; w < 8; ++w)
		woken += wakes_of(w);
	EXPECT_EQ(woken, 2);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_NE(t.claim(), kNil);
	EXPECT_NE(t.claim(), kNil);
	EXPECT_EQ(t.claim(), kNil);
	t.engine.wait_leave(t.q(), 0);
	t.engine.wait_leave(t.q(), 1);
	t.at(10 * kSecond + 300'000);
	woken = 0;
	for (uint32_t w = 0; w < 8; ++w)
		woken += wakes_of(w);
	EXPECT_EQ(woken, 3);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Rates, AClaimBeforeTheSchedulerKeepsTheWakeup)
{
	Rig t;
	t.set([](QueueSettings &s) { s.rate = Rate{100'000'000, 3}; });
	t.at(10 * kSecond);
	for (JobId id = 1; id <= 20; ++id)
		t.ready(id);
	while (t.claim() != kNil)
	{
	}
	t.engine.wait_enter(t.q(), 3, 3, nullptr, 0);
	surroundings().mono = 10 * kSecond + 200'000; // two may start
	EXPECT_NE(t.claim(), kNil);
	t.engine.wait_enter(t.q(), 4, 4, nullptr, 0);
	EXPECT_EQ(verify(t.engine), "");
	t.at(10 * kSecond + 200'001);
	EXPECT_EQ(wakes_of(3), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Rates, ANewRateAppliesAtOnce)
{
	Rig t;
	t.set([](QueueSettings &s) { s.rate = Rate{86'400'000'000'000, 10}; });
	t.at(kSecond);
	for (JobId id = 1; id <= 20; ++id)
		t.ready(id);
	while (t.claim() != kNil)
	{
	}
	EXPECT_EQ(t.q().running, 10U);
	t.set([](QueueSettings &s) { s.rate = kTenASecond; });
	EXPECT_EQ(t.claim(), kNil);
	t.at(kSecond + 100'000);
	EXPECT_NE(t.claim(), kNil);
	EXPECT_EQ(t.claim(), kNil);
	t.set([](QueueSettings &s) { s.rate = Rate{}; });
	EXPECT_NE(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

// --- group_rate

TEST(GroupRates, EachGroupHasItsOwn)
{
	Rig t;
	t.set([](QueueSettings &s) { s.group_rate = kTenASecond, s.group_max_running = 0; });
	t.at(kSecond);
	for (const JobId id : {1, 2, 3})
		t.grouped("a", id);
	for (const JobId id : {4, 5})
		t.grouped("b", id);
	t.ready(6);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(t.id_of(t.claim()), 4);
	EXPECT_EQ(t.id_of(t.claim()), 6);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(t.engine.blocked(t.q(), t.engine.group(t.group("a"))), Block::rate);
	EXPECT_EQ(t.q().opening.size, 2U);
	EXPECT_EQ(t.q().next_open.load(), kSecond + 100'000);
	EXPECT_EQ(verify(t.engine), "");
	t.engine.wait_enter(t.q(), 3, 3, nullptr, 0);
	t.engine.wait_enter(t.q(), 4, 4, nullptr, 0);
	t.at(kSecond + 100'000);
	EXPECT_EQ(wakes_of(3) + wakes_of(4), 2);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.id_of(t.claim()), 5);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupRates, AGroupWithoutJobsIsNotForgottenTooEarly)
{
	Rig t;
	t.set([](QueueSettings &s) { s.group_rate = Rate{100'000'000, 5}; });
	t.at(kSecond);
	JobId id = 0;
	auto starts = [&] {
		int n = 0;
		for (;; ++n)
		{
			t.grouped("a", ++id);
			const Ref r = t.claim();
			if (r == kNil)
				break;
			t.finish(r);
		}
		t.engine.drop(t.q(), t.engine.group(t.group("a")).ready.min, 0);
		return n;
	};
	EXPECT_EQ(starts(), 5);
	EXPECT_EQ(verify(t.engine), "");
	t.at(kSecond + 100'000); // one may start, not five
	EXPECT_EQ(starts(), 1);
	EXPECT_EQ(verify(t.engine), "");
	t.at(kSecond + 600'000);
	EXPECT_EQ(t.group("a"), kNil); // nothing is stored any more
	EXPECT_EQ(starts(), 5);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupRates, ANewRateAppliesAtOnce)
{
	Rig t;
	t.set([](QueueSettings &s) { s.group_rate = Rate{86'400'000'000'000, 1}, s.group_max_running = 0; });
	t.at(kSecond);
	for (const JobId id : {1, 2, 3})
		t.grouped("a", id);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(t.claim(), kNil);
	t.set([](QueueSettings &s) { s.group_rate = kTenASecond; });
	EXPECT_EQ(t.claim(), kNil);
	t.at(kSecond + 100'000);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	t.set([](QueueSettings &s) { s.group_rate = Rate{}; });
	EXPECT_EQ(t.id_of(t.claim()), 3);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupRates, AndMaxRunningBothCount)
{
	Rig t;
	t.set([](QueueSettings &s) { s.group_rate = kTenASecond; });
	t.at(kSecond);
	for (const JobId id : {1, 2, 3})
		t.grouped("a", id);
	const Ref one = t.claim();
	t.at(2 * kSecond);
	EXPECT_EQ(t.claim(), kNil); // one at a time
	t.finish(one);
	t.finish(t.claim());
	EXPECT_EQ(t.claim(), kNil); // too early
	t.at(2 * kSecond + 100'000);
	EXPECT_EQ(t.id_of(t.claim()), 3);
	EXPECT_EQ(verify(t.engine), "");
}

} // namespace
