// Leases that belong to their worker: its heartbeats, its end, revocation.
#include <gtest/gtest.h>

#include "rig.hpp"
#include "verify.hpp"

namespace tq::test
{
namespace
{

constexpr Micros kLease = 60'000'000; // of a rig's claims

struct WorkerRig : Rig
{
	Ref claim_for(uint32_t worker, JobId id, Binding binding = Binding::worker, Micros mono = 0)
	{
		ready(id);
		auto t = terms(1, mono);
		t.worker = worker;
		t.binding = binding;
		const Ref r = engine.claim(q(), t);
		commit_claim(r);
		return r;
	}
	// The jobs whose leases are lost at `until`, in their order.
	std::vector<JobId> lost(Micros until, bool strict = false)
	{
		Ref out[64];
		PrevMark prev[64];
		const int n = engine.collect_lost(q(), {.until = until, .max = 64, .owner = 9, .strict = strict}, out, prev);
		std::vector<JobId> ids;
		for (int i = 0; i < n; ++i)
			ids.push_back(id_of(out[i]));
		return ids;
	}
	void revoke(uint32_t worker, LeaseNo below, int step = Engine::kMostWalked)
	{
		engine.worker(worker).revoked.store(below);
		LeasePosition at;
		while (engine.revoke_leases(q(), &at, step))
		{
		}
		engine.worker(worker).revoked.store(0);
	}
};

using Ids = std::vector<JobId>;

TEST(WorkerLeases, OneHeartbeatExtendsAllOfTheWorker)
{
	WorkerRig t;
	t.claim_for(1, 1);
	t.claim_for(1, 2, Binding::worker, 5);
	t.claim_for(2, 3);
	t.claim_for(1, 4, Binding::none);
	EXPECT_EQ(t.engine.worker(1).leases.load(), 2);
	t.engine.worker(1).beat.store(1000);
	EXPECT_EQ(t.lost(kLease), (Ids{3, 4}));
	EXPECT_EQ(t.lost(kLease + 999), (Ids{}));
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.lost(kLease + 1000), (Ids{1, 2}));
	EXPECT_EQ(t.engine.worker(1).leases.load(), 0);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(WorkerLeases, AHeartbeatDoesNotShortenALease)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1, Binding::worker, 500);
	t.engine.worker(1).beat.store(100);
	EXPECT_EQ(t.engine.lease_end(t.engine.entry(r), false), 500 + kLease);
	EXPECT_EQ(t.lost(499 + kLease), (Ids{}));
	EXPECT_EQ(t.lost(500 + kLease), (Ids{1}));
}

TEST(WorkerLeases, HeartbeatsDoNotExtendStrictLeases)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	t.engine.worker(1).beat.store(1000);
	EXPECT_EQ(t.engine.lease_end(t.engine.entry(r), true), kLease);
	EXPECT_EQ(t.lost(kLease, true), (Ids{1}));
}

TEST(WorkerLeases, AnAttemptEndsWhateverTheWorkerSays)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	t.engine.change(t.q(), r, [](Entry &e) noexcept { set_hard_deadline(e, kLease + 50); });
	t.engine.worker(1).beat.store(1000);
	EXPECT_EQ(t.lost(kLease + 49), (Ids{}));
	EXPECT_EQ(t.lost(kLease + 50), (Ids{1}));
}

TEST(WorkerLeases, AnAbsentWorkersLeasesEndAtItsTime)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	t.engine.worker(1).until.store(40);
	EXPECT_EQ(t.engine.lease_end(t.engine.entry(r), false), 40);
	t.engine.worker(1).until.store(kNever);
	EXPECT_EQ(t.engine.lease_end(t.engine.entry(r), false), kLease);
}

