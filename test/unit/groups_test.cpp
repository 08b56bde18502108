// Groups: which jobs may start, turns, slots, and backlogs that are read from disk.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

// Claims one job and returns its id.
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
	t.fail(t.claim(), 50); // blocks no other job
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
	EXPECT_EQ(t.engine.claim(t.q(), terms), kNil); // job 2 waits for job 1, whichever worker asks
	t.finish(t.claim());
	EXPECT_EQ(t.id_of(t.engine.claim(t.q(), terms)), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, AFailedJobBlocksItsGroup)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("a", 2);
	t.grouped("b", 3);
	t.fail(t.claim(), 50);
	EXPECT_EQ(t.engine.group(t.group("a")).held, 1U);
	EXPECT_EQ(t.engine.blocked(t.q(), t.engine.group(t.group("a"))), Block::held);
	EXPECT_EQ(all_next(t), (Ids{3})); // others go on
	t.fire(50);
	const Ref again = t.claim();
	EXPECT_EQ(t.id_of(again), 1);
	t.finish(again);
	EXPECT_EQ(next(t), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, EachWrongCounterShowsInTheSums)
{
	Rig t;
	for (JobId id = 1; id <= 20; ++id)
		t.grouped(id % 2 == 0 ? "a" : "b", id);
	t.fail(t.claim(), 50);
	static_cast<void>(t.claim());
	LimitSums counted{}, kept{};
	for (Ref r = 0; r < t.engine.limits().entries; ++r)
		if (t.engine.entry(r).home == t.engine.index_of(t.q()) + 1)
			Engine::count_entry(t.engine.entry(r), &counted);
	const Ref a = t.group("a"), b = t.group("b");
	const auto sums = [&] {
		kept = LimitSums{};
		Engine::count_kept(t.q(), &kept);
		Engine::count_kept(a, t.engine.group(a), &kept);
		Engine::count_kept(b, t.engine.group(b), &kept);
		return kept;
	};
	EXPECT_EQ(sums(), counted);
	for (uint32_t *counter : {&t.q().running, &t.engine.group(a).entries, &t.engine.group(a).running, &t.engine.group(b).held})
	{
		++*counter;
		EXPECT_NE(sums(), counted);
		--*counter;
	}
	// the total over all groups is right, but single groups are wrong
	++t.engine.group(a).entries;
	--t.engine.group(b).entries;
	EXPECT_NE(sums(), counted);
	++t.engine.group(b).entries;
	--t.engine.group(a).entries;
	EXPECT_EQ(sums(), counted);
}

TEST(Groups, TheEndOfABlockingJobUnblocksItsGroup)
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

TEST(Groups, InLooseOrderAFailedJobBlocksNoOther)
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

