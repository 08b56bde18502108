// Claims, marks, leases, and the list of claims that wait for the journal.
#include <gtest/gtest.h>

#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

std::vector<JobId> claim_all(Rig &t)
{
	std::vector<JobId> ids;
	for (Ref r; (r = t.claim()) != kNil;)
		ids.push_back(t.id_of(r));
	return ids;
}

TEST(Claims, LowerPriorityNumberFirstThenTheOlderJob)
{
	Rig t;
	t.ready(1, 5);
	t.ready(2, -1);
	t.ready(3, 5, "mail");
	t.ready(4, 0, "mail");
	t.ready(5, 0);
	t.ready(6, -1, "print");
	EXPECT_EQ(claim_all(t), (std::vector<JobId>{2, 6, 4, 5, 1, 3}));
	EXPECT_EQ(verify(t.engine), "");
}

// Claims the next job and puts it back, for `due` if that is not 0; returns its id.
JobId poll(Rig &t, Micros due = 0)
{
	const Ref r = t.claim();
	due != 0 ? t.fail(r, due) : t.undo_claim(r);
	return t.id_of(r);
}

TEST(Order, ByDefaultAJobThatIsReadyAgainComesBeforeNewerOnes)
{
	Rig t;
	for (JobId id = 1; id <= 3; ++id)
		t.ready(id);
	EXPECT_EQ(poll(t), 1);
	EXPECT_EQ(poll(t, 5), 1);
	t.fire(5);
	EXPECT_EQ(claim_all(t), (std::vector<JobId>{1, 2, 3}));
}