TEST(WorkerLeases, ARevocationEndsALeaseWhoseFinishIsRolledBackLater)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	const auto undo = [&t](Ref job) {
		t.engine.change(t.q(), job, [&t](Entry &e) noexcept {
			e.mark = Verb::none;
			t.engine.catch_up(e);
		});
	};
	t.engine.set_mark(t.q(), r, 1, Verb::complete, State::terminal);
	const LeaseNo below = t.engine.db(0).next_lease.load();
	t.engine.worker(1).ended.store(below);
	t.revoke(1, below);
	const Ref later = t.claim_for(1, 2);
	t.engine.set_mark(t.q(), later, 1, Verb::complete, State::terminal);
	t.engine.worker(1).beat.store(kLease); // another process has the name now
	undo(r);
	undo(later);
	EXPECT_EQ(t.lost(0), (Ids{1}));
	EXPECT_EQ(t.engine.worker(1).leases.load(), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(WorkerLeases, ARevocationEndsTheLeaseOfAnOwnJobAtItsCommit)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	t.engine.change(t.q(), r, [](Entry &e) noexcept { // as claim_own() leaves it
		e.mark = Verb::claim;
		e.timer = kNever;
	});
	const LeaseNo below = t.engine.db(0).next_lease.load();
	t.engine.worker(1).ended.store(below);
	t.revoke(1, below);
	EXPECT_EQ(t.lost(kNever - 1), (Ids{}));
	t.engine.change(t.q(), r, [&t](Entry &e) noexcept {
		e.mark = Verb::none;
		t.engine.start_lease(e);
		t.engine.catch_up(e);
	});
	EXPECT_EQ(t.lost(0), (Ids{1}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(WorkerLeases, RevocationEndsOlderLeasesOfTheWorkerOnly)
{
	for (const int step : {1, 2, Engine::kMostWalked})
	{
		WorkerRig t;
		for (JobId id = 1; id <= 5; ++id)
			t.claim_for(1, id, Binding::worker, id);
		t.claim_for(2, 6);
		t.claim_for(1, 7, Binding::none);
		t.claim_for(1, 8, Binding::session);
		const LeaseNo below = t.engine.db(0).next_lease.load();
		const Ref later = t.claim_for(1, 9);
		EXPECT_FALSE(t.engine.is_revoked(t.engine.entry(later)));
		t.revoke(1, below, step);
		EXPECT_EQ(t.engine.worker(1).leases.load(), 1);
		EXPECT_EQ(verify(t.engine), "");
		EXPECT_EQ(t.lost(-4'000'000'000), (Ids{1, 2, 3, 4, 5}));
		EXPECT_EQ(verify(t.engine), "");
	}
}

TEST(WorkerLeases, ARevokedLeaseHasEndedBeforeTheWalkFindsIt)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	t.engine.worker(1).revoked.store(t.engine.db(0).next_lease.load());
	EXPECT_TRUE(t.engine.is_revoked(t.engine.entry(r)));
	EXPECT_EQ(t.engine.lease_end(t.engine.entry(r), false), 0);
	t.engine.worker(1).beat.store(1000);
	t.engine.worker(1).until.store(kNever);
	EXPECT_TRUE(t.engine.is_revoked(t.engine.entry(r))); // a heartbeat does not bring it back
}

TEST(WorkerLeases, AnOpenClaimIsRevokedAndAFinishUnderWayIsNot)
{
	WorkerRig t;
	t.ready(1);
	auto terms = Rig::terms();
	terms.worker = 1;
	terms.binding = Binding::worker;
	const Ref open = t.engine.claim(t.q(), terms);
	const Ref finish = t.claim_for(1, 2);
	t.engine.mark(t.q(), finish, 1, Verb::complete, State::terminal);
	t.revoke(1, t.engine.db(0).next_lease.load());
	EXPECT_EQ(t.engine.worker(1).leases.load(), 1); // its transaction decides
	// the claim's transaction applies the job's own limits
	t.engine.set_limits(t.q(), open, 1000, 500, 0);
	EXPECT_EQ(t.lost(-4'000'000'000), (Ids{1}));
	t.engine.change(t.q(), finish, [](Entry &e) noexcept { e.mark = Verb::none; });
	t.revoke(1, t.engine.db(0).next_lease.load());
	EXPECT_EQ(t.lost(-4'000'000'000), (Ids{2}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(WorkerLeases, ARequestToStopIsCounted)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	const auto ask = [](Entry &e) noexcept { e.flags |= kCancelAsked; };
	t.engine.change(t.q(), r, ask);
	EXPECT_EQ(t.engine.worker(1).asked.load(), 1);
	t.engine.change(t.q(), r, [](Entry &e) noexcept { e.set_worker(2); }); // renamed
	EXPECT_EQ(t.engine.worker(1).asked.load(), 0);
	EXPECT_EQ(t.engine.worker(1).leases.load(), 0);
	EXPECT_EQ(t.engine.worker(2).asked.load(), 1);
	t.engine.drop(t.q(), r, 0);
	EXPECT_EQ(t.engine.worker(2).asked.load(), 0);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(WorkerLeases, ANewClaimOfTheJobIsOfItsOwnKind)
{
	WorkerRig t;
	const Ref r = t.claim_for(1, 1);
	t.undo_claim(r);
	t.claim();
	EXPECT_EQ(t.engine.entry(r).binding(), Binding::none);
	EXPECT_EQ(verify(t.engine), "");
}

} // namespace
} // namespace tq::test
