// Groups: which of their jobs may start, whose turn it is, their slots, and how their backlogs come from disk.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

// Claims one, and says which.
JobId next(Rig &t) { return t.id_of(t.claim()); }

using Ids = std::vector<JobId>;
Ids all_next(Rig &t)
{
	Ids out;
	for (JobId id = next(t); id != 0; id = next(t))
		out.push_back(id);
	return out;
}

// --- order

TEST(Groups, OneAtATimeInOrder)
{
	Rig t;
	for (const JobId id : {3, 1, 2})
		t.grouped("a", id);
	for (const JobId id : {1, 2, 3})
	{
		const Ref r = t.claim();
		EXPECT_EQ(t.id_of(r), id);
		EXPECT_EQ(t.claim(), kNil); // the others wait for it,
		t.commit_claim(r);
		EXPECT_EQ(t.claim(), kNil); // committed or not
		EXPECT_EQ(verify(t.engine), "");
		t.finish(r);
	}
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(t.group("a"), kNil); // its slot is free again
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, TwoAtATime)
{
	Rig t;
	t.set([](QueueSettings &s) { s.group_max_running = 2; });
	for (const JobId id : {1, 2, 3, 4})
		t.grouped("a", id);
	const Ref one = t.claim(), two = t.claim();
	EXPECT_EQ(t.id_of(one), 1);
	EXPECT_EQ(t.id_of(two), 2);
	EXPECT_EQ(t.claim(), kNil);
	t.finish(two);
	EXPECT_EQ(next(t), 3);
	EXPECT_EQ(t.claim(), kNil);
	t.undo_claim(one);
	EXPECT_EQ(t.claim(), one);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, NoLimit)
{
	Rig t;
	t.set([](QueueSettings &s) { s.group_max_running = 0; });
	for (const JobId id : {1, 2, 3, 4})
		t.grouped("a", id);
	t.fail(t.claim(), 50); // holds nobody
	EXPECT_EQ(all_next(t), (Ids{2, 3, 4}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, AnUrgentJobGoesFirstWithinItsGroup)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("a", 2);
	t.grouped("a", 3, -1);
	EXPECT_EQ(verify(t.engine), "");
	const Ref r = t.claim();
	EXPECT_EQ(t.id_of(r), 3);
	t.finish(r);
	EXPECT_EQ(next(t), 1);
}

TEST(Groups, TheNextJobMayBeOfAnotherKindAndThenOthersWait)
{
	Rig t;
	t.grouped("a", 1, 0, "x");
	t.grouped("a", 2, 0, "y");
	const uint64_t y = hash_name("y");
	auto terms = Rig::terms();
	terms.kinds = &y;
	terms.nkinds = 1;
	EXPECT_EQ(t.engine.claim(t.q(), terms), kNil); // job 2 waits for job 1, whoever asks
	t.finish(t.claim());
	EXPECT_EQ(t.id_of(t.engine.claim(t.q(), terms)), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, AFailedJobHoldsItsGroup)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("a", 2);
	t.grouped("b", 3);
	t.fail(t.claim(), 50);
	EXPECT_EQ(t.engine.group(t.group("a")).held, 1U);
	EXPECT_EQ(t.engine.blocked(t.q(), t.engine.group(t.group("a"))), Engine::Block::held);
	EXPECT_EQ(all_next(t), (Ids{3})); // others go on
	t.fire(50);
	const Ref again = t.claim();
	EXPECT_EQ(t.id_of(again), 1);
	t.finish(again);
	EXPECT_EQ(next(t), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, AHeldJobThatEndsLetsTheNextGo)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("a", 2);
	const Ref r = t.claim();
	t.fail(r, 50);
	EXPECT_EQ(t.claim(), kNil);
	t.engine.mark(t.q(), r, 1, Verb::cancel, State::terminal);
	EXPECT_EQ(t.claim(), kNil); // not before its end is committed
	t.engine.drop(t.q(), r, 0);
	EXPECT_EQ(next(t), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, InLooseOrderAFailedJobHoldsNobody)
{
	Rig t;
	t.set([](QueueSettings &s) { s.loose_groups = true; });
	t.grouped("a", 1);
	t.grouped("a", 2);
	t.fail(t.claim(), 50);
	const Ref two = t.claim();
	EXPECT_EQ(t.id_of(two), 2);
	t.fire(50);
	EXPECT_EQ(t.claim(), kNil); // but still one at a time
	t.finish(two);
	EXPECT_EQ(next(t), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, AJobEnqueuedForLaterHoldsNobody)
{
	Rig t;
	const Ref g = t.engine.group_for(t.q(), "a", true);
	Ref existing;
	const Ref r = t.engine.insert(t.q(), t.lane(), 1, 0, State::committing, 0, false, &existing, g);
	t.engine.change(t.q(), r, [](Entry &e) noexcept {
		e.state = State::delayed;
		e.timer = 50;
	});
	t.grouped("a", 2);
	EXPECT_EQ(next(t), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, ABlockedGroupDelaysNobody)
{
	Rig t({8192, 4, 1, 1, 4, 2, 16});
	for (JobId id = 1; id <= 5000; ++id)
		t.grouped("busy", id);
	t.grouped("other", 5001);
	t.ready(5002);
	EXPECT_EQ(next(t), 1);
	EXPECT_EQ(t.engine.lane(t.lane()).heads.size, 1U); // 4999 jobs that cost the claims nothing
	EXPECT_EQ(all_next(t), (Ids{5001, 5002}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, SettingsChangedInBetween)
{
	Rig t;
	for (const JobId id : {1, 2, 3, 4})
		t.grouped("a", id);
	EXPECT_EQ(all_next(t), (Ids{1}));
	t.set([](QueueSettings &s) { s.group_max_running = 3; });
	EXPECT_EQ(all_next(t), (Ids{2, 3}));
	t.set([](QueueSettings &s) { s.group_max_running = 1; });
	EXPECT_EQ(all_next(t), (Ids{}));
	t.set([](QueueSettings &s) { s.fair = true, s.group_max_running = kUnset; }); // where groups take turns, no limit
	EXPECT_EQ(all_next(t), (Ids{4}));
	EXPECT_EQ(verify(t.engine), "");
}

// --- slots

TEST(Groups, ASlotForEachOneUntilTheyAreUsedUp)
{
	Rig t(kSmall); // four
	for (const JobId id : {1, 2, 3, 4})
		EXPECT_NE(t.grouped(std::to_string(id).c_str(), id), kNil);
	EXPECT_EQ(t.grouped("5", 5), kNil);
	EXPECT_NE(t.grouped("4", 6), kNil);
	EXPECT_FALSE(t.engine.has_free_group());
	EXPECT_EQ(verify(t.engine), "");
	t.finish(t.claim());
	EXPECT_TRUE(t.engine.has_free_group());
	EXPECT_NE(t.grouped("5", 5), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, WhoeverFreesASlotTellsThoseWhoWaitForOne)
{
	Rig t(kSmall);
	for (const JobId id : {1, 2, 3, 4})
		t.grouped(std::to_string(id).c_str(), id);
	t.engine.sink_job(t.q(), t.lane_at(), "5", kNil, Key{0, 5});
	EXPECT_TRUE(t.q().discover.load());
	t.q().want_refill = false;
	surroundings().refills = 0;
	t.finish(t.claim());
	EXPECT_TRUE(t.q().want_refill.load());
	EXPECT_EQ(surroundings().refills.load(), 1);
}

TEST(Groups, TheSameKeyInTwoQueuesIsTwoGroups)
{
	Rig t;
	t.grouped("a", 1, 0, nullptr, 0);
	t.grouped("a", 2, 0, nullptr, 2);
	EXPECT_NE(t.group("a", 0), t.group("a", 2));
	EXPECT_EQ(t.group("a", 1), kNil);
	EXPECT_EQ(next(t), 1);
	EXPECT_EQ(t.id_of(t.claim(1, 0, 2)), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, AnInsertThatFindsNoRoomLeavesNoSlotBehind)
{
	Rig t(kSmall);
	JobId id = 0;
	while (t.ready(id + 1) != kNil)
		++id;
	EXPECT_EQ(t.grouped("a", 99), kNil);
	EXPECT_EQ(t.group("a"), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, AFreedQueueGivesItsSlotsBack)
{
	Rig t(kSmall);
	for (const JobId id : {1, 2, 3})
		t.grouped(std::to_string(id).c_str(), id);
	t.engine.sink_group(t.q(), t.group("3"), kMinKey);
	for (Ref r = 0; r < 16; ++r)
		if (t.engine.entry(r).home != 0)
			t.engine.drop(t.q(), r, 0);
	EXPECT_NE(t.group("3"), kNil);
	t.engine.free_queue(t.q());
	EXPECT_EQ(t.group("3"), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

// --- turns

void fair(Rig &t)
{
	t.set([](QueueSettings &s) { s.fair = true; });
}

TEST(Turns, OneJobWaitsForOneTurnOfTenThousand)
{
	Rig t({16384, 4, 1, 1, 4, 2, 16});
	fair(t);
	JobId id = 0;
	while (id < 10'000)
		t.grouped("big", ++id);
	for (int i = 0; i < 100; ++i)
		t.finish(t.claim());
	t.grouped("small", 20'000);
	const JobId one = next(t), two = next(t);
	EXPECT_TRUE(one == 20'000 || two == 20'000) << one << ' ' << two;
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, WhoeverAlwaysHasOneJobDoesNotStarveOthers)
{
	Rig t;
	fair(t);
	for (JobId id = 1; id <= 200; ++id)
		t.grouped("big", id);
	int big = 0;
	JobId id = 1000;
	for (int i = 0; i < 200; ++i)
	{
		if (t.group("small") == kNil || t.engine.group(t.group("small")).entries == 0)
			t.grouped("small", ++id);
		big += t.finish(t.claim()) <= 200;
		ASSERT_EQ(verify(t.engine), "");
	}
	EXPECT_EQ(big, 100);
}

TEST(Turns, WeightsShareTheClaims)
{
	Rig t;
	fair(t);
	JobId id = 0;
	for (int i = 0; i < 400; ++i)
		for (const char *g : {"one", "three"})
			t.engine.entry(t.grouped(g, ++id)).weight = *g == 'o' ? 100 : 300;
	int three = 0;
	for (int i = 0; i < 400; ++i)
	{
		const Ref r = t.claim();
		three += t.engine.entry(r).weight == 300;
		// at no time more than a turn from their share
		ASSERT_NEAR(three, 0.75 * (i + 1), 2) << i;
		t.finish(r);
	}
	EXPECT_NEAR(three, 300, 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, JobsWithoutAGroupTakeTurnsAsOneMore)
{
	Rig t;
	fair(t);
	JobId id = 0;
	for (int i = 0; i < 30; ++i)
	{
		t.grouped("a", ++id);
		t.ready(++id, 0, "x");
		t.ready(++id, 0, "y");
	}
	int grouped = 0;
	for (int i = 0; i < 40; ++i)
	{
		const Ref r = t.claim();
		grouped += t.engine.entry(r).group != kNil;
		t.finish(r);
		ASSERT_EQ(verify(t.engine), "");
	}
	EXPECT_EQ(grouped, 20);
}

TEST(Turns, PriorityGoesBeforeTurn)
{
	Rig t;
	fair(t);
	for (const JobId id : {1, 2, 3, 4})
		t.grouped("a", id, -1);
	for (const JobId id : {5, 6})
		t.grouped("b", id);
	t.grouped("c", 7, -2);
	EXPECT_EQ(all_next(t), (Ids{7, 1, 2, 3, 4, 5, 6}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, NobodySavesUpTurns)
{
	Rig t;
	fair(t);
	for (JobId id = 1; id <= 100; ++id)
		t.grouped("busy", id);
	t.grouped("late", 101);
	t.finish(t.claim()), t.finish(t.claim());
	for (int i = 0; i < 50; ++i)
		t.finish(t.claim()); // `late` has nothing
	for (JobId id = 201; id <= 220; ++id)
		t.grouped("late", id);
	int late = 0;
	for (int i = 0; i < 20; ++i)
		late += t.finish(t.claim()) > 200;
	EXPECT_EQ(late, 10);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, AGroupThatRestsGivesItsSlotToOneThatHasJobs)
{
	Rig t(kSmall);
	fair(t);
	for (const JobId id : {1, 2, 3, 4})
		t.grouped(std::to_string(id).c_str(), id);
	for (int i = 0; i < 3; ++i)
		t.finish(t.claim());
	EXPECT_EQ(t.q().resting.size, 3U);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_NE(t.grouped("5", 5), kNil);
	EXPECT_EQ(t.q().resting.size, 2U);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(all_next(t).size(), 2U); // and when all have had theirs, nothing is left to remember
	EXPECT_EQ(t.q().resting.size, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, GroupsThatRestDoNotKeepSlotsFromOtherQueues)
{
	Rig t({64, 4, 2, 1, 4, 2, 2});
	fair(t);
	t.grouped("a", 1);
	t.grouped("b", 2);
	t.finish(t.claim());
	EXPECT_EQ(t.q().resting.size, 1U);
	EXPECT_EQ(t.grouped("c", 3, 0, nullptr, 1), kNil);
	t.engine.want_groups_again(t.q()); // the scheduler's sweep
	EXPECT_NE(t.grouped("c", 3, 0, nullptr, 1), kNil);
	t.finish(t.claim());
	EXPECT_EQ(t.q().resting.size, 1U);
	t.engine.want_groups_again(t.q()); // nobody claims any more
	EXPECT_EQ(t.q().resting.size, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, SwitchedOnAndOff)
{
	Rig t;
	JobId id = 0;
	for (int i = 0; i < 20; ++i)
		t.grouped("a", ++id);
	for (int i = 0; i < 20; ++i)
		t.grouped("b", ++id);
	t.set([](QueueSettings &s) { s.group_max_running = 0; });
	for (JobId want = 1; want <= 4; ++want)
		EXPECT_EQ(t.finish(t.claim()), want);
	fair(t);
	int b = 0;
	for (int i = 0; i < 8; ++i)
		b += t.finish(t.claim()) > 20;
	EXPECT_EQ(b, 4);
	EXPECT_EQ(verify(t.engine), "");
	t.set([](QueueSettings &s) { s.fair = false; });
	EXPECT_EQ(t.finish(t.claim()), 9);
	EXPECT_EQ(t.finish(t.claim()), 10);
	EXPECT_EQ(verify(t.engine), "");
}

// --- from disk

TEST(GroupPaging, WhatIsOnDiskStopsItsGroupAndNobodyElse)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("b", 2);
	const Ref a = t.group("a");
	t.engine.sink_job(t.q(), t.lane_at(), "a", kNil, Key{0, 1}); // an older one
	EXPECT_EQ(t.engine.blocked(t.q(), t.engine.group(a)), Engine::Block::disk);
	EXPECT_EQ(all_next(t), (Ids{2}));
	EXPECT_TRUE(t.q().want_refill.load());
	EXPECT_EQ(t.engine.take_wanted(t.q()), a);
	EXPECT_EQ(t.engine.take_wanted(t.q()), kNil);
	EXPECT_EQ(t.engine.start_group_load(t.q(), a, 1), (Key{0, 1}));
	EXPECT_EQ(verify(t.engine), "");
	t.engine.raise_group(t.q(), a, kMaxKey);
	t.engine.end_group_load(t.q(), a, true);
	EXPECT_EQ(all_next(t), (Ids{1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, ALoaderStopsBeforeWhatItMayHaveMissed)
{
	Rig t;
	t.grouped("a", 1);
	const Ref a = t.group("a");
	t.engine.sink_group(t.q(), a, Key{0, 10});
	t.engine.start_group_load(t.q(), a, 1);
	t.engine.sink_group(t.q(), a, Key{0, 50}); // came after its snapshot
	t.engine.raise_group(t.q(), a, kMaxKey);
	EXPECT_EQ(t.engine.group(a).watermark, (Key{0, 50}));
	t.engine.end_group_load(t.q(), a, true);
	EXPECT_FALSE(t.engine.takes(t.q(), "a", Key{0, 50}));
	EXPECT_TRUE(t.engine.takes(t.q(), "a", Key{0, 49}));
	EXPECT_TRUE(t.engine.takes(t.q(), "b", Key{0, 50}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, AGroupThatMayHaveJobsOnDiskKeepsItsSlot)
{
	Rig t;
	t.grouped("a", 1);
	const Ref a = t.group("a");
	t.engine.sink_group(t.q(), a, Key{0, 10});
	t.finish(t.claim());
	EXPECT_EQ(t.group("a"), a);
	EXPECT_EQ(t.engine.take_wanted(t.q()), a);
	t.engine.start_group_load(t.q(), a, 1);
	t.engine.raise_group(t.q(), a, kMaxKey); // there was nothing
	t.engine.end_group_load(t.q(), a, true);
	EXPECT_EQ(t.group("a"), kNil);
	EXPECT_EQ(t.q().sunk_groups, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, TheOneThatHasWaitedLongestIsReadFirst)
{
	Rig t;
	for (const char *key : {"a", "b", "c", "d"})
	{
		t.grouped(key, *key);
		t.engine.sink_group(t.q(), t.group(key), kMinKey);
	}
	const Ref a = t.group("a"), b = t.group("b"), c = t.group("c"), d = t.group("d");
	EXPECT_EQ(t.engine.take_wanted(t.q()), a);
	t.engine.start_group_load(t.q(), a, 1);
	t.engine.end_group_load(t.q(), a, true); // it comes last now
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.engine.take_wanted(t.q()), b);
	t.engine.start_group_load(t.q(), b, 1);
	t.engine.end_group_load(t.q(), b, false); // there was no room: not again before the sweep
	EXPECT_EQ(verify(t.engine), "");
	for (const Ref g : {c, d, a})
		EXPECT_EQ(t.engine.take_wanted(t.q()), g);
	EXPECT_EQ(t.engine.take_wanted(t.q()), kNil);
	EXPECT_EQ(verify(t.engine), "");
	t.engine.want_groups_again(t.q());
	for (int n = 0; n < 4; ++n)
		EXPECT_NE(t.engine.take_wanted(t.q()), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, EvictionTakesTheLastAndLeavesTheFirst)
{
	Rig t;
	for (const JobId id : {1, 2, 3})
		t.grouped("a", id);
	const Ref a = t.group("a");
	EXPECT_TRUE(t.engine.evict_from_group(t.q(), a, kMinKey, 0));
	EXPECT_EQ(t.engine.group(a).watermark, (Key{0, 3}));
	EXPECT_FALSE(t.engine.evict_from_group(t.q(), a, Key{0, 2}, 0));
	EXPECT_TRUE(t.engine.evict_from_group(t.q(), a, kMinKey, 0));
	EXPECT_FALSE(t.engine.evict_from_group(t.q(), a, kMinKey, 0));
	EXPECT_EQ(next(t), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, AGroupThatWaitsGivesItsSlotToOneThatMustHaveIt)
{
	Rig t(kSmall);
	for (const JobId id : {1, 2, 3, 4})
		t.grouped(std::to_string(id).c_str(), id);
	t.grouped("4", 5);
	const Ref four = t.group("4"), one = t.group("1");
	EXPECT_EQ(next(t), 1);
	EXPECT_FALSE(t.engine.evict_group(t.q(), one, 0)); // it runs
	EXPECT_TRUE(t.engine.evict_group(t.q(), four, 0));
	EXPECT_EQ(t.group("4"), kNil);
	EXPECT_TRUE(t.engine.has_free_group());
	EXPECT_TRUE(Engine::unknown_groups(t.q()));
	EXPECT_FALSE(t.engine.takes(t.q(), "4", Key{0, 4}));
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(all_next(t), (Ids{2, 3}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, AGroupThatRemembersItsStartsKeepsItsSlot)
{
	Rig t(kSmall);
	t.set([](QueueSettings &s) { s.group_max_running = 0, s.group_rate = Rate{1000000000, 2}; });
	t.grouped("a", 1);
	t.grouped("a", 2);
	t.finish(t.claim());
	EXPECT_FALSE(t.engine.evict_group(t.q(), t.group("a"), 0));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, JobsBehindOthersOnDiskAreNoneToOffer)
{
	Rig t;
	t.grouped("a", 5);
	const Ref a = t.group("a");
	EXPECT_FALSE(t.engine.offers_nothing(t.engine.group(a)));
	t.engine.sink_group(t.q(), a, Key{0, 3});
	EXPECT_TRUE(t.engine.offers_nothing(t.engine.group(a)));
	EXPECT_TRUE(t.engine.evict_from_group(t.q(), a, Key{0, 3}, 0));
	EXPECT_TRUE(t.engine.offers_nothing(t.engine.group(a)));
	EXPECT_EQ(t.engine.take_wanted(t.q()), a);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, AJobThatItsGroupWaitsForIsNotEvicted)
{
	Rig t;
	t.grouped("a", 1);
	t.fail(t.claim(), 50);
	EXPECT_FALSE(t.engine.evict_delayed(t.q(), 0));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, GroupsNobodyKnowsAreKnownToBeUnknown)
{
	Rig t;
	EXPECT_TRUE(t.engine.takes(t.q(), "a", Key{0, 1}));
	t.engine.sink_job(t.q(), t.lane_at(), "x", kNil, Key{0, 7});
	EXPECT_TRUE(Engine::unknown_groups(t.q()));
	EXPECT_FALSE(t.engine.takes(t.q(), "a", Key{0, 1})); // it may have older ones
	t.grouped("a", 1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(t.engine.group(t.group("a")).watermark, kMinKey);
	t.q().discover = false;
	EXPECT_EQ(t.engine.take_wanted(t.q()), t.group("a"));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, ManyAtOnceConcernAllGroupsWithASlotOrNot)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("b", 5);
	t.engine.sink_groups(t.q(), Key{0, 5});
	EXPECT_TRUE(Engine::unknown_groups(t.q()));
	EXPECT_EQ(t.engine.group(t.group("a")).watermark, (Key{0, 5}));
	EXPECT_EQ(all_next(t), (Ids{1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, AJobOfALaneOnDiskWaitsForTheLane)
{
	Rig t;
	t.grouped("a", 5);
	t.engine.sink(t.q(), t.lane_at(), Key{0, 3}); // jobs without a group, older
	EXPECT_EQ(t.claim(), kNil);
	t.set([](QueueSettings &s) { s.fair = true; }); // it is the group's turn whatever the others have
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(next(t), 5);
}

} // namespace
