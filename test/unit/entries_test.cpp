// Entries: insert, find, drop, the reserve, and a full memory.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

TEST(Entries, InsertFindDrop)
{
	Rig t;
	Ref existing;
	const Ref r = t.engine.insert(t.q(),
		{.lane = t.lane(), .id = 7, .priority = 3, .state = State::placeholder}, 0, &existing);
	ASSERT_NE(r, kNil);
	EXPECT_EQ(verify(t.engine), "");
	const Entry &e = t.engine.entry(r);
	EXPECT_EQ(e.key(), (Key{3, 7}));
	EXPECT_EQ(e.timer, kNever);
	EXPECT_EQ(e.expires_at, kNever);
	EXPECT_EQ(e.step, 1);
	EXPECT_EQ(e.worker(), kNil);
	uint16_t q = 99;
	EXPECT_EQ(t.engine.find(0, 7, &q), r);
	EXPECT_EQ(q, 0);
	EXPECT_TRUE(t.engine.is(r, 0, 7));
	EXPECT_TRUE(t.engine.is(t.q(), r, 7));
	EXPECT_FALSE(t.engine.is(t.q(1), r, 7));
	EXPECT_FALSE(t.engine.is(t.q(), r, 8));

	EXPECT_EQ(t.engine.insert(t.q(),
		{.lane = t.lane(), .id = 7, .priority = 3, .state = State::committing}, 0, &existing), kNil);
	EXPECT_EQ(existing, r);
	EXPECT_EQ(verify(t.engine), "");

	t.engine.drop(t.q(), r, 0);
	EXPECT_EQ(t.engine.find(0, 7, &q), kNil);
	EXPECT_FALSE(t.engine.is(t.q(), r, 7));
	EXPECT_FALSE(t.engine.is(r, 0, 7));
	EXPECT_EQ(verify(t.engine), "");
}

// A blocked job is in no structure until its parents free it, whatever operations it gets.
TEST(Entries, ABlockedJobIsNowhereUntilItIsFreed)
{
	Rig t;
	Ref existing;
	for (const bool grouped : {false, true})
	{
		const Ref g = grouped ? t.engine.group_for(t.q(), "g", true) : kNil;
		const Ref r = t.engine.insert(t.q(),
			{.lane = t.lane(), .id = 7, .priority = 3,
			 .state = State::placeholder, .reserve = true, .group = g}, 0, &existing);
		ASSERT_NE(r, kNil);
		t.engine.change(t.q(), r, [](Entry &e) noexcept { e.state = State::blocked; });
		EXPECT_EQ(verify(t.engine), "");
		EXPECT_EQ(t.engine.lane(t.lane()).counts[static_cast<int>(State::blocked)], 1U);
		Key key;
		EXPECT_FALSE(t.engine.claimable(t.q(), nullptr, 0, &key));
		EXPECT_EQ(t.engine.mark(t.q(), r, 1, Verb::free, State::ready), MarkResult::ok);
		EXPECT_EQ(verify(t.engine), "");
		EXPECT_FALSE(t.engine.claimable(t.q(), nullptr, 0, &key));
		t.engine.change(t.q(), r, [](Entry &e) noexcept {
			e.mark = Verb::none;
			e.state = State::ready;
		});
		EXPECT_TRUE(t.engine.claimable(t.q(), nullptr, 0, &key));
		EXPECT_EQ(key, (Key{3, 7}));
		EXPECT_EQ(verify(t.engine), "");
		t.engine.drop(t.q(), r, 0);
		EXPECT_EQ(t.engine.lane(t.lane()).counts[static_cast<int>(State::blocked)], 0U);
		EXPECT_EQ(verify(t.engine), "");
	}
}

TEST(Entries, TheSameIdInTwoDatabasesIsTwoJobs)
{
	Rig t;
	const Ref a = t.ready(5, 0, nullptr, 0), b = t.ready(5, 0, nullptr, 1);
	ASSERT_NE(a, kNil);
	ASSERT_NE(b, kNil);
	uint16_t q;
	EXPECT_EQ(t.engine.find(0, 5, &q), a);
	EXPECT_EQ(t.engine.find(1, 5, &q), b);
	EXPECT_EQ(q, 1);
	t.engine.drop(t.q(0), a, 0);
	EXPECT_EQ(t.engine.find(0, 5, &q), kNil);
	EXPECT_EQ(t.engine.find(1, 5, &q), b);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Entries, AReusedEntryIsNotItsOldJob)
{
	Rig t(kSmall);
	const Ref a = t.ready(1, 0, nullptr, 0);
	t.engine.drop(t.q(0), a, 0);
	const Ref b = t.ready(2, 0, nullptr, 1);
	ASSERT_EQ(a, b);
	EXPECT_FALSE(t.engine.is(t.q(0), a, 1));
	EXPECT_FALSE(t.engine.is(t.q(0), a, 2)); // it belongs to another queue
	EXPECT_TRUE(t.engine.is(t.q(1), a, 2));
}

