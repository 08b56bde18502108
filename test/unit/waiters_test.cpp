// Tokens: which waiter is woken, and that an unused token goes to another waiter.
#include <gtest/gtest.h>

#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

struct WaitRig : Rig
{
	using Rig::Rig;

	// Registers waiter i of process i.
	void enter(Ref i, std::vector<const char *> kinds = {}, uint16_t queue = 0)
	{
		std::vector<uint64_t> hashes;
		for (const char *k : kinds)
			hashes.push_back(hash_name(k));
		engine.wait_enter(q(queue), i, i, hashes.data(), static_cast<int>(hashes.size()));
	}
	bool leave(Ref i, uint16_t queue = 0) { return engine.wait_leave(q(queue), i); }
	bool has_token(Ref i) { return engine.waiter(i).granted; }
};

TEST(Waiters, TheFirstMatchingWaiterIsWoken)
{
	WaitRig t;
	t.enter(1, {"mail"});
	t.enter(2, {"print", "scan"});
	t.enter(3);
	t.enter(4, {"scan"});
	t.ready(10, 0, "scan");
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_TRUE(t.has_token(2));
	EXPECT_EQ(wakes_of(2), 1);
	t.ready(11);
	EXPECT_TRUE(t.has_token(3));
	t.ready(12, 0, "fax");
	EXPECT_EQ(wakes_of(1) + wakes_of(4), 0);
	EXPECT_EQ(t.q().tokens, 2U);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_FALSE(t.leave(1));
	EXPECT_TRUE(t.leave(2));
	EXPECT_TRUE(t.leave(3));
	EXPECT_TRUE(t.has_token(4)); // the scan job is still there
	EXPECT_TRUE(t.leave(4));
	EXPECT_EQ(verify(t.engine), "");
}

int calls = 0;