TEST(Order, ByReadinessItComesAfterThoseThatWereReadyBefore)
{
	Rig t;
	t.set([](QueueSettings &s) { s.by_readiness = true; });
	surroundings().next_id = 3;
	t.ready(1);
	t.ready(2, 0, "mail");
	EXPECT_EQ(poll(t), 1);
	EXPECT_EQ(poll(t, 5), 2);
	EXPECT_EQ(poll(t), 1);
	t.fire(5);
	EXPECT_EQ(poll(t), 1); // 2 became ready after it
	EXPECT_EQ(verify(t.engine), "");
	t.ready(3);
	t.ready(4, -1);
	surroundings().next_id = 5;
	EXPECT_EQ(poll(t), 4); // priorities come first
	EXPECT_EQ(poll(t), 4);
	t.finish(t.claim());
	EXPECT_EQ(poll(t), 2);
	EXPECT_EQ(poll(t), 1);
	t.ready(5);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(claim_all(t), (std::vector<JobId>{3, 2, 1, 5}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Order, AJobWithAPlaceIsNotEvictedAndWaitsForTheJobsOnDiskBeforeIt)
{
	Rig t;
	t.set([](QueueSettings &s) { s.by_readiness = true; });
	surroundings().next_id = 5;
	t.ready(1);
	t.ready(2);
	EXPECT_EQ(poll(t), 1);
	Lane &l = t.lane_at();
	EXPECT_TRUE(t.engine.evict_ready(t.q(), l, kMinKey, 0));
	EXPECT_FALSE(t.engine.evict_ready(t.q(), l, kMinKey, 0));
	EXPECT_EQ(l.watermark, (Key{0, 2}));
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_TRUE(t.engine.runs_dry(t.q(), l));
	l.limit = kMaxKey;
	t.ready(2); // read in
	t.engine.raise_watermark(t.q(), l, Key{0, 3});
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.claim(), kNil);
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Order, JobsWithAPlaceTakeHalfOfThePinsAtMostAndGroupsKeepTheirOrder)
{
	Rig t(kSmall);
	t.set([](QueueSettings &s) { s.by_readiness = true; });
	for (JobId id = 1; id <= 10; ++id)
		t.delayed(id, 5);
	t.engine.fire_due(t.q(), 5, 100);
	EXPECT_GT(t.q().pinned, 0U);
	EXPECT_LE(t.q().pinned, t.engine.pins_left(t.q()) + 1);
	EXPECT_EQ(verify(t.engine), "");
	claim_all(t);
	Rig u;
	u.set([](QueueSettings &s) { s.by_readiness = s.loose_groups = true; });
	u.grouped("g", 1);
	u.grouped("g", 2);
	EXPECT_EQ(poll(u), 1);
	EXPECT_EQ(poll(u), 1);
	EXPECT_EQ(verify(u.engine), "");
}

TEST(Claims, OnlyWantedKinds)
{
	Rig t;
	t.ready(1);
	t.ready(2, 9, "a");
	t.ready(3, 5, "b");
	t.ready(4, 7, "c");
	const uint64_t kinds[] = {hash_name("a"), hash_name("b"), hash_name("nobody")};
	auto terms = Rig::terms();
	terms.kinds = kinds;
	terms.nkinds = 3;
	Key key;
	EXPECT_TRUE(t.engine.claimable(t.q(), kinds, 3, &key));
	EXPECT_EQ(key, (Key{5, 3}));
	EXPECT_EQ(t.id_of(t.engine.claim(t.q(), terms)), 3);
	EXPECT_EQ(t.id_of(t.engine.claim(t.q(), terms)), 2);
	EXPECT_EQ(t.engine.claim(t.q(), terms), kNil);
	EXPECT_FALSE(t.engine.claimable(t.q(), kinds, 3, &key));
	EXPECT_EQ(key, kMaxKey);
	EXPECT_TRUE(t.engine.claimable(t.q(), nullptr, 0, &key));
	EXPECT_EQ(key, (Key{0, 1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Claims, NoneBeyondTheLeasesThatAreReserved)
{
	Rig t;
	for (JobId id = 1; id <= 3; ++id)
		t.ready(id);
	DbCore &db = t.engine.db(0);
	db.lease_limit.store(db.next_lease.load() + 2);
	EXPECT_EQ(claim_all(t), (std::vector<JobId>{1, 2}));
	EXPECT_EQ(db.next_lease.load(), db.lease_limit.load());
	db.lease_limit.fetch_add(1);
	EXPECT_EQ(claim_all(t), (std::vector<JobId>{3}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Claims, EveryClaimHasItsOwnLease)
{
	Rig t;
	t.ready(1);
	const Ref r = t.claim(1);
	const LeaseNo first = t.engine.entry(r).lease;
	t.undo_claim(r);
	EXPECT_EQ(t.claim(1), r);
	EXPECT_GT(t.engine.entry(r).lease, first);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Claims, TheLeaseIsTheCallersThenTheQueues)
{
	Rig t;
	auto lease = [&t](uint32_t asked) {
		auto terms = Rig::terms(1, 5'000'000);
		terms.lease_ms = asked;
		const Ref c = t.engine.claim(t.q(), terms);
		const Micros end = t.engine.entry(c).deadline - 5'000'000;
		EXPECT_EQ(t.engine.entry(c).timer, t.engine.entry(c).deadline);
		t.undo_claim(c);
		return end;
	};
	t.ready(1);
	EXPECT_EQ(lease(0), 60'000'000);
	t.q().settings.lease_ms = 7;
	EXPECT_EQ(lease(0), 7'000);
	EXPECT_EQ(lease(4), 4'000);
	EXPECT_EQ(lease(UINT32_MAX), Micros{UINT32_MAX} * 1000);
}

TEST(Claims, ANewClaimKeepsNothingOfTheLastOne)
{
	Rig t;
	t.ready(1);
	const Ref r = t.claim();
	t.engine.change(t.q(), r, [](Entry &e) noexcept {
		e.mark = Verb::none;
		e.flags |= kLogged | kBound | kHardTimeout | kClaimEnded;
		e.hard_deadline = 17;
	});
	t.undo_claim(r);
	t.claim();
	const Entry &e = t.engine.entry(r);
	EXPECT_EQ(e.flags, 0);
	EXPECT_EQ(e.hard_deadline, kNever);
	EXPECT_EQ(e.attempt, 2);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Claims, AttemptsDoNotWrap)
{
	Rig t;
	const Ref r = t.ready(1);
	t.engine.entry(r).attempt = UINT16_MAX;
	t.claim();
	EXPECT_EQ(t.engine.entry(r).attempt, UINT16_MAX);
}

TEST(Claims, AWorkersRunningJobsAreCounted)
{
	Rig t;
	for (JobId id = 1; id <= 3; ++id)
		t.ready(id);
	auto terms = Rig::terms();
	terms.worker = 2;
	const Ref a = t.engine.claim(t.q(), terms), b = t.engine.claim(t.q(), terms);
	t.claim();
	EXPECT_EQ(t.engine.worker(2).running.load(), 2);
	t.commit_claim(a);
	t.undo_claim(b);
	EXPECT_EQ(t.engine.worker(2).running.load(), 1);
	t.engine.drop(t.q(), a, 0);
	EXPECT_EQ(t.engine.worker(2).running.load(), 0);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Claims, AllKindsButSome)
{
	Rig t;
	t.ready(1, 0, "a");
	t.ready(2, 0, "b");
	t.ready(3);
	const uint64_t kinds[] = {hash_name("a"), hash_name("c")};
	auto terms = Rig::terms();
	terms.kinds = kinds;
	terms.nkinds = 2;
	terms.except = true;
	Key key{};
	EXPECT_TRUE(t.engine.claimable(t.q(), kinds, 2, &key, true));
	EXPECT_EQ(t.id_of(t.engine.claim(t.q(), terms)), 2);
	EXPECT_EQ(t.id_of(t.engine.claim(t.q(), terms)), 3);
	EXPECT_EQ(t.engine.claim(t.q(), terms), kNil);
	EXPECT_FALSE(t.engine.claimable(t.q(), kinds, 2, &key, true));
	EXPECT_TRUE(t.engine.claimable(t.q(), kinds, 2, &key));
}

// What heartbeats reported, by slot.
std::vector<uint16_t> ended;

TEST(Claims, ProgressEndsWithTheAttemptAndOnlyThen)
{
	Rig t;
	ended.clear();
	Platform platform{};
	platform.lock_partition = lock_partition;
	platform.unlock_partition = unlock_partition;
	platform.wake = set_latch;
	platform.sooner = note_sooner;
	platform.want_refill = note_refill;
	platform.end_progress = [](uint16_t slot) noexcept { ended.push_back(slot); };
	t.engine.set_platform(platform);
	for (JobId id = 1; id <= 4; ++id)
		t.ready(id);
	Ref r[4];
	for (uint16_t i = 0; i < 4; ++i)
	{
		r[i] = t.claim();
		t.commit_claim(r[i]);
		t.engine.entry(r[i]).progress = static_cast<uint16_t>(10 + i + 1);
	}
	t.engine.mark(t.q(), r[0], 1, Verb::complete, State::terminal);
	t.engine.change(t.q(), r[1], [](Entry &e) noexcept { e.flags |= kCancelAsked; });
	EXPECT_TRUE(ended.empty());
	t.engine.drop(t.q(), r[0], 0); // completed
	t.undo_claim(r[1]);			   // released
	t.engine.change(t.q(), r[2], [](Entry &e) noexcept { // rescheduled
		e.state = State::delayed;
		e.timer = 5;
	});
	t.engine.change(t.q(), r[3], [](Entry &e) noexcept { e.state = State::placeholder; });
	EXPECT_EQ(ended, (std::vector<uint16_t>{10, 11, 12, 13}));
	t.engine.drop(t.q(), r[3], 0);
	t.claim();
	EXPECT_EQ(ended.size(), 4U);
	EXPECT_EQ(t.engine.entry(r[1]).progress, 0);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Marks, AnotherOwnerGetsBusyTheSameOwnerDoesNot)
{
	Rig t;
	const Ref r = t.ready(1);
	EXPECT_EQ(t.engine.mark(t.q(), r, 1, Verb::reschedule, State::ready), MarkResult::ok);
	EXPECT_EQ(t.claim(2), kNil); // claims skip it
	EXPECT_EQ(t.engine.mark(t.q(), r, 2, Verb::cancel, State::terminal), MarkResult::busy);
	EXPECT_EQ(t.engine.entry(r).mark, Verb::reschedule);
	EXPECT_EQ(t.engine.mark(t.q(), r, 1, Verb::cancel, State::terminal), MarkResult::ok);
	EXPECT_EQ(t.engine.entry(r).pending, State::terminal);
	EXPECT_EQ(verify(t.engine), "");
	t.engine.change(t.q(), r, [](Entry &e) noexcept { e.mark = Verb::none; }); // rollback
	EXPECT_EQ(t.claim(2), r);
	EXPECT_EQ(t.engine.mark(t.q(), r, 1, Verb::cancel, State::terminal), MarkResult::busy); // the claim is open
	EXPECT_EQ(t.engine.mark(t.q(), r, 2, Verb::complete, State::terminal), MarkResult::ok); // ... and finishes
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Marks, AJobBeingLoadedOrCommittedCannotBeMarked)
{
	Rig t;
	Ref existing;
	for (const State s : {State::placeholder, State::committing})
	{
		const Ref r = t.engine.insert(t.q(), {.lane = t.lane(), .id = 1, .priority = 0, .state = s}, 0, &existing);
		EXPECT_EQ(t.engine.mark(t.q(), r, 2, Verb::cancel, State::terminal), MarkResult::busy);
		EXPECT_EQ(t.claim(), kNil);
		t.engine.drop(t.q(), r, 0);
	}
}

TEST(Marks, AMarkedTimerDoesNotFireAndIsNotEvicted)
{
	Rig t;
	const Ref r = t.delayed(1, 100), s = t.ready(2);
	t.engine.mark(t.q(), r, 1, Verb::cancel, State::terminal);
	t.engine.mark(t.q(), s, 1, Verb::cancel, State::terminal);
	EXPECT_EQ(t.q().next_due.load(), kNever);
	EXPECT_EQ(t.engine.fire_due(t.q(), 1000, 4), 0);
	EXPECT_FALSE(t.engine.evict_delayed(t.q(), 0));
	EXPECT_FALSE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0));
	t.engine.change(t.q(), r, [](Entry &e) noexcept { e.mark = Verb::none; });
	EXPECT_EQ(t.engine.fire_due(t.q(), 1000, 4), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Leases, AreCollectedWhenGraceHasPassed)
{
	Rig t;
	t.ready(1);
	t.ready(2);
	auto terms = Rig::terms(1, 1'000);
	terms.lease_ms = 10;
	const Ref a = t.engine.claim(t.q(), terms);
	terms.lease_ms = 20;
	const Ref b = t.engine.claim(t.q(), terms);
	t.commit_claim(b);
	EXPECT_EQ(t.q().next_lease.load(), 11'000);
	EXPECT_EQ(surroundings().sooner_mono.load(), 11'000);
	Ref out[4];
	PrevMark prev[4];
	EXPECT_EQ(t.engine.collect_lost(t.q(), {10'999, 4, 9}, out, prev), 0);
	ASSERT_EQ(t.engine.collect_lost(t.q(), {11'000, 4, 9}, out, prev), 1);
	EXPECT_EQ(out[0], a);
	EXPECT_EQ(prev[0].mark, Verb::claim); // an open claim also has a deadline
	EXPECT_EQ(prev[0].owner, 1U);
	EXPECT_EQ(t.engine.entry(a).mark, Verb::lose);
	EXPECT_EQ(t.engine.entry(a).owner, 9U);
	EXPECT_EQ(t.engine.mark(t.q(), a, 1, Verb::complete, State::terminal), MarkResult::busy);
	EXPECT_EQ(t.q().next_lease.load(), 21'000);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Leases, AHeartbeatMovesTheDeadlineWithoutTouchingTheTree)
{
	Rig t;
	t.ready(1);
	auto terms = Rig::terms(1, 0);
	terms.lease_ms = 10;
	const Ref r = t.engine.claim(t.q(), terms);
	t.commit_claim(r);
	t.engine.entry(r).deadline = 50'000; // a heartbeat
	Ref out[1];
	PrevMark prev[1];
	EXPECT_EQ(t.engine.collect_lost(t.q(), {12'000, 1, 9}, out, prev), 0);
	EXPECT_EQ(t.engine.entry(r).timer, 50'000);
	EXPECT_EQ(t.q().next_lease.load(), 50'000);
	EXPECT_EQ(verify(t.engine), "");
	// a heartbeat cannot extend the lease past the end of the attempt
	t.engine.entry(r).deadline = 90'000;
	t.engine.entry(r).hard_deadline = 60'000;
	t.engine.entry(r).flags |= kHardTimeout;
	EXPECT_EQ(t.engine.collect_lost(t.q(), {55'000, 1, 9}, out, prev), 0);
	EXPECT_EQ(t.engine.entry(r).timer, 60'000);
	EXPECT_EQ(t.engine.collect_lost(t.q(), {60'000, 1, 9}, out, prev), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Leases, AreCollectedUpToAMaximumAndOnlyUnmarkedOnes)
{
	Rig t;
	for (JobId id = 1; id <= 6; ++id)
	{
		t.ready(id);
		const Ref r = t.claim(1, id * 1000);
		t.commit_claim(r);
		if (id == 2)
			t.engine.mark(t.q(), r, 1, Verb::complete, State::terminal);
	}
	Ref out[3];
	PrevMark prev[3];
	ASSERT_EQ(t.engine.collect_lost(t.q(), {kNever, 3, 9}, out, prev), 3);
	EXPECT_EQ(t.id_of(out[0]), 1);
	EXPECT_EQ(t.id_of(out[1]), 3);
	EXPECT_EQ(t.id_of(out[2]), 4);
	EXPECT_EQ(verify(t.engine), "");
}

std::vector<JobId> listed(Rig &t)
{
	std::vector<JobId> ids;
	for (Ref r = t.q().claims_head; r != kNil; r = t.engine.entry(r).aux.right)
		ids.push_back(t.id_of(r));
	return ids;
}

TEST(ClaimList, HoldsCommittedClaimsInTheirOrder)
{
	Rig t;
	std::vector<Ref> refs;
	for (JobId id = 1; id <= 5; ++id)
	{
		t.ready(id);
		refs.push_back(t.claim(1, 0, 0, 100 + id));
		EXPECT_EQ(t.q().next_claim.load(), id == 1 ? kNever : 101);
		t.commit_claim(refs.back());
	}
	EXPECT_EQ(listed(t), (std::vector<JobId>{1, 2, 3, 4, 5}));
	EXPECT_EQ(t.q().next_claim.load(), 101);

	// a change that leaves the job running keeps its position
	t.engine.change(t.q(), refs[0], [](Entry &e) noexcept { e.timer = 5; });
	t.engine.change(t.q(), refs[2], [](Entry &e) noexcept { e.flags = kBound; });
	EXPECT_EQ(listed(t), (std::vector<JobId>{1, 2, 3, 4, 5}));

	t.engine.mark(t.q(), refs[1], 1, Verb::complete, State::terminal); // its finish reports it
	EXPECT_EQ(listed(t), (std::vector<JobId>{1, 3, 4, 5}));
	t.engine.drop(t.q(), refs[4], 0);
	EXPECT_EQ(listed(t), (std::vector<JobId>{1, 3, 4}));
	t.undo_claim(refs[0]);
	EXPECT_EQ(t.q().next_claim.load(), 103);
	t.engine.entry(refs[2]).flags |= kLogged;
	t.engine.unlist_claim(t.q(), t.engine.entry(refs[2]));
	EXPECT_EQ(listed(t), (std::vector<JobId>{4}));
	t.engine.change(t.q(), refs[2], [](Entry &) noexcept {});
	EXPECT_EQ(listed(t), (std::vector<JobId>{4}));
	t.engine.drop(t.q(), refs[3], 0);
	EXPECT_EQ(t.q().next_claim.load(), kNever);
	EXPECT_EQ(verify(t.engine), "");
}

} // namespace