TEST(Entries, AChainLosesOnlyWhatIsDropped)
{
	Rig t(kSmall);
	std::vector<Ref> refs;
	for (JobId i = 1; i <= 15; ++i)
		refs.push_back(t.ready(i * 16)); // all in one of the 16 buckets
	for (const size_t i : {7U, 0U, 14U, 3U})
	{
		t.engine.drop(t.q(), refs[i], 0);
		EXPECT_EQ(verify(t.engine), "");
	}
}

TEST(Entries, AReserveIsKeptForPins)
{
	for (const uint32_t entries : {16U, 1024U, 4096U})
	{
		Limits l = kMiddle;
		l.entries = entries;
		Rig t(l);
		JobId id = 0;
		while (t.ready(id + 1) != kNil)
			++id;
		EXPECT_EQ(id, entries - std::min(64U, entries / 16));
		Ref existing = 0;
		EXPECT_EQ(t.engine.insert(t.q(),
			{.lane = t.lane(), .id = 9999, .priority = 0, .state = State::placeholder}, 0, &existing), kNil);
		EXPECT_EQ(existing, kNil);
		// memory is full, but the job has an entry: reported as such
		EXPECT_EQ(t.engine.insert(t.q(), {.lane = t.lane(), .id = 3, .priority = 0, .state = State::placeholder}, 0, &existing), kNil);
		uint16_t q;
		EXPECT_EQ(existing, t.engine.find(0, 3, &q));
		for (uint32_t n = std::min(64U, entries / 16); n > 0; --n)
			EXPECT_NE(t.engine.insert(t.q(),
				{.lane = t.lane(), .id = 10'000 + n, .priority = 0,
				 .state = State::placeholder, .reserve = true}, 0, &existing), kNil);
		EXPECT_EQ(t.engine.insert(t.q(),
			{.lane = t.lane(), .id = 9999, .priority = 0,
			 .state = State::placeholder, .reserve = true}, 0, &existing), kNil);
		EXPECT_EQ(t.engine.free_entries(), 0);
		EXPECT_EQ(verify(t.engine), "");
		// all entries return to the pool from every list
		for (Ref r = 0; r < entries; ++r)
			t.engine.drop(t.q(), r, r);
		EXPECT_EQ(t.engine.free_entries(), entries);
		EXPECT_EQ(verify(t.engine), "");
	}
}

TEST(Entries, LanesRunOut)
{
	Rig t(kSmall);
	for (const char *kind : {"a", "b", "c"})
		EXPECT_NE(t.engine.make_lane(t.q(), kind, true), kNoLane);
	EXPECT_NE(t.engine.make_lane(t.q(1), "a"), kNoLane);
	EXPECT_EQ(t.engine.make_lane(t.q(1), "b", true), kNoLane);
	EXPECT_NE(t.engine.find_lane(t.q(0), "a"), t.engine.find_lane(t.q(1), "a"));
	EXPECT_EQ(t.engine.find_lane(t.q(0), nullptr), 0); // always exists
	EXPECT_EQ(t.engine.find_lane(t.q(1), nullptr), 1);
	EXPECT_EQ(t.engine.find_lane(t.q(1), "c"), kNoLane);
	// a freed queue returns its lanes, and its slot starts empty
	const uint32_t generation = t.q(0).generation;
	t.engine.free_queue(t.q(0));
	EXPECT_GT(t.q(0).generation, generation);
	t.engine.init_queue(t.q(0), 0, 77, "other", QueueState::active);
	EXPECT_EQ(t.engine.find_lane(t.q(0), "a"), kNoLane);
	EXPECT_NE(t.engine.make_lane(t.q(0), "z"), kNoLane);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Entries, AttachFindsWhatCreateLaidOut)
{
	Rig t;
	const Ref r = t.ready(11, -5, "mail");
	Engine other;
	other.attach(t.memory());
	other.set_platform({lock_partition, unlock_partition, set_latch, note_sooner, note_refill, mono_now});
	uint16_t q;
	EXPECT_EQ(other.find(0, 11, &q), r);
	EXPECT_EQ(other.find_lane(other.queue(0), "mail"), t.engine.find_lane(t.q(), "mail"));
	EXPECT_EQ(verify(other), "");
}

} // namespace
