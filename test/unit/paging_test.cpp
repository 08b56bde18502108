// Watermarks, eviction, pauses, timers.
#include <gtest/gtest.h>

#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

TEST(Watermark, NothingAtOrAboveItIsClaimed)
{
	Rig t;
	for (JobId id = 1; id <= 4; ++id)
		t.ready(id * 10);
	Lane &l = t.lane_at();
	t.engine.lower_watermark(t.q(), l, Key{0, 20});
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.id_of(t.claim()), 10);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_FALSE(l.in_startable);
	t.engine.lower_watermark(t.q(), l, Key{0, 5});
	l.limit = kMaxKey; // a load starts
	t.engine.raise_watermark(t.q(), l, Key{0, 21});
	EXPECT_EQ(t.id_of(t.claim()), 20);
	EXPECT_EQ(t.claim(), kNil);
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	EXPECT_EQ(t.id_of(t.claim()), 30);
	t.ready(15); // below the watermark: claimable at once
	EXPECT_EQ(t.id_of(t.claim()), 15);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watermark, ALoaderStopsBeforeJobsItMayHaveMissed)
{
	Rig t;
	Lane &l = t.lane_at();
	t.engine.lower_watermark(t.q(), l, Key{0, 100});
	l.limit = kMaxKey; // a load starts
	t.engine.lower_watermark(t.q(), l, Key{0, 500});
	EXPECT_EQ(l.watermark, (Key{0, 100}));
	t.engine.raise_watermark(t.q(), l, Key{0, 300});
	EXPECT_EQ(l.watermark, (Key{0, 300}));
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	EXPECT_EQ(l.watermark, (Key{0, 500}));
	t.engine.raise_watermark(t.q(), l, Key{0, 200}); // never lowers it
	EXPECT_EQ(l.watermark, (Key{0, 500}));
	l.limit = kMaxKey;
	t.engine.lower_watermark(t.q(), l, Key{-1, 0}); // below the start of the load
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	EXPECT_EQ(l.watermark, (Key{-1, 0}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watermark, SkippedJobsAreOnDiskBelowTheWatermark)
{
	Rig t;
	Lane &l = t.lane_at();
	t.engine.lower_watermark(t.q(), l, Key{0, 100});
	l.limit = kMaxKey; // a load starts and meets a locked segment
	t.engine.skip(l, Key{0, 100});
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	t.ready(200);
	EXPECT_EQ(t.id_of(t.claim()), 200); // in another segment
	EXPECT_TRUE(t.engine.covered_by_watermark(t.q(), l, nullptr, kNil, Key{0, 99}));
	EXPECT_FALSE(t.engine.covered_by_watermark(t.q(), l, nullptr, kNil, Key{0, 150}));
	t.q().want_refill = false;
	t.engine.read_skipped(t.q(), l);
	EXPECT_EQ(l.watermark, (Key{0, 100}));
	EXPECT_TRUE(t.q().want_refill.load());
	l.limit = kMaxKey;
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	EXPECT_TRUE(t.engine.covered_by_watermark(t.q(), l, nullptr, kNil, Key{0, 150}));
	t.engine.read_skipped(t.q(), l); // only once
	EXPECT_EQ(l.watermark, kMaxKey);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watermark, ADryLaneAsksForARefill)
{
	Rig t(kSmall);
	Lane &l = t.lane_at();
	auto asked = [&t] { return t.q().want_refill.exchange(false); };
	t.ready(1);
	t.ready(2);
	EXPECT_FALSE(asked());
	t.engine.lower_watermark(t.q(), l, Key{0, 2});
	EXPECT_FALSE(asked()); // one job is startable, which is enough for 16 entries
	t.claim();
	EXPECT_TRUE(asked());
	EXPECT_EQ(surroundings().refills.load(), 1);
	l.limit = Key{0, 7};
	t.engine.raise_watermark(t.q(), l, kMaxKey); // reads job 2
	EXPECT_FALSE(asked());
	t.claim();
	EXPECT_TRUE(asked());
	l.limit = Key{0, 9};
	t.engine.raise_watermark(t.q(), l, kMaxKey); // reads nothing: it must ask again, because no claim will
	EXPECT_TRUE(asked());
	t.engine.raise_watermark(t.q(), l, kMaxKey); // no progress
	EXPECT_FALSE(asked());
	l.limit = kMaxKey;
	t.engine.raise_watermark(t.q(), l, kMaxKey); // the lane is read completely
	EXPECT_FALSE(asked());
	// a paused lane requests no refill until it is resumed
	t.engine.set_paused(t.q(), &l, kNever);
	t.engine.lower_watermark(t.q(), l, Key{0, 11});
	EXPECT_FALSE(asked());
	t.engine.set_paused(t.q(), &l, 0);
	EXPECT_TRUE(asked());
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watermark, AnOverrideBeyondItWaits)
{
	Rig t;
	t.ready(1, 0);
	const Ref r = t.ready(2, 0);
	Lane &l = t.lane_at();
	t.engine.lower_watermark(t.q(), l, Key{5, 0});
	t.engine.change(t.q(), r, [](Entry &e) noexcept {
		e.priority = 9;
		e.flags |= kOverride;
	});
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_TRUE(t.engine.runs_dry(t.q(), l)); // it does not count as stock
	l.limit = kMaxKey;
	t.engine.raise_watermark(t.q(), l, Key{9, 3});
	EXPECT_EQ(t.claim(), r);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Evict, TakesTheGreatestKeyAndSinksToIt)
{
	Rig t;
	for (JobId id = 1; id <= 5; ++id)
		t.ready(id, static_cast<int32_t>(id % 3)); // order: 3, 1, 4, 2, 5
	Lane &l = t.lane_at();
	uint16_t q;
	EXPECT_TRUE(t.engine.evict_ready(t.q(), l, kMinKey, 0));
	EXPECT_EQ(t.engine.find(0, 5, &q), kNil);
	EXPECT_EQ(l.watermark, (Key{2, 5}));
	EXPECT_EQ(l.limit, (Key{2, 5}));							// a running load stops before it
	EXPECT_FALSE(t.engine.evict_ready(t.q(), l, Key{2, 2}, 0)); // not greater
	EXPECT_TRUE(t.engine.evict_ready(t.q(), l, Key{2, 1}, 0));
	EXPECT_EQ(l.watermark, (Key{2, 2}));
	EXPECT_EQ(verify(t.engine), "");
	// an entry beyond the watermark is evicted first; only the limit moves
	l.limit = kMaxKey;
	t.ready(9, 7);
	EXPECT_TRUE(t.engine.evict_ready(t.q(), l, kMinKey, 0));
	EXPECT_EQ(l.watermark, (Key{2, 2}));
	EXPECT_EQ(l.limit, (Key{7, 9}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Evict, LeavesOverridesAndEntriesThatAreNotReady)
{
	Rig t;
	const auto stay = [](Entry &e) noexcept { e.flags |= kOverride; };
	t.engine.change(t.q(), t.ready(1), stay);
	const Ref running = t.ready(3, -1);
	EXPECT_EQ(t.claim(), running);
	t.delayed(4, 100);
	EXPECT_FALSE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0));
	EXPECT_EQ(t.lane_at().watermark, kMaxKey);
	t.ready(5, -2);
	EXPECT_TRUE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0)); // behind the protected job
	uint16_t q;
	EXPECT_EQ(t.engine.find(0, 5, &q), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

// A job loses its pause after rolled-back claims. On disk it is ready, so its lane reads it, not the timers.
TEST(Evict, TakesJobsWhoseClaimsWereRolledBack)
{
	Rig t;
	t.engine.change(t.q(), t.ready(1), [](Entry &e) noexcept { e.aborts = 2; });
	t.engine.change(t.q(), t.ready(2), [](Entry &e) noexcept {
		e.aborts = 3;
		e.flags |= kHeld;
		e.state = State::delayed;
		e.timer = 500;
	});
	uint16_t q;
	EXPECT_TRUE(t.engine.evict_delayed(t.q(), 0));
	EXPECT_EQ(t.engine.find(0, 2, &q), kNil);
	EXPECT_EQ(t.engine.db(0).timer_watermark.load(), kNever);
	EXPECT_EQ(t.lane_at().delayed_disk, 0);
	EXPECT_EQ(t.lane_at().watermark, (Key{0, 2}));
	EXPECT_TRUE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0));
	EXPECT_EQ(t.engine.find(0, 1, &q), kNil);
	EXPECT_EQ(t.q().pinned, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

// ... of a group: on disk it waits for the paused job, as any job there does
TEST(Evict, TakesPausedJobsOfGroups)
{
	Rig t;
	t.engine.change(t.q(), t.grouped("g", 1), [](Entry &e) noexcept {
		e.aborts = 3;
		e.flags |= kHeld;
		e.state = State::delayed;
		e.timer = 500;
	});
	const Ref later = t.grouped("g", 2);
	EXPECT_TRUE(t.engine.evict_delayed(t.q(), 0));
	EXPECT_EQ(t.engine.group(t.group("g")).watermark, (Key{0, 1}));
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(t.id_of(later), 2);
	EXPECT_EQ(verify(t.engine), "");
	// a job that waits for its next attempt must stay
	t.engine.change(t.q(), t.grouped("h", 3), [](Entry &e) noexcept {
		e.flags |= kHeld;
		e.state = State::delayed;
		e.timer = 600;
	});
	EXPECT_FALSE(t.engine.evict_delayed(t.q(), 0));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Evict, LooksBehindAnyNumberOfOverrides)
{
	Rig t;
	const auto stay = [](Entry &e) noexcept { e.flags |= kOverride; };
	for (JobId id = 1; id <= 12; ++id)
		t.engine.change(t.q(), t.ready(id, id % 4 == 0 ? 1 : 5), [&](Entry &e) noexcept {
			if (e.priority == 5)
				stay(e);
		});
	for (JobId id = 21; id <= 24; ++id)
		t.engine.change(t.q(), t.delayed(id, 100 * id), [&](Entry &e) noexcept {
			if (id > 22)
				stay(e);
		});
	uint16_t q;
	for (const JobId id : {12, 8, 4})
	{
		EXPECT_TRUE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0));
		EXPECT_EQ(t.engine.find(0, id, &q), kNil);
		EXPECT_EQ(verify(t.engine), "");
	}
	EXPECT_FALSE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0));
	t.ready(30, 9); // a new job is evictable
	EXPECT_TRUE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0));
	EXPECT_EQ(t.engine.find(0, 30, &q), kNil);
	for (const JobId id : {22, 21})
	{
		EXPECT_TRUE(t.engine.evict_delayed(t.q(), 0));
		EXPECT_EQ(t.engine.find(0, id, &q), kNil);
	}
	EXPECT_FALSE(t.engine.evict_delayed(t.q(), 0));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Evict, TakesTheTimerDueLast)
{
	Rig t;
	t.delayed(1, 100);
	t.delayed(2, 300);
	t.delayed(3, 200);
	t.engine.change(t.q(), t.delayed(4, 900), [](Entry &e) noexcept { e.flags |= kOverride; });
	EXPECT_TRUE(t.engine.evict_delayed(t.q(), 0));
	uint16_t q;
	EXPECT_EQ(t.engine.find(0, 2, &q), kNil);
	EXPECT_EQ(t.engine.db(0).timer_watermark.load(), 300);
	EXPECT_EQ(t.lane_at().delayed_disk, 1);
	EXPECT_EQ(surroundings().sooner_wall.load(), 100); // the queue's time; the eviction asked for 300
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Pause, OfALaneOrTheQueueStopsClaims)
{
	Rig t;
	t.ready(1, 0, "a");
	t.ready(2, 1, "b");
	t.engine.set_paused(t.q(), &t.lane_at("a"), kNever);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.claim(), kNil);
	t.ready(3, -5, "a");
	EXPECT_EQ(t.claim(), kNil);
	t.engine.set_paused(t.q(), nullptr, 500);
	t.engine.set_paused(t.q(), &t.lane_at("a"), 0);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
	t.engine.set_paused(t.q(), nullptr, 0);
	EXPECT_EQ(t.id_of(t.claim()), 3);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Timers, DueTimersBecomeReadyInOrderUpToAMaximum)
{
	Rig t;
	for (JobId id = 1; id <= 5; ++id)
		t.delayed(id, 100 * id, static_cast<int32_t>(-id));
	EXPECT_EQ(t.q().next_due.load(), 100);
	Ref out[8];
	Doom doom{3, 9, out};
	EXPECT_EQ(t.engine.fire_due(t.q(), 99, 8, &doom), 0);
	EXPECT_EQ(t.engine.fire_due(t.q(), 400, 3, &doom), 3);
	EXPECT_EQ(t.q().next_due.load(), 400);
	EXPECT_EQ(t.engine.fire_due(t.q(), 400, 8, &doom), 1);
	EXPECT_EQ(doom.n, 0);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.id_of(t.claim()), 4);
}

