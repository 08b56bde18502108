// A queue's share of the shared memory, and the remainder for other queues.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/share.hpp"
#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace tq::test
{

namespace
{

// The size that a holder reaches by single requests, in a pool with `lent` places in use.
uint32_t take_all(const Share &s, uint32_t *lent)
{
	uint32_t held = 0;
	for (; s.left(held, *lent) > 0; ++held)
		*lent += held >= s.guaranteed;
	return held;
}

} // namespace

TEST(Share, LeavesSomeOfThePoolToTheNext)
{
	const Share s{3, 100, 4};
	uint32_t lent = 0;
	EXPECT_EQ(s.most(), 83U);
	EXPECT_EQ(take_all(s, &lent), 83U);
	EXPECT_EQ(take_all(s, &lent), 19U);
	EXPECT_EQ(take_all(s, &lent), 7U);
	EXPECT_GE(take_all(s, &lent), 3U);
}

TEST(Share, GuaranteesPlacesWhateverOthersHold)
{
	const Share s = Share::of(12'500, 256, 62'500, 4);
	EXPECT_EQ(s.guaranteed, 48U);
	uint32_t lent = 0, all = 0;
	for (int holder = 0; holder < 256; ++holder)
	{
		const uint32_t held = take_all(s, &lent);
		EXPECT_GE(held, s.guaranteed);
		all += held;
	}
	EXPECT_LE(all, 75'000U); // a quarter always stays free
	EXPECT_EQ(s.left(0, 62'500), 48U);
	EXPECT_EQ(s.left(48, 62'500), 0U);
}

TEST(Share, AnswersForManyAtOnceAsOneByOne)
{
	for (uint32_t pool : {1U, 2U, 7U, 100U})
		for (uint32_t factor : {1U, 4U})
			for (uint32_t before = 0; before <= pool; ++before)
			{
				const Share s{2, pool, factor};
				uint32_t lent = before;
				EXPECT_EQ(s.left(0, before), take_all(s, &lent)) << pool << ' ' << factor << ' ' << before;
			}
}

// One queue claims all it can, and no job ends. Every other queue still runs its guaranteed number of jobs.
TEST(Shares, NoQueueStopsAnother)
{
	for (const uint32_t others : {1U, 10U, 1000U})
	{
		const uint32_t entries = 32 * (others + 1);
		Rig t(Limits{entries, 4, others + 1, 1, 4, 2, 4}, Locks::none);
		const uint32_t guaranteed = t.engine.entry_share().guaranteed, most = t.engine.entry_share().most();
		uint32_t taken = 0;
		for (JobId id = 1; t.ready(id) != kNil && t.claim() != kNil; ++id)
			++taken;
		EXPECT_LE(taken, most);
		EXPECT_GE(taken, entries / 2 - entries / 16);
		for (uint16_t q = 1; q <= others; ++q)
		{
			uint32_t runs = 0;
			for (uint32_t i = 0; i < guaranteed; ++i)
			{
				while (t.ready(100'000 + q * 100 + i, 0, nullptr, q) == kNil)
					if (!t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0))
						break; // the first queue has no waiting job left
				runs += t.claim(1, 0, q) != kNil;
			}
			EXPECT_EQ(runs, guaranteed) << q << " of " << others;
		}
		EXPECT_EQ(verify(t.engine), "");
	}
}

// Rescheduled jobs have used up the share, and none of them runs. The guaranteed number of jobs can still start.
TEST(Shares, LetJobsStartWhateverElseStays)
{
	Rig t(Limits{1024, 4, 4, 1, 4, 2, 4});
	for (JobId id = 1; t.engine.pins_left(t.q()) > 0; ++id)
		t.engine.change(t.q(), t.ready(id), [](Entry &e) noexcept { e.flags |= kOverride; });
	uint32_t runs = 0;
	while (t.claim() != kNil)
		++runs;
	EXPECT_EQ(runs, t.engine.entry_share().guaranteed);
	EXPECT_EQ(verify(t.engine), "");
}

// All queues of a database keep rescheduled jobs, as many as they can. Those of another database can keep some, too, and
// jobs of both databases can start.
TEST(Shares, OfChangesByDatabase)
{
	Rig t(Limits{8000, 4, 8, 2, 4, 2, 4}, Locks::none);
	const uint32_t guaranteed = t.engine.entry_share().guaranteed, pool = t.engine.entry_share().pool;
	JobId id = 0;
	const auto change_all = [&](uint16_t q) {
		uint32_t n = 0;
		for (; t.engine.changes_left(t.q(q)) > 0; ++n)
			t.engine.change(t.q(q), t.ready(++id, 0, nullptr, q), [](Entry &e) noexcept { e.flags |= kOverride; });
		return n;
	};
	uint32_t all = 0;
	for (const uint16_t q : {0, 2, 4})
		all += change_all(q);
	EXPECT_GE(all, pool / 5 * 4);
	EXPECT_LE(all, pool / 5 * 4 + 3 * guaranteed + 1);
	EXPECT_EQ(t.engine.changes_left(uint16_t{0}), 0U);
	EXPECT_EQ(change_all(6), guaranteed); // of the same database
	EXPECT_GE(change_all(1), guaranteed + pool / 20);
	for (const uint16_t q : {1, 6, 7})
		EXPECT_GT(t.engine.places_to_start(t.q(q)), guaranteed) << q;
	EXPECT_EQ(verify(t.engine), "");
	for (const uint16_t q : {0, 1, 2, 4, 6})
		while (t.q(q).entries > 0)
			t.engine.drop(t.q(q), t.lane_at(nullptr, q).ready.min, 0);
	EXPECT_GT(t.engine.changes_left(uint16_t{0}), pool / 2); // all of it is back
	EXPECT_EQ(t.engine.db(0).lent_entries.load() + t.engine.db(1).lent_entries.load(), 0U);
}

// A claim sets aside at most as many overdue jobs as its queue's share allows.
TEST(Shares, CountJobsThatAreSetAside)
{
	Rig t(Limits{64, 4, 2, 1, 4, 2, 4});
	for (JobId id = 1; id <= 50; ++id)
		t.expiring(id, 100);
	const int most = static_cast<int>(t.engine.entry_share().most());
	EXPECT_EQ(t.engine.set_aside(t.q(), 200, 1000), most);
	EXPECT_TRUE(t.engine.has_overdue(t.q(), 200));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Shares, ReturnWithTheJobsThatTookThem)
{
	Rig t;
	const auto most = static_cast<JobId>(t.engine.entry_share().most());
	std::vector<Ref> running;
	for (JobId id = 1; id <= most + 5; ++id)
		t.ready(id);
	for (Ref r = t.claim(); r != kNil; r = t.claim())
		running.push_back(r);
	EXPECT_EQ(static_cast<JobId>(running.size()), most);
	EXPECT_EQ(t.engine.starts_left(t.q()), 0);
	EXPECT_EQ(verify(t.engine), "");
	t.finish(running[0]);
	t.commit_claim(running[1]);
	t.undo_claim(running[2]);
	EXPECT_EQ(t.engine.starts_left(t.q()), 2);
	EXPECT_NE(t.claim(), kNil);
	EXPECT_NE(t.claim(), kNil);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

// A waiter whose queue is at its share is woken when memory is freed: at once by its own queue, soon by another queue.
TEST(Shares, WakeWaiters)
{
	Rig t(Limits{64, 4, 2, 1, 8, 2, 4});
	std::vector<Ref> a, b;
	for (JobId id = 1; id <= 30; ++id)
	{
		t.ready(id);
		t.ready(100 + id, 0, nullptr, 1);
	}
	for (Ref r = t.claim(1, 0, 1); r != kNil; r = t.claim(1, 0, 1))
		b.push_back(r);
	for (Ref r = t.claim(); r != kNil; r = t.claim())
		a.push_back(r);
	t.engine.wait_enter(t.q(), 0, 3, nullptr, 0);
	EXPECT_EQ(wakes_of(3), 0);
	EXPECT_LE(t.q().next_open.load(), 100'000);
	for (size_t i = 0; i < b.size() / 2; ++i)
		t.finish(b[i], 1);
	EXPECT_EQ(wakes_of(3), 0);
	t.at(200'000);
	EXPECT_EQ(wakes_of(3), 1);
	EXPECT_EQ(verify(t.engine), "");
}

// A claim after the release, but before the scheduler looks, does not cancel the wakeup.
TEST(Shares, AClaimKeepsTheWakeup)
{
	Rig t(Limits{64, 4, 2, 1, 8, 2, 4});
	t.set([](QueueSettings &s) { s.rate = Rate{1, 1000}; }); // never reached
	std::vector<Ref> others;
	for (JobId id = 1; id <= 30; ++id)
	{
		t.ready(id);
		t.ready(100 + id, 0, nullptr, 1);
	}
	for (Ref r = t.claim(1, 0, 1); r != kNil; r = t.claim(1, 0, 1))
		others.push_back(r);
	while (t.claim() != kNil)
	{
	}
	t.engine.wait_enter(t.q(), 0, 3, nullptr, 0);
	for (size_t i = 0; i < others.size() / 2; ++i)
		t.finish(others[i], 1);
	EXPECT_NE(t.claim(), kNil);
	t.at(200'000);
	EXPECT_EQ(wakes_of(3), 1);
	EXPECT_EQ(verify(t.engine), "");
}

// All queues take all that they can get, one after the other. Each gets its guaranteed number, which exists.
TEST(Shares, AddUp)
{
	const auto check = [](const Share &s, uint32_t total, uint32_t queues, uint32_t part, uint32_t times) {
		const std::string of = std::to_string(queues) + " queues of " + std::to_string(total);
		EXPECT_GE(s.guaranteed, 1U) << of;
		EXPECT_GE(s.pool, total / 4) << of;
		EXPECT_LE(uint64_t{s.pool} + uint64_t{times} * part, total) << of;
		if (queues > part)
			return; // warned of at server start
		EXPECT_LE(uint64_t{s.guaranteed} * queues, part) << of;
		uint32_t lent = 0;
		uint64_t all = 0;
		for (uint32_t q = 0; q < queues; ++q)
			all += take_all(s, &lent);
		EXPECT_LE(all, uint64_t{s.guaranteed} * queues + s.pool) << of;
		EXPECT_LE(all + uint64_t{times - 1} * part, total) << of;
	};
	int fit = 0;
	for (const uint32_t total : {16U, 64U, 100U, 1000U, 1024U, 2000U, 4096U, 10'000U, 100'000U})
		for (const uint32_t queues : {1U, 10U, 256U, 1000U})
		{
			Rig t(Limits{total, std::min(total, 32'000U), queues, 1, 4, 2, total}, Locks::none);
			const Limits &l = t.engine.limits();
			const Guarantees g = Engine::guarantees(l);
			check(t.engine.entry_share(), l.entries - l.entries / 8, queues, g.entries, 2);
			check(t.engine.group_share(), l.groups, queues, g.groups, 1);
			check(t.engine.kind_share(), l.lanes, queues, g.kinds, 1);
			fit += g.entries >= queues && g.groups >= queues && g.kinds >= queues;
		}
	EXPECT_EQ(fit, 21);
	const Guarantees usual = Engine::guarantees(Limits{100'000, 1024, 256, 8, 4, 2, 2000});
	EXPECT_GE(std::min({usual.entries, usual.groups, usual.kinds}), 256U);
}

TEST(Shares, OfKinds)
{
	Rig t(Limits{64, 32, 4, 2, 4, 2, 4});
	uint32_t made = 0;
	while (t.engine.make_lane(t.q(), ("k" + std::to_string(made)).c_str()) != kNoLane)
		++made;
	EXPECT_EQ(made, t.engine.kind_share().most());
	for (uint16_t q = 1; q < 4; ++q) // whichever database it belongs to
		EXPECT_TRUE(t.engine.may_add_kind(t.q(q)));
	EXPECT_LT(made, 32U / 2 + 2);
	EXPECT_NE(t.engine.make_lane(t.q(1), "a"), kNoLane); // in another database
	EXPECT_NE(t.engine.make_lane(t.q(2), "a"), kNoLane); // in the same database
	EXPECT_EQ(verify(t.engine), "");
}

// All queues that a role created share what one queue may have. Others get their guaranteed kinds, and some more.
TEST(Shares, OfKindsByCreator)
{
	for (const uint32_t queues : {4U, 10U, 1000U})
	{
		Rig t(Limits{64, 32 * queues, queues, 1, 4, 2, 4}, Locks::none);
		const auto kinds = [&t](uint16_t q) {
			uint32_t n = 0;
			while (t.engine.make_lane(t.q(q), ("k" + std::to_string(n)).c_str()) != kNoLane)
				++n;
			return n;
		};
		const Share s = t.engine.kind_share();
		const auto half = static_cast<uint16_t>(queues / 2);
		for (uint16_t q = 0; q < half; ++q)
			t.q(q).creator = 7;
		for (uint16_t q = half; q < queues; ++q)
			t.q(q).creator = 8U + (q & 1U);
		uint32_t all = 0;
		for (uint16_t q = 0; q < half; ++q)
			all += kinds(q);
		EXPECT_EQ(all, s.guaranteed * half + (s.pool + 1) / 2);
		EXPECT_EQ(t.engine.held_by_creator(t.q()).queues, half);
		EXPECT_EQ(t.engine.held_by_creator(t.q()).kinds, all);
		EXPECT_GT(kinds(half), s.guaranteed);
		for (auto q = static_cast<uint16_t>(half + 1); q < queues; ++q)
			EXPECT_GE(kinds(q), s.guaranteed);
		for (uint16_t l = t.q().lanes; l != kNoLane; l = t.q().lanes)
			if (!t.engine.free_idle_lane(t.q(), l))
				break;
		EXPECT_TRUE(t.engine.may_add_kind(t.q(1)));
		EXPECT_EQ(verify(t.engine), "");
	}
}

TEST(Shares, IdleKindsAreFreed)
{
	Rig t;
	const Ref r = t.ready(1, 0, "a");
	const uint16_t lane = t.lane("a");
	EXPECT_FALSE(t.engine.free_idle_lane(t.q(), lane)); // it has a job
	t.engine.drop(t.q(), r, 0);
	EXPECT_FALSE(t.engine.free_idle_lane(t.q(1), lane)); // it belongs to another queue
	t.engine.lane(lane).users.fetch_add(1);
	EXPECT_FALSE(t.engine.free_idle_lane(t.q(), lane)); // an open transaction refers to it
	t.engine.lane(lane).users.fetch_sub(1);
	t.engine.lane(lane).count.live = 1;
	EXPECT_FALSE(t.engine.free_idle_lane(t.q(), lane)); // it has a job on disk
	t.engine.lane(lane).count.live = 0;
	t.engine.set_paused(t.q(), &t.engine.lane(lane), kNever);
	EXPECT_FALSE(t.engine.free_idle_lane(t.q(), lane));
	t.engine.set_paused(t.q(), &t.engine.lane(lane), 0);
	const uint32_t frees = t.engine.lane(lane).frees;
	EXPECT_TRUE(t.engine.free_idle_lane(t.q(), lane));
	EXPECT_EQ(t.engine.lane(lane).frees, frees + 1);
	EXPECT_EQ(t.engine.find_lane(t.q(), "a"), kNoLane);
	EXPECT_EQ(t.q().kinds, 0U);
	EXPECT_FALSE(t.engine.free_idle_lane(t.q(), t.engine.index_of(t.q()))); // the default lane stays
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Shares, OfGroups)
{
	Rig t(Limits{256, 4, 2, 1, 4, 2, 16});
	JobId id = 0;
	while (t.grouped(("g" + std::to_string(id)).c_str(), id + 1) != kNil)
		++id;
	EXPECT_EQ(static_cast<uint32_t>(id), t.engine.group_share().most());
	EXPECT_TRUE(t.engine.has_free_group());
	EXPECT_FALSE(t.engine.has_free_group(t.q()));
	EXPECT_NE(t.grouped("a", 1000, 0, nullptr, 1), kNil);
	EXPECT_NE(t.engine.group_for(t.q(), "must", true, true), kNil);
	EXPECT_EQ(verify(t.engine), "a group keeps a slot without a reason (" + std::to_string(t.group("must")) + ")");
}

} // namespace tq::test
