// Delayed jobs: their watermark is lowered without a lock and raised by one loader. The lanes' loader meets them too.
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

// Both loaders see the same delayed job.
Case both_loaders(bool fail)
{
	Case c;
	c.scenario.name = fail ? "both loaders, failing" : "both loaders";
	c.scenario.keys = {k(1), k(2), k(3)};
	c.scenario.actors = {actor(Role::loader, 2), actor(Role::timer_loader, 2), actor(Role::worker, 1),
						 actor(Role::firer, 1)};
	if (!fail)
		c.scenario.actors.push_back(actor(Role::clock));
	c.scenario.loads_fail = fail;
	c.begin = [](Actors &s) {
		s.on_disk(0);
		s.on_disk(1, 20);
		s.on_disk(2, 30);
		s.e().lower_watermark(s.q(), s.lane(), k(1));
		s.e().lower_timer_watermark(0, 20);
	};
	return c;
}

// A delayed job is enqueued, with or without an entry, while the timer loader reads.
Case enqueue_delayed(Role by)
{
	Case c;
	c.scenario.name = "enqueue delayed";
	c.scenario.keys = {k(1), k(2)};
	c.scenario.actors = {actor(by, 1, 0),		 actor(Role::timer_loader, 2), actor(Role::loader, 1),
						 actor(Role::worker, 1), actor(Role::firer, 1),		   actor(Role::clock)};
	c.begin = [](Actors &s) {
		s.w.rows[0].due = 30;
		s.on_disk(1, 20);
		s.e().lower_watermark(s.q(), s.lane(), k(2));
		s.e().lower_timer_watermark(0, 20);
	};
	return c;
}

// A job beyond the read range is enqueued while two timer loaders run.
Case two_timer_loaders()
{
	Case c;
	c.scenario.name = "two timer loaders";
	c.scenario.keys = {k(1), k(2)};
	c.scenario.batch = 1;
	c.scenario.actors = {actor(Role::bulk, 1, 0), actor(Role::timer_loader, 1), actor(Role::timer_loader, 1), actor(Role::clock)};
	c.begin = [](Actors &s) {
		s.w.rows[0].due = 30;
		s.on_disk(1, 20);
		s.e().lower_timer_watermark(0, 20);
	};
	return c;
}

// Failed jobs become due later; their timers are evicted while both loaders read.
Case retries()
{
	Case c;
	c.scenario.name = "retries and evictions";
	c.scenario.keys = {k(1), k(2)};
	c.scenario.actors = {actor(Role::worker, 2), actor(Role::evictor, 2), actor(Role::timer_loader, 2),
						 actor(Role::loader, 1), actor(Role::firer, 1),	  actor(Role::clock)};
	c.scenario.jobs_fail = true;
	c.begin = [](Actors &s) {
		s.in_memory(0);
		s.in_memory(1, 20);
	};
	return c;
}

// Two timers are evicted one after the other while the loader resets its limit, reads and raises.
Case evictions()
{
	Case c;
	c.scenario.name = "timer evictions";
	c.scenario.keys = {k(1), k(2), k(3)};
	c.scenario.actors = {actor(Role::evictor, 2), actor(Role::timer_loader, 2), actor(Role::clock)};
	c.begin = [](Actors &s) {
		s.in_memory(0, 20);
		s.in_memory(1, 30);
		s.on_disk(2, 40);
		s.e().lower_timer_watermark(0, 40);
	};
	return c;
}

// Cancel and move of a delayed job on disk.
Case verbs(Role verb)
{
	Case c;
	c.scenario.name = "verb on a timer";
	c.scenario.keys = {k(1), k(2)};
	c.scenario.actors = {actor(verb, 1, 0),		  actor(Role::timer_loader, 2), actor(Role::loader, 1),
						 actor(Role::evictor, 1), actor(Role::worker, 1),		actor(Role::firer, 1)};
	c.scenario.loads_fail = true;
	c.begin = [](Actors &s) {
		s.on_disk(0, 20);
		s.on_disk(1, 30);
		s.e().lower_watermark(s.q(), s.lane(), k(1));
		s.e().lower_timer_watermark(0, 20);
	};
	return c;
}

// All operations together, few of each.
Case mixture()
{
	Case c;
	c.scenario.name = "mixture";
	c.scenario.keys = {k(1), k(2), k(3)};
	c.scenario.batch = 1;
	c.scenario.actors = {actor(Role::producer, 1, 0), actor(Role::worker, 2),  actor(Role::timer_loader, 2),
						 actor(Role::loader, 1),	  actor(Role::evictor, 1), actor(Role::firer, 1),
						 actor(Role::clock)};
	c.begin = [](Actors &s) {
		s.w.rows[0].due = 30;
		s.in_memory(1, 20);
		s.on_disk(2, 40);
		s.e().lower_watermark(s.q(), s.lane(), k(3));
		s.e().lower_timer_watermark(0, 40);
	};
	return c;
}

std::vector<Case> all_cases()
{
	return {both_loaders(false),		 both_loaders(true), enqueue_delayed(Role::producer),
			enqueue_delayed(Role::bulk), two_timer_loaders(), retries(),	 evictions(),
			verbs(Role::canceller),		 verbs(Role::mover), mixture()};
}

TEST(Timers, NothingGoesWrongWithAllProtections)
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

void must_fail(Protection off, const Case &c, const std::string &why)
{
	const Outcome o = explore(c.scenario, kAll & ~off, c.begin, why);
	EXPECT_EQ(o.violation, why) << c.scenario.name << "\n" << o.trace;
}

TEST(Timers, WithoutSinkOfASkippedOne) { must_fail(kSinkTimerSkipped, both_loaders(false), "a job was lost"); }
TEST(Timers, WithoutSinkOfOneLeftToItsLane) { must_fail(kSinkLaneHanded, both_loaders(false), "a job was lost"); }
TEST(Timers, WithoutSinkOfAnAbandonedLoad)
{
	must_fail(kSinkAbandoned, both_loaders(true), "a delayed job would be late");
}
TEST(Timers, WithoutLimit) { must_fail(kTimerLimit, enqueue_delayed(Role::bulk), "a job was lost"); }
TEST(Timers, WithoutSinkOfABulkLoad) { must_fail(kSinkBulk, enqueue_delayed(Role::bulk), "a job was lost"); }
TEST(Timers, WithoutSinkOfAnEviction) { must_fail(kSinkEvicted, evictions(), "a job was lost"); }
TEST(Timers, RaisedWithoutALook) { must_fail(kTimerRaiseChecked, evictions(), "a job was lost"); }
TEST(Timers, SunkInTheOtherOrder) { must_fail(kTimerSinkLast, evictions(), "a job was lost"); }
TEST(Timers, TwoLoadersAtOnce) { must_fail(kOneTimerLoader, two_timer_loaders(), "a job was lost"); }
TEST(Timers, WithoutPlaceholders) { must_fail(kPlaceholders, retries(), "a finished job was claimed"); }

} // namespace