TEST(Timers, AClaimRolledBackTooOftenIsDoomed)
{
	Rig t;
	t.engine.entry(t.delayed(1, 10)).aborts = 3;
	t.engine.entry(t.delayed(2, 20)).aborts = 2;
	Ref out[4];
	Doom doom{3, 9, out};
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4, &doom), 2);
	ASSERT_EQ(doom.n, 1);
	EXPECT_EQ(t.id_of(out[0]), 1);
	EXPECT_EQ(t.engine.entry(out[0]).mark, Verb::kill);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Timers, FiringThatCannotEndJobsSkipsJobsToBeCancelled)
{
	Rig t;
	t.engine.entry(t.delayed(1, 10)).flags |= tq::core::kCancelAsked;
	t.delayed(2, 20);
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4), 2);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
	Ref out[4];
	Doom doom{3, 9, out};
	EXPECT_EQ(t.engine.fire_due(t.q(), t.q().next_due.load(), 4, &doom), 1);
	ASSERT_EQ(doom.n, 1);
	EXPECT_EQ(t.id_of(out[0]), 1);
}

TEST(Timers, WithoutCapacityForDoomedOnesItStopsBeforeTheFirst)
{
	Rig t;
	t.delayed(1, 10);
	t.engine.entry(t.delayed(2, 20)).aborts = 3;
	t.delayed(3, 30);
	Doom doom{3, 9};
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4, &doom), 2); // examined
	EXPECT_EQ(doom.n, 1);
	EXPECT_EQ(t.q().next_due.load(), 20);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Timers, AJobsOwnAttemptsDecideWhenItIsDoomed)
{
	Rig t;
	Entry &patient = t.engine.entry(t.delayed(2, 20));
	patient.aborts = 6;
	patient.max_attempts = 9;
	Entry &impatient = t.engine.entry(t.delayed(1, 10));
	impatient.aborts = impatient.max_attempts = 3;
	Entry &rescheduled = t.engine.entry(t.delayed(3, 30)); // two claims that rolled back cause no pause
	rescheduled.aborts = rescheduled.max_attempts = 2;
	Ref out[4];
	Doom doom{5, 9, out};
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4, &doom), 3);
	ASSERT_EQ(doom.n, 1);
	EXPECT_EQ(t.engine.entry(out[0]).id, 1);
}

