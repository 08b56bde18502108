// Watchers: processes that wait for many queues, for all of them, or for the end of jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

struct WatchRig : Rig
{
	// Processes beyond one word of bits.
	WatchRig() : Rig(Limits{1024, 16, 4, 2, kMaxProcs + 36, 8, 64}) {}

	void watch(uint32_t proc, std::vector<uint16_t> queues, std::vector<uint64_t> pairs = {})
	{
		for (const uint16_t queue : queues)
			engine.watch(queue, proc);
		std::sort(pairs.begin(), pairs.end());
		engine.watch_begin(proc, pairs.data(), static_cast<uint32_t>(pairs.size()));
	}
	// Ends the wait; returns whether it had a token.
	bool leave(uint32_t proc, std::vector<uint16_t> queues, bool pass = true)
	{
		const uint16_t token = engine.watch_end(proc);
		for (const uint16_t queue : queues)
			engine.unwatch(queue, proc);
		if (token != kNoQueue)
			engine.return_token(q(token), proc, pass);
		return token != kNoQueue;
	}
	bool has_token(uint32_t proc) { return engine.token_of_watcher(proc) != kNoQueue; }
};

TEST(Watchers, AJobWakesOneOfThem)
{
	WatchRig t;
	t.watch(1, {0, 1});
	t.watch(2, {0, 1});
	EXPECT_EQ(t.engine.watchers_of(t.q()), 2U);
	t.ready(10);
	EXPECT_EQ(t.has_token(1) + t.has_token(2), 1);
	EXPECT_EQ(t.q().tokens, 1U);
	EXPECT_EQ(verify(t.engine), "");
	t.ready(11);
	EXPECT_EQ(t.has_token(1) + t.has_token(2), 2);
	t.ready(12); // no one else is left
	EXPECT_EQ(t.q().tokens, 2U);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_TRUE(t.leave(1, {0, 1}, false));
	EXPECT_TRUE(t.leave(2, {0, 1}, false));
	EXPECT_EQ(t.q().tokens, 0U);
	EXPECT_EQ(t.engine.watchers_of(t.q()), 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watchers, AnUnusedTokenIsPassedOn)
{
	WatchRig t;
	t.watch(1, {0});
	t.ready(10);
	EXPECT_TRUE(t.has_token(1));
	t.watch(2, {0});
	t.leave(1, {0}); // cancelled
	EXPECT_TRUE(t.has_token(2));
	EXPECT_EQ(verify(t.engine), "");
	t.engine.wait_enter(t.q(), 5 * kWaitersPerProc, 5, nullptr, 0);
	t.ready(11); // waiters come first
	EXPECT_TRUE(t.engine.waiter(5 * kWaitersPerProc).granted);
	t.watch(3, {0});
	t.engine.wait_leave(t.q(), 5 * kWaitersPerProc);
	EXPECT_TRUE(t.has_token(3));
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_NE(t.claim(), kNil);
	EXPECT_NE(t.claim(), kNil);
	t.leave(2, {0});
	t.leave(3, {0});
	EXPECT_EQ(t.q().tokens, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watchers, KindsAreListedByQueue)
{
	WatchRig t;
	const uint64_t mail = hash_name("mail"), scan = hash_name("scan");
	t.watch(1, {0, 1}, {watched_pair(0, kSomeKinds), watched_pair(0, mail), watched_pair(0, scan)});
	t.ready(10, 0, "fax");
	EXPECT_FALSE(t.has_token(1));
	EXPECT_TRUE(t.engine.watches(1, t.q(), mail));
	EXPECT_FALSE(t.engine.watches(1, t.q(), hash_name("fax")));
	EXPECT_TRUE(t.engine.watches(1, t.q(1), hash_name("fax"))); // any kind of the other queue
	t.ready(11, 0, "scan");
	EXPECT_TRUE(t.has_token(1));
	EXPECT_FALSE(t.engine.watches(1, t.q(1), mail)); // one token at a time
	EXPECT_TRUE(t.leave(1, {0, 1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watchers, AllQueuesOfADatabase)
{
	WatchRig t;
	const uint32_t last = t.engine.limits().procs - 1;
	t.engine.watch(t.engine.all_row(0), last - 40);
	t.engine.watch_begin(last - 40, nullptr, 0);
	t.ready(10);
	EXPECT_TRUE(t.has_token(last - 40));
	const uint16_t token = t.engine.watch_end(last - 40);
	EXPECT_EQ(token, 0);
	t.engine.unwatch(t.engine.all_row(0), last - 40);
	t.engine.return_token(t.q(), last - 40, true);
	EXPECT_EQ(verify(t.engine), "");
}

// The queues that a process finds which waits for all of them, in order.
std::vector<uint16_t> startable(const Rig &t)
{
	std::vector<uint16_t> found;
	EXPECT_FALSE(t.engine.any_startable([&found](uint16_t slot) { return found.push_back(slot), false; }));
	return found;
}

TEST(Watchers, QueuesWithStartableJobsAreFoundByBits)
{
	Rig t(Limits{64, 4, 130, 1, 4, 2, 4});
	EXPECT_EQ(startable(t), std::vector<uint16_t>{});
	t.ready(10, 0, nullptr, 2);
	t.ready(11, 0, "a", 2);
	t.ready(12, 0, "b", 129);
	EXPECT_EQ(startable(t), (std::vector<uint16_t>{2, 129}));
	EXPECT_TRUE(t.engine.any_startable([](uint16_t slot) { return slot == 129; }));
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_NE(t.claim(1, 0, 2), kNil); // the other lane still has one
	EXPECT_EQ(startable(t), (std::vector<uint16_t>{2, 129}));
	EXPECT_NE(t.claim(1, 0, 129), kNil);
	EXPECT_EQ(startable(t), std::vector<uint16_t>{2});
	EXPECT_EQ(verify(t.engine), "");
	t.engine.set_paused(t.q(2), nullptr, kNever);
	EXPECT_EQ(startable(t), std::vector<uint16_t>{});
	t.engine.set_paused(t.q(2), nullptr, 0);
	EXPECT_EQ(startable(t), std::vector<uint16_t>{2});
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watchers, ABitThatIsLeftBehindGetsNoToken)
{
	WatchRig t;
	t.watch(1, {0});
	t.engine.watch_end(1); // between the end of the wait and the end of the bits
	t.ready(10);
	EXPECT_FALSE(t.has_token(1));
	t.engine.unwatch(0, 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watchers, AFreedQueueReleasesItsWatchers)
{
	WatchRig t;
	t.watch(1, {0, 1});
	t.watch(2, {0, 1});
	const Ref r = t.ready(10);
	const uint32_t woken = t.has_token(1) ? 1 : 2, other = 3 - woken;
	t.engine.drop(t.q(), r, 0);
	t.engine.free_queue(t.q());
	EXPECT_EQ(wakes_of(other), 1);
	EXPECT_FALSE(t.engine.is_watched(0));
	t.engine.init_queue(t.q(), 0, 9, "new", QueueState::active);
	t.watch(3, {0});
	EXPECT_TRUE(t.leave(woken, {0, 1})); // the token was of the old queue
	EXPECT_FALSE(t.leave(other, {0, 1}));
	EXPECT_EQ(t.q().tokens, 0U);
	t.ready(11);
	EXPECT_TRUE(t.has_token(3));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watchers, TheEndOfAJobWakesAllOfItsRow)
{
	WatchRig t;
	const uint32_t row = t.engine.job_row(0, 77);
	t.engine.watch(row, 3);
	t.engine.watch(row, 60);
	t.engine.watch(row, 60); // twice is harmless
	t.engine.wake_watchers(row, false);
	EXPECT_EQ(wakes_of(3) + wakes_of(60), 2);
	t.engine.unwatch(row, 3);
	t.engine.unwatch(row, 3);
	t.engine.unwatch(row, 60);
	EXPECT_FALSE(t.engine.is_watched(row));
}

TEST(Watchers, AWorkersWaitersAreWoken)
{
	WatchRig t;
	t.engine.wait_enter(t.q(), 1, 1, nullptr, 0, worker_bit(5) | worker_bit(6));
	t.engine.wait_enter(t.q(), 2, 2, nullptr, 0);
	t.engine.wake_worker(t.q(), worker_bit(6));
	t.engine.wake_worker(t.q(), worker_bit(7));
	EXPECT_EQ(wakes_of(1), 1);
	EXPECT_EQ(wakes_of(2), 0);
}

} // namespace
