// Expiring jobs: the tree by time, claims that skip them, and the scheduler that ends them.
#include <gtest/gtest.h>

#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

std::vector<JobId> collect(Rig &t, Micros wall, int max = 10)
{
	std::vector<Ref> out(static_cast<size_t>(max));
	const int n = t.engine.collect_expired(t.q(), wall, max, 3, out.data());
	std::vector<JobId> ids;
	for (int i = 0; i < n; ++i)
		ids.push_back(t.id_of(out[static_cast<size_t>(i)]));
	return ids;
}

TEST(Expiry, TheSchedulerTakesThemInOrderAndNotBeforeTheirTime)
{
	Rig t;
	t.expiring(1, 300);
	t.expiring(2, 100);
	t.expiring(3, 200, 1'000); // delayed beyond its expiry
	t.ready(4);
	EXPECT_EQ(t.q().next_expiry.load(), 100);
	EXPECT_EQ(surroundings().sooner_wall.load(), 100);
	EXPECT_EQ(collect(t, 99), std::vector<JobId>{});
	EXPECT_EQ(collect(t, 200), (std::vector<JobId>{2, 3}));
	EXPECT_EQ(t.q().next_expiry.load(), 300);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(collect(t, 1'000), (std::vector<JobId>{1}));
	EXPECT_EQ(t.q().next_expiry.load(), kNever);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Expiry, AtMostMaxAtATime)
{
	Rig t;
	for (JobId id = 1; id <= 5; ++id)
		t.expiring(id, 10);
	EXPECT_EQ(collect(t, 10, 2).size(), 2u);
	EXPECT_EQ(t.q().next_expiry.load(), 10);
	EXPECT_EQ(collect(t, 10, 3).size(), 3u);
	EXPECT_EQ(t.q().next_expiry.load(), kNever);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Expiry, JobsInALockedSegmentAreSkipped)
{
	Rig t;
	for (JobId id = 1; id <= 6; ++id)
		t.engine.entry(t.expiring(id, 10 * id)).segment = static_cast<uint16_t>(id % 2);
	EXPECT_EQ(t.engine.set_aside(t.q(), 20, 10), 2);
	Ref out[10];
	const Micros until[] = {0, 60};
	tq::core::LockedSegments locked{until, 50};
	ASSERT_EQ(t.engine.collect_expired(t.q(), 50, 10, 3, out, &locked), 2);
	EXPECT_EQ(t.id_of(out[0]), 2);
	EXPECT_EQ(t.id_of(out[1]), 4);
	EXPECT_TRUE(locked.skipped);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(collect(t, 100), (std::vector<JobId>{1, 3, 5, 6}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Expiry, JobsSetAsideByAClaimGoToTheScheduler)
{
	Rig t;
	t.expiring(1, 100);
	t.expiring(2, 200);
	t.ready(3);
	surroundings().sooner_wall = kNever;
	EXPECT_EQ(t.engine.set_aside(t.q(), 99, 10), 0);
	EXPECT_EQ(t.engine.set_aside(t.q(), 150, 10), 1);
	EXPECT_EQ(t.q().next_expiry.load(), 0);
	EXPECT_EQ(surroundings().sooner_wall.load(), 0); // the scheduler is notified
	EXPECT_EQ(verify(t.engine), "");
	uint16_t q;
	const Ref aside = t.engine.find(0, 1, &q);
	EXPECT_EQ(t.engine.mark(t.q(), aside, 1, Verb::cancel, State::terminal), MarkResult::busy);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.id_of(t.claim()), 3);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(collect(t, 150), (std::vector<JobId>{1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Expiry, AJobSetAsideCanBeDropped)
{
	Rig t;
	for (JobId id = 1; id <= 3; ++id)
		t.expiring(id, 10);
	EXPECT_EQ(t.engine.set_aside(t.q(), 10, 3), 3);
	uint16_t q;
	t.engine.drop(t.q(), t.engine.find(0, 2, &q), 0);
	EXPECT_EQ(verify(t.engine), "");
	t.engine.drop(t.q(), t.engine.find(0, 3, &q), 0);
	t.engine.drop(t.q(), t.engine.find(0, 1, &q), 0);
	EXPECT_EQ(t.q().next_expiry.load(), kNever);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Expiry, AJobThatWasStartedDoesNotExpire)
{
	Rig t;
	const Ref r = t.expiring(1, 100);
	ASSERT_EQ(t.claim(), r);
	EXPECT_EQ(t.q().next_expiry.load(), kNever);
	t.commit_claim(r); // now in the list of claims, which uses the same links
	t.engine.change(t.q(), r, [](Entry &e) noexcept { // failed: it is retried
		e.state = State::delayed;
		e.timer = 500;
		e.lease = 0;
	});
	EXPECT_EQ(collect(t, 1'000), std::vector<JobId>{});
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Expiry, AReleasedJobExpires)
{
	Rig t;
	const Ref r = t.expiring(1, 100);
	ASSERT_EQ(t.claim(), r);
	t.commit_claim(r);
	t.engine.change(t.q(), r, [](Entry &e) noexcept { // released: no attempt was used
		e.state = State::ready;
		e.lease = 0;
		e.attempt = 0;
	});
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.engine.set_aside(t.q(), 100, 10), 1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Expiry, AMarkedJobWaitsForItsTransaction)
{
	Rig t;
	const Ref r = t.expiring(1, 100);
	EXPECT_EQ(t.engine.mark(t.q(), r, 1, Verb::reschedule, State::ready), MarkResult::ok);
	EXPECT_EQ(collect(t, 200), std::vector<JobId>{});
	t.engine.change(t.q(), r, [](Entry &e) noexcept { e.mark = Verb::none; });
	EXPECT_EQ(collect(t, 200), (std::vector<JobId>{1}));
	// its transaction rolls back: the entry is unchanged
	t.engine.change(t.q(), r, [](Entry &e) noexcept { e.mark = Verb::none; });
	EXPECT_EQ(t.q().next_expiry.load(), 100);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Limits, TheAttemptEndsWhateverTheHeartbeatsSay)
{
	Rig t;
	t.q().settings.timeout_ms = 3;
	t.ready(1);
	auto terms = Rig::terms(1, 1'000'000);
	terms.lease_ms = 10;
	terms.default_timeout_ms = 7;
	const Ref r = t.engine.claim(t.q(), terms);
	const Entry &e = t.engine.entry(r);
	EXPECT_TRUE(e.has(kHardTimeout));
	EXPECT_EQ(e.hard_deadline, 1'003'000);
	EXPECT_EQ(e.deadline, 1'010'000);
	EXPECT_EQ(e.timer, 1'003'000);
	EXPECT_EQ(t.q().next_lease.load(), 1'003'000);
	t.engine.entry(r).deadline = 9'000'000; // heartbeats
	Ref out[2];
	PrevMark prev[2];
	EXPECT_EQ(t.engine.collect_lost(t.q(), {1'002'999, 2, 2}, out, prev), 0);
	EXPECT_EQ(t.engine.collect_lost(t.q(), {1'003'000, 2, 2}, out, prev), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Limits, TheServersTimeoutIfTheQueueHasNone)
{
	Rig t;
	t.ready(1);
	t.ready(2);
	auto terms = Rig::terms(1, 0);
	terms.default_timeout_ms = 7;
	EXPECT_EQ(t.engine.entry(t.engine.claim(t.q(), terms)).hard_deadline, 7'000);
	t.q().settings.timeout_ms = 0; // no timeout, whatever the server's setting is
	EXPECT_FALSE(t.engine.entry(t.engine.claim(t.q(), terms)).has(kHardTimeout));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Limits, TheJobsOwnComeLast)
{
	Rig t;
	t.q().settings.timeout_ms = 3;
	t.ready(1);
	const Ref r = t.claim(1, 1'000'000);
	t.engine.set_limits(t.q(), r, 5, 0, 1'000'000);
	EXPECT_EQ(t.engine.entry(r).deadline, 1'005'000);
	EXPECT_EQ(t.engine.entry(r).timer, 1'003'000);
	t.engine.set_limits(t.q(), r, 0, 20'000, 1'000'000);
	EXPECT_EQ(t.engine.entry(r).hard_deadline, 1'020'000);
	EXPECT_EQ(t.engine.entry(r).timer, 1'005'000);
	EXPECT_EQ(t.q().next_lease.load(), 1'005'000);
	EXPECT_EQ(verify(t.engine), "");
}

} // namespace