TEST(Timers, AnEarlierTimerIsReported)
{
	Rig t;
	t.delayed(1, 1000);
	EXPECT_EQ(surroundings().sooner_wall.load(), 1000);
	t.delayed(2, 2000);
	EXPECT_EQ(surroundings().sooner_wall.load(), 1000);
	t.delayed(3, 500);
	EXPECT_EQ(surroundings().sooner_wall.load(), 500);
	t.engine.lower_timer_watermark(0, 200);
	EXPECT_EQ(surroundings().sooner_wall.load(), 200);
}

TEST(Timers, TheWatermarkHonoursTheLimit)
{
	Rig t;
	auto &d = t.engine.db(0);
	t.engine.lower_timer_watermark(0, 100);
	EXPECT_EQ(t.engine.start_timer_load(0), 100);
	EXPECT_EQ(d.timer_limit.load(), kNever);
	t.engine.lower_timer_watermark(0, 250); // published during the load
	EXPECT_EQ(d.timer_watermark.load(), 100);
	EXPECT_TRUE(t.engine.raise_timer_watermark(0, 100, 200));
	EXPECT_EQ(d.timer_watermark.load(), 200);
	EXPECT_TRUE(t.engine.raise_timer_watermark(0, 200, 300));
	EXPECT_EQ(d.timer_watermark.load(), 250);
	EXPECT_EQ(t.engine.start_timer_load(0), 250);
	t.engine.lower_timer_watermark(0, 240); // below the start of the load
	EXPECT_FALSE(t.engine.raise_timer_watermark(0, 250, kNever));
	EXPECT_EQ(d.timer_watermark.load(), 240);
	EXPECT_EQ(t.engine.start_timer_load(0), 240);
	EXPECT_TRUE(t.engine.raise_timer_watermark(0, 240, kNever));
	EXPECT_EQ(d.timer_watermark.load(), kNever);
}