TEST(Waiters, TheCallbackRunsOnceForAJobWithoutAWaiter)
{
	WaitRig t;
	calls = 0;
	t.engine.set_platform({lock_partition, unlock_partition, set_latch, note_sooner, note_refill, mono_now,
						   [](uint32_t) noexcept { ++calls; }});
	t.ready(10);
	EXPECT_EQ(calls, 0); // no caller asked
	t.engine.call_when_startable(t.q());
	EXPECT_EQ(calls, 0); // for the next one
	t.ready(11);
	t.ready(12);
	EXPECT_EQ(calls, 1);
	t.engine.call_when_startable(t.q());
	t.enter(1);
	t.ready(13);
	EXPECT_TRUE(t.has_token(1));
	EXPECT_EQ(calls, 1); // a waiter has it
	EXPECT_TRUE(t.leave(1));
	EXPECT_EQ(calls, 2); // ... and leaves without a job
	t.engine.call_when_startable(t.q());
	t.enter(2, {"fax"});
	t.ready(14);
	EXPECT_EQ(calls, 3); // its filter does not match
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Waiters, ACallComesWhenALimitOpens)
{
	WaitRig t;
	calls = 0;
	t.engine.set_platform({lock_partition, unlock_partition, set_latch, note_sooner, note_refill, mono_now,
						   [](uint32_t) noexcept { ++calls; }});
	t.q().settings.max_running = 1;
	t.ready(10);
	t.ready(11);
	const Ref r = t.claim();
	t.commit_claim(r);
	t.engine.call_when_startable(t.q());
	t.ready(12);
	EXPECT_EQ(calls, 0); // no job may start
	t.engine.drop(t.q(), r, 0);
	EXPECT_EQ(calls, 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Waiters, AnUnusedTokenIsPassedOn)
{
	WaitRig t;
	t.enter(1);
	t.enter(2);
	t.ready(10);
	EXPECT_TRUE(t.has_token(1));
	EXPECT_FALSE(t.has_token(2));
	t.leave(1); // cancelled
	EXPECT_TRUE(t.has_token(2));
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_NE(t.claim(), kNil);
	t.leave(2);
	EXPECT_EQ(t.q().tokens, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Waiters, NoTokenIsPassedOnWhenTheJobIsGone)
{
	WaitRig t;
	t.enter(1);
	t.enter(2);
	t.ready(10);
	t.claim(); // a worker that did not wait was faster
	t.leave(1);
	EXPECT_EQ(wakes_of(2), 0);
	EXPECT_EQ(verify(t.engine), "");
}

// Waiter 1 takes any job, waiter 2 only mail. Mail arrives (token to 1), then a print job that only 1 may take; 1
// claims the print job.
TEST(Waiters, AJobOtherThanTheTokensLeavesTheTokensJobToOthers)
{
	WaitRig t;
	t.enter(1);
	t.enter(2, {"mail"});
	t.ready(10, 5, "mail");
	t.ready(11, 0, "print");
	EXPECT_FALSE(t.has_token(2));
	EXPECT_EQ(t.id_of(t.claim()), 11);
	t.leave(1);
	EXPECT_TRUE(t.has_token(2));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Waiters, ABurstWakesOneEach)
{
	WaitRig t;
	for (Ref i = 0; i < 10; ++i)
		t.enter(i);
	for (JobId id = 1; id <= 6; ++id)
		t.ready(id);
	EXPECT_EQ(t.q().tokens, 6U);
	for (Ref i = 0; i < 6; ++i)
	{
		ASSERT_NE(t.claim(), kNil);
		EXPECT_TRUE(t.leave(i));
		EXPECT_EQ(verify(t.engine), "");
	}
	for (Ref i = 6; i < 10; ++i)
		EXPECT_EQ(wakes_of(i), 0) << i; // no thundering herd
	EXPECT_EQ(t.q().tokens, 0U);
}

TEST(Waiters, EveryWayToBecomeStartableWakes)
{
	WaitRig t;
	Lane &l = t.lane_at();
	auto one_wakes = [&t](const char *how) {
		EXPECT_TRUE(t.has_token(1)) << how;
		EXPECT_EQ(verify(t.engine), "") << how;
		const Ref r = t.claim();
		EXPECT_NE(r, kNil) << how;
		t.leave(1);
		return r;
	};
	t.enter(1);
	t.delayed(10, 100);
	EXPECT_FALSE(t.has_token(1));
	t.engine.fire_due(t.q(), 100, 1);
	Ref r = one_wakes("due");
	t.enter(1);
	t.undo_claim(r);
	r = one_wakes("claim rolled back");
	t.enter(1);
	t.commit_claim(r);
	EXPECT_FALSE(t.has_token(1));
	t.undo_claim(r);
	one_wakes("lease lost");
	t.engine.set_paused(t.q(), nullptr, kNever);
	t.enter(1);
	t.ready(20);
	EXPECT_FALSE(t.has_token(1));
	t.engine.set_paused(t.q(), nullptr, 0);
	one_wakes("queue resumed");
	t.engine.set_paused(t.q(), &l, kNever);
	t.enter(1);
	t.ready(21);
	EXPECT_FALSE(t.has_token(1));
	t.engine.set_paused(t.q(), &l, 0);
	one_wakes("lane resumed");
	t.engine.lower_watermark(t.q(), l, Key{0, 5});
	t.enter(1);
	t.ready(22);
	EXPECT_FALSE(t.has_token(1));
	l.limit = kMaxKey;
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	r = one_wakes("watermark raised");
	t.undo_claim(r);
	t.engine.mark(t.q(), r, 3, Verb::cancel, State::terminal);
	t.enter(1);
	t.engine.change(t.q(), r, [](Entry &e) noexcept { e.mark = Verb::none; });
	one_wakes("verb rolled back");
}

// A filter with too many kinds matches any kind, so its waiter may be woken in vain. Two such waiters must not wake
// each other forever.
TEST(Waiters, TwoWaitersWithLongFiltersDoNotWakeEachOther)
{
	WaitRig t;
	const std::vector<const char *> many{"a", "b", "c", "d", "e", "f", "g", "h", "i"};
	t.enter(1, many);
	t.enter(2, many);
	t.ready(10, 0, "other");
	for (int i = 0; i < 20; ++i)
		for (const Ref w : {1U, 2U})
			if (t.has_token(w))
			{
				t.leave(w); // no job matches its filter
				t.enter(w, many);
			}
	EXPECT_EQ(wakes_of(1), 1);
	EXPECT_EQ(wakes_of(2), 1);
	EXPECT_EQ(verify(t.engine), "");
	t.ready(11, 0, "i");
	EXPECT_EQ(wakes_of(1) + wakes_of(2), 3);
}

TEST(Waiters, LeavingInAnyOrderKeepsTheList)
{
	WaitRig t;
	for (Ref i = 0; i < 5; ++i)
		t.enter(i);
	for (const Ref i : {2U, 0U, 4U, 1U, 3U})
	{
		EXPECT_FALSE(t.leave(i));
		EXPECT_FALSE(t.leave(i)); // twice is harmless
		EXPECT_EQ(verify(t.engine), "");
	}
}

TEST(Waiters, ABatchIsSharedAmongAwakeWaiters)
{
	WaitRig t;
	for (JobId id = 10; id < 15; ++id)
		t.ready(id);
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, false), 50); // no waiters
	for (Ref i = 0; i < 3; ++i)
		t.enter(i);
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, false), 50); // the waiters have seen these jobs, and sleep
	t.ready(20);
	t.ready(21);
	EXPECT_EQ(t.q().tokens, 2U);
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, true), 4);  // of 7, with one other waiter
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, false), 3); // with two other waiters
	EXPECT_EQ(t.engine.claim_share(t.q(), 2, false), 2);
	t.ready(22, 0, "print"); // counts all lanes
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, true), 3);
	t.q().settings.max_running = 2;
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, true), 1);
	t.q().settings.max_running = 1;
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, true), 1); // at least one
	t.leave(0);
	t.leave(1);
	t.leave(2);
	EXPECT_EQ(t.engine.claim_share(t.q(), 50, false), 50);
}

TEST(Waiters, AFreedQueueReleasesItsWaiters)
{
	WaitRig t;
	t.enter(1);
	t.enter(2);
	t.enter(3);
	const Ref r = t.ready(10);
	EXPECT_TRUE(t.has_token(1));
	t.engine.drop(t.q(), r, 0);
	t.engine.free_queue(t.q());
	EXPECT_EQ(wakes_of(2), 1);
	t.engine.init_queue(t.q(), 0, 9, "new", QueueState::active);
	t.enter(4);
	t.leave(1);
	t.leave(2);
	EXPECT_EQ(verify(t.engine), "");
	t.enter(2);
	t.leave(3);
	EXPECT_EQ(verify(t.engine), "");
	t.ready(11);
	EXPECT_TRUE(t.has_token(4));
	EXPECT_EQ(verify(t.engine), "");
}

} // namespace