TEST(Groups, ADelayedJobBlocksNoOther)
{
	Rig t;
	const Ref g = t.engine.group_for(t.q(), "a", true);
	Ref existing;
	const Ref r = t.engine.insert(t.q(),
		{.lane = t.lane(), .id = 1, .priority = 0, .state = State::committing, .group = g}, 0, &existing);
	t.engine.change(t.q(), r, [](Entry &e) noexcept {
		e.state = State::delayed;
		e.timer = 50;
	});
	t.grouped("a", 2);
	EXPECT_EQ(next(t), 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, ABlockedGroupDelaysNoOther)
{
	Rig t({8192, 4, 1, 1, 4, 2, 16});
	for (JobId id = 1; id <= 5000; ++id)
		t.grouped("busy", id);
	t.grouped("other", 5001);
	t.ready(5002);
	EXPECT_EQ(next(t), 1);
	EXPECT_EQ(t.engine.lane(t.lane()).heads.size, 1U); // 4999 jobs that do not slow down claims
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

TEST(Groups, EachGroupGetsASlotWhileSlotsLast)
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

TEST(Groups, AFreedSlotWakesWaiters)
{
	Rig t(kSmall);
	for (const JobId id : {1, 2, 3, 4})
		t.grouped(std::to_string(id).c_str(), id);
	t.engine.lower_job_watermark(t.q(), t.lane_at(), "5", kNil, Key{0, 5});
	EXPECT_TRUE(t.q().discover.load());
	t.q().want_refill = false;
	surroundings().refills = 0;
	t.finish(t.claim());
	EXPECT_TRUE(t.q().want_refill.load());
	EXPECT_EQ(surroundings().refills.load(), 1);
}

TEST(Groups, APauseHoldsOneGroup)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("b", 2);
	t.engine.set_group(t.q(), t.group("a"), {.paused_until = kNever});
	EXPECT_EQ(t.engine.blocked(t.q(), t.engine.group(t.group("a"))), Block::paused);
	EXPECT_EQ(all_next(t), Ids{2});
	t.grouped("a", 3, -1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_FALSE(t.engine.evict_group(t.q(), t.group("a"), 0));
	EXPECT_EQ(verify(t.engine), "");
	t.engine.set_group(t.q(), t.group("a"), {});
	EXPECT_EQ(next(t), 3);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, APausedGroupKeepsItsSlotWithoutJobs)
{
	Rig t(kSmall);
	const Ref g = t.engine.group_for(t.q(), "a", true);
	t.engine.hold_group(t.q(), g, 1);
	t.engine.set_group(t.q(), g, {.paused_until = 5});
	t.engine.hold_group(t.q(), g, -1);
	EXPECT_EQ(t.group("a"), g);
	t.engine.set_group(t.q(), g, {});
	EXPECT_EQ(t.group("a"), kNil);
	t.engine.hold_group(t.q(), t.engine.group_for(t.q(), "b", true), 1);
	t.engine.hold_group(t.q(), t.group("b"), -1); // rolled back
	EXPECT_EQ(t.group("b"), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, OneGroupHasLimitsOfItsOwn)
{
	Rig t;
	for (const JobId id : {1, 2, 3, 4})
		t.grouped("a", id);
	for (const JobId id : {5, 6})
		t.grouped("b", id);
	t.engine.set_group(t.q(), t.group("a"), {.max_running = 3});
	EXPECT_EQ(all_next(t), (Ids{1, 2, 3, 5}));
	EXPECT_EQ(verify(t.engine), "");
	t.engine.set_group(t.q(), t.group("a"), {.max_running = 0});
	EXPECT_EQ(all_next(t), Ids{4});
	t.grouped("a", 7);
	t.engine.set_group(t.q(), t.group("a"), {});
	EXPECT_EQ(all_next(t), Ids{});
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, OneGroupHasARateOfItsOwn)
{
	Rig t;
	t.set([](QueueSettings &s) { s.group_max_running = 0; });
	for (const JobId id : {1, 2, 3})
		t.grouped("a", id);
	t.grouped("b", 4);
	t.grouped("b", 5);
	t.engine.set_group(t.q(), t.group("a"), {.rate = Rate{1'000'000'000, 1}});
	EXPECT_EQ(all_next(t), (Ids{1, 4, 5}));
	surroundings().mono += 1'000'000;
	t.engine.open_due(t.q(), surroundings().mono, 10);
	EXPECT_EQ(all_next(t), Ids{2});
	EXPECT_EQ(verify(t.engine), "");
	t.set([](QueueSettings &s) { s.group_rate = Rate{1'000'000'000, 5}, s.group_max_running = 0; });
	EXPECT_EQ(all_next(t), Ids{});
	t.engine.set_group(t.q(), t.group("a"), {}); // the queue's
	EXPECT_EQ(all_next(t), Ids{3});
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Groups, ARateOfAGroupIsEmptyAfterALoad)
{
	Rig t;
	t.engine.forget_starts(t.q(), surroundings().mono);
	const Ref g = t.engine.group_for(t.q(), "a", true);
	t.engine.set_group(t.q(), g, {.rate = Rate{1'000'000'000, 2}}, true);
	t.grouped("a", 1);
	EXPECT_EQ(all_next(t), Ids{});
	surroundings().mono += 1'000'000;
	t.engine.open_due(t.q(), surroundings().mono, 10);
	EXPECT_EQ(all_next(t), Ids{1});
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

TEST(Groups, AnInsertIntoFullMemoryLeavesNoSlotBehind)
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
	t.engine.lower_group_watermark(t.q(), t.group("3"), kMinKey);
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

TEST(Turns, AJobClaimedBeforeItsCommitTakesTheTurnOfItsGroup)
{
	Rig t;
	fair(t);
	t.grouped("a", 1);
	t.grouped("b", 2);
	Ref existing;
	const Ref own = t.engine.insert(
		t.q(), {.lane = t.lane(), .id = 3, .priority = 0, .state = State::committing, .group = t.group("a")}, 0,
		&existing);
	EXPECT_TRUE(t.engine.claim_own(t.q(), own, Rig::terms()));
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, AGroupWithAlwaysOneJobDoesNotStarveOthers)
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
		// never more than one turn away from their share
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

TEST(Turns, NoGroupSavesUpTurns)
{
	Rig t;
	fair(t);
	for (JobId id = 1; id <= 100; ++id)
		t.grouped("busy", id);
	t.grouped("late", 101);
	t.finish(t.claim()), t.finish(t.claim());
	for (int i = 0; i < 50; ++i)
		t.finish(t.claim()); // `late` has no jobs
	for (JobId id = 201; id <= 220; ++id)
		t.grouped("late", id);
	int late = 0;
	for (int i = 0; i < 20; ++i)
		late += t.finish(t.claim()) > 200;
	EXPECT_EQ(late, 10);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, AnIdleGroupYieldsItsSlotToAGroupWithJobs)
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
	EXPECT_EQ(all_next(t).size(), 2U); // after all groups had their turn, no turn is stored
	EXPECT_EQ(t.q().resting.size, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Turns, IdleGroupsDoNotKeepSlotsFromOtherQueues)
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
	t.engine.want_groups_again(t.q()); // no worker claims any more
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

TEST(GroupPaging, JobsOnDiskBlockOnlyTheirGroup)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("b", 2);
	const Ref a = t.group("a");
	t.engine.lower_job_watermark(t.q(), t.lane_at(), "a", kNil, Key{0, 1}); // an older one
	EXPECT_EQ(t.engine.blocked(t.q(), t.engine.group(a)), Block::disk);
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

TEST(GroupPaging, ALoaderStopsBeforeJobsItMayHaveMissed)
{
	Rig t;
	t.grouped("a", 1);
	const Ref a = t.group("a");
	t.engine.lower_group_watermark(t.q(), a, Key{0, 10});
	t.engine.start_group_load(t.q(), a, 1);
	t.engine.lower_group_watermark(t.q(), a, Key{0, 50}); // committed after the snapshot
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
	t.engine.lower_group_watermark(t.q(), a, Key{0, 10});
	t.finish(t.claim());
	EXPECT_EQ(t.group("a"), a);
	EXPECT_EQ(t.engine.take_wanted(t.q()), a);
	t.engine.start_group_load(t.q(), a, 1);
	t.engine.raise_group(t.q(), a, kMaxKey); // found nothing
	t.engine.end_group_load(t.q(), a, true);
	EXPECT_EQ(t.group("a"), kNil);
	EXPECT_EQ(t.q().paged_groups, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, TheGroupThatWaitedLongestIsReadFirst)
{
	Rig t;
	for (const char *key : {"a", "b", "c", "d"})
	{
		t.grouped(key, *key);
		t.engine.lower_group_watermark(t.q(), t.group(key), kMinKey);
	}
	const Ref a = t.group("a"), b = t.group("b"), c = t.group("c"), d = t.group("d");
	EXPECT_EQ(t.engine.take_wanted(t.q()), a);
	t.engine.start_group_load(t.q(), a, 1);
	t.engine.end_group_load(t.q(), a, true); // it goes to the end of the line
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.engine.take_wanted(t.q()), b);
	t.engine.start_group_load(t.q(), b, 1);
	t.engine.end_group_load(t.q(), b, false); // memory is full: not read again before the sweep
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
	EXPECT_FALSE(t.engine.evict_group(t.q(), one, 0)); // it is running
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

TEST(GroupPaging, JobsBehindOthersOnDiskAreNotOffered)
{
	Rig t;
	t.grouped("a", 5);
	const Ref a = t.group("a");
	EXPECT_FALSE(t.engine.offers_nothing(t.engine.group(a)));
	t.engine.lower_group_watermark(t.q(), a, Key{0, 3});
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
	t.engine.want_discovery(t.q());
	EXPECT_FALSE(t.engine.takes(t.q(), "a", Key{0, 1})); // it may have older jobs
	t.grouped("a", 1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(t.engine.group(t.group("a")).watermark, kMinKey);
	t.q().discover = false;
	EXPECT_EQ(t.engine.take_wanted(t.q()), t.group("a"));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, ManyAtOnceConcernTheirOwnGroupsWhileThereAreSlots)
{
	Rig t;
	t.grouped("a", 1);
	t.engine.lower_job_watermark(t.q(), t.lane_at(), "b", kNil, Key{-1, 9}, 7);
	EXPECT_FALSE(Engine::unknown_groups(t.q()));
	const Ref b = t.group("b");
	EXPECT_EQ(t.engine.take_wanted(t.q()), b);
	EXPECT_TRUE(t.engine.covered_by_watermark(t.q(), t.lane_at(), "b", b, Key{0, 6})); // all earlier jobs have ended
	EXPECT_FALSE(t.engine.covered_by_watermark(t.q(), t.lane_at(), "b", b, Key{0, 7}));
	t.engine.start_group_load(t.q(), b, 1);
	t.engine.raise_group(t.q(), b, kMaxKey);
	EXPECT_EQ(t.engine.group(b).floor, INT64_MAX);
	t.engine.end_group_load(t.q(), b, true);
	EXPECT_TRUE(t.engine.takes(t.q(), "c", Key{0, 10}));
	EXPECT_EQ(all_next(t), (Ids{1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, ManyAtOnceConcernAllGroupsWithASlotOrNot)
{
	Rig t;
	t.grouped("a", 1);
	t.grouped("b", 5);
	t.engine.lower_group_watermarks(t.q(), Key{0, 5});
	EXPECT_TRUE(Engine::unknown_groups(t.q()));
	EXPECT_EQ(t.engine.group(t.group("a")).watermark, (Key{0, 5}));
	EXPECT_EQ(all_next(t), (Ids{1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(GroupPaging, AJobOfALaneOnDiskWaitsForTheLane)
{
	Rig t;
	t.grouped("a", 5);
	t.engine.lower_watermark(t.q(), t.lane_at(), Key{0, 3}); // jobs without a group, older
	EXPECT_EQ(t.claim(), kNil);
	t.set([](QueueSettings &s) { s.fair = true; }); // the group's turn comes first, whatever other lanes have
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(next(t), 5);
}

} // namespace