// Jobs that a transaction enqueued earlier: only their ids are read, up to where the lane was already read.
TEST(Watermark, RemembersWhichIdsMayBeOnDisk)
{
	Rig t;
	Lane &l = t.lane_at();
	const auto vouched = [&](int32_t priority, JobId id) { return t.engine.covered_by_watermark(t.q(), l, nullptr, kNil, Key{priority, id}); };
	t.engine.lower_watermark(t.q(), l, Key{7, 40}, 40); // an eviction
	EXPECT_TRUE(vouched(7, 39));
	EXPECT_TRUE(vouched(8, 39)); // no older job is on disk
	EXPECT_FALSE(vouched(8, 41));
	l.limit = kMaxKey; // a load starts
	t.engine.raise_watermark(t.q(), l, Key{8, 0});
	EXPECT_EQ(l.resume, kMaxKey); // the rest is still unread
	EXPECT_TRUE(vouched(9, 39));
	t.engine.lower_watermark(t.q(), l, Key{9, 0}); // an unknown id may be any job
	EXPECT_FALSE(vouched(9, 39));
	t.engine.raise_watermark(t.q(), l, Key{9, 0}); // no further than that
	EXPECT_FALSE(vouched(9, 39));
	l.limit = kMaxKey;
	t.engine.raise_watermark(t.q(), l, kMaxKey);
	EXPECT_EQ(l.floor, INT64_MAX);
	EXPECT_TRUE(vouched(9, 39));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watermark, JobsReadBeforeAreNotReadAgain)
{
	Rig t;
	Lane &l = t.lane_at();
	t.engine.lower_watermark(t.q(), l, Key{0, 10}); // a backlog, read up to 500
	l.limit = kMaxKey;
	t.engine.raise_watermark(t.q(), l, Key{0, 500});
	t.engine.lower_watermark(t.q(), l, Key{-1, 901}, 901);
	EXPECT_EQ(l.resume, (Key{0, 500}));
	EXPECT_EQ(l.floor, 901);
	l.limit = kMaxKey;
	t.engine.raise_watermark(t.q(), l, Key{0, 500}); // it has read the new jobs and continues at the old position
	EXPECT_EQ(l.floor, INT64_MAX);
	EXPECT_FALSE(t.engine.covered_by_watermark(t.q(), l, nullptr, kNil, Key{0, 600}));
	EXPECT_EQ(verify(t.engine), "");
}

