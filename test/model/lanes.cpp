// Lanes: enqueue, claim, finish, evict, refill, cancel and move in every order. No violation may occur with all
// protections. One must occur if any of them is off.
#include <gtest/gtest.h>

#include <cstdio>

#include "model/explore.hpp"

namespace
{

using namespace tq::model;

struct Case
{
	Scenario scenario;
	Explorer::Begin begin;
};

Key k(int64_t n) { return Key{0, n}; }

// A small transaction enqueues a job while a loader reads and a worker waits for it.
Case enqueue_against_refill(int producers)
{
	Case c;
	c.scenario.name = "enqueue against refill";
	c.scenario.keys = {k(1), k(2)};
	for (int j = 0; j < producers; ++j)
		c.scenario.actors.push_back(actor(Role::producer, 1, j));
	c.scenario.actors.push_back(actor(Role::loader, 2));
	c.scenario.actors.push_back(actor(Role::worker, producers));
	c.scenario.enqueues_abort = true;
	c.begin = [](Actors &s) { s.e().lower_watermark(s.q(), s.lane(), k(1)); };
	return c;
}

// A bulk load commits while a loader reads older jobs from disk.
Case bulk_against_refill()
{
	Case c;
	c.scenario.name = "bulk against refill";
	c.scenario.keys = {k(1), k(2), k(3)};
	c.scenario.actors = {actor(Role::bulk), actor(Role::loader, 2), actor(Role::worker, 2)};
	c.begin = [](Actors &s) {
		s.on_disk(0);
		s.e().lower_watermark(s.q(), s.lane(), k(1));
	};
	return c;
}

// Jobs of an earlier priority are published, evicted and read in, beside older jobs in memory that loaders skip.
Case older_ids()
{
	Case c;
	c.scenario.name = "older ids";
	c.scenario.batch = 1;
	c.scenario.keys = {Key{1, 1}, Key{0, 2}, Key{0, 3}};
	c.scenario.actors = {actor(Role::bulk, 1, 1), actor(Role::loader, 2), actor(Role::evictor, 2), actor(Role::worker, 1)};
	c.begin = [](Actors &s) { s.in_memory(0); };
	return c;
}

// Jobs run and end while a loader reads and the watermark sinks below them. The watermark sinks because an older job of
// their priority arrives late and memory is short.
Case finish_against_refill()
{
	Case c;
	c.scenario.name = "finish against refill";
	c.scenario.keys = {k(1), k(2), k(3), k(4)};
	c.scenario.actors = {actor(Role::worker, 2), actor(Role::worker, 1), actor(Role::evictor, 2),
						 actor(Role::loader, 2), actor(Role::producer, 1, 0)};
	c.begin = [](Actors &s) {
		s.in_memory(1);
		s.in_memory(2);
		s.in_memory(3);
	};
	return c;
}

// Fewer entries than jobs.
Case few_entries()
{
	Case c;
	c.scenario.name = "few entries";
	c.scenario.keys = {k(1), k(2), k(3)};
	c.scenario.entries = 2;
	c.scenario.actors = {actor(Role::producer, 1, 1), actor(Role::loader, 2), actor(Role::worker, 2),
						 actor(Role::evictor, 1)};
	c.begin = [](Actors &s) {
		s.in_memory(0);
		s.on_disk(2);
		s.e().lower_watermark(s.q(), s.lane(), k(3));
	};
	return c;
}

// Cancel and move of jobs in memory and on disk, against claims and a loader.
Case verbs_against_refill(Role verb)
{
	Case c;
	c.scenario.name = "verb against refill";
	c.scenario.keys = {k(1), k(2)};
	c.scenario.actors = {actor(verb, 1, 1), actor(Role::loader, 2), actor(Role::worker, 2), actor(Role::evictor, 1)};
	c.begin = [](Actors &s) {
		s.in_memory(0);
		s.in_memory(1);
	};
	return c;
}

Case verbs_on_disk(Role a, Role b)
{
	Case c;
	c.scenario.name = "two verbs on disk";
	c.scenario.keys = {k(1), k(2)};
	c.scenario.actors = {actor(a, 1, 1), actor(b, 1, 1), actor(Role::loader, 2), actor(Role::worker, 2)};
	c.scenario.loads_fail = true;
	c.begin = [](Actors &s) {
		s.on_disk(0);
		s.on_disk(1);
		s.e().lower_watermark(s.q(), s.lane(), k(1));
	};
	return c;
}

// Claims that roll back, failed jobs with retries, lost leases.
Case claims_and_leases()
{
	Case c;
	c.scenario.name = "claims and leases";
	c.scenario.keys = {k(1), k(2)};
	c.scenario.claims_abort = c.scenario.jobs_fail = true;
	c.scenario.actors = {actor(Role::worker, 2), actor(Role::worker, 1), actor(Role::reaper, 1), actor(Role::loader, 1),
						 actor(Role::evictor, 1)};
	c.begin = [](Actors &s) {
		s.in_memory(0);
		s.in_memory(1);
	};
	return c;
}

// Two backends find the lane empty at the same time.
Case two_loaders()
{
	Case c;
	c.scenario.name = "two loaders";
	c.scenario.batch = 1;
	c.scenario.keys = {k(1), k(2)};
	c.scenario.actors = {actor(Role::loader, 1), actor(Role::loader, 1), actor(Role::producer, 1, 1),
						 actor(Role::worker, 1)};
	c.begin = [](Actors &s) {
		s.on_disk(0);
		s.e().lower_watermark(s.q(), s.lane(), k(1));
	};
	return c;
}

// All operations together, few of each.
Case mixture(Role verb)
{
	Case c;
	c.scenario.name = "mixture";
	c.scenario.keys = {k(1), k(2), k(3), k(4)};
	c.scenario.entries = 3;
	c.scenario.batch = 1;
	c.scenario.actors = {actor(Role::producer, 1, 0), actor(Role::worker, 2),  actor(verb, 1, 2),
						 actor(Role::loader, 2),	  actor(Role::evictor, 1), actor(Role::bulk, 1, 3)};
	c.scenario.loads_fail = true;
	c.begin = [](Actors &s) {
		s.in_memory(1);
		s.on_disk(2);
		s.e().lower_watermark(s.q(), s.lane(), k(3));
	};
	return c;
}

std::vector<Case> all_cases()
{
	return {enqueue_against_refill(1),
			enqueue_against_refill(2),
			bulk_against_refill(),
			older_ids(),
			finish_against_refill(),
			few_entries(),
			verbs_against_refill(Role::canceller),
			verbs_against_refill(Role::mover),
			verbs_on_disk(Role::canceller, Role::mover),
			verbs_on_disk(Role::canceller, Role::canceller),
			claims_and_leases(),
			two_loaders(),
			mixture(Role::canceller),
			mixture(Role::mover)};
}

TEST(Lanes, NothingGoesWrongWithAllProtections)
{
	for (const Case &c : all_cases())
	{
		if (!kThorough && c.scenario.name == "mixture")
			continue;
		const Outcome o = explore(c.scenario, kAll, c.begin);
		EXPECT_EQ(o.violation, "") << c.scenario.name << "\n" << o.trace;
		std::printf("%-28s %8zu states %7zu ends, depth %zu\n", c.scenario.name.c_str(), o.states, o.ends, o.depth);
		EXPECT_GT(o.ends, 0U);
	}
}

// The exploration without one protection must find the violation that this protection prevents.
void must_fail(Protection off, const Case &c, const std::string &why)
{
	const Outcome o = explore(c.scenario, kAll & ~off, c.begin, why);
	EXPECT_EQ(o.violation, why) << c.scenario.name << "\n" << o.trace;
}

TEST(Lanes, WithoutPlaceholders) { must_fail(kPlaceholders, finish_against_refill(), "a finished job was claimed"); }
TEST(Lanes, WithoutAFreshSnapshot) { must_fail(kFreshSnapshot, finish_against_refill(), "a finished job was claimed"); }
TEST(Lanes, WithoutCommittingEntries)
{
	must_fail(kCommitting, enqueue_against_refill(1), "a finished job was claimed");
}
TEST(Lanes, WithoutLimit) { must_fail(kLimit, bulk_against_refill(), "a job was lost"); }
TEST(Lanes, WithoutVisibilityFirst) { must_fail(kVisibleFirst, finish_against_refill(), "a finished job was claimed"); }
TEST(Lanes, WithoutSinkOfABulkLoad) { must_fail(kSinkBulk, bulk_against_refill(), "a job was lost"); }
TEST(Lanes, WithoutSinkOfAnEviction) { must_fail(kSinkEvicted, finish_against_refill(), "a job was lost"); }
TEST(Lanes, WithoutTheLeastId) { must_fail(kLeastId, older_ids(), "a job was lost"); }
TEST(Lanes, WithoutGate) { must_fail(kGate, enqueue_against_refill(2), "a ready job on disk was overtaken"); }
TEST(Lanes, WithoutMarks) { must_fail(kMarks, verbs_against_refill(Role::canceller), "a job ended twice"); }
TEST(Lanes, WithTwoLoadersAtOnce) { must_fail(kOneLoader, two_loaders(), "a job was lost"); }
TEST(Lanes, WithoutSinkOfAnAbandonedLoad)
{
	must_fail(kSinkAbandoned, verbs_on_disk(Role::canceller, Role::mover), "a job was lost");
}
TEST(Lanes, WithoutEvictionForALoader) { must_fail(kEvictWhenFull, few_entries(), "a job was lost"); }
TEST(Lanes, WithoutLeaseCheck) { must_fail(kLeaseChecked, claims_and_leases(), "a job ended twice"); }

} // namespace