// No lane requests more than its share of memory, however many queues and lanes have a backlog.
TEST(Refill, TheLowMarkIsAPartOfTheShare)
{
	Rig t(Limits{4096, 64, 8, 1, 4, 4, 8});
	EXPECT_EQ(t.engine.low_mark(t.q()), 128U); // a 32nd of all
	for (uint16_t i = 1; i < 8; ++i)
		t.engine.lower_watermark(t.q(i), t.lane_at(nullptr, i), kMinKey);
	t.engine.lower_watermark(t.q(), t.lane_at(), kMinKey);
	EXPECT_EQ(t.engine.low_mark(t.q()), 64U); // of eight queues
	for (int i = 0; i < 63; ++i)
		t.engine.lower_watermark(t.q(), t.engine.lane(t.engine.make_lane(t.q(), ("k" + std::to_string(i)).c_str(), true)), kMinKey);
	EXPECT_EQ(t.engine.low_mark(t.q()), 1U); // and 64 lanes
	EXPECT_EQ(t.engine.low_mark(t.q(1)), 64U);
	for (uint16_t i = 1; i < 8; ++i)
		t.engine.free_queue(t.q(i));
	EXPECT_EQ(t.engine.low_mark(t.q()), 8U);
	EXPECT_EQ(verify(t.engine), "");
}

} // namespace
