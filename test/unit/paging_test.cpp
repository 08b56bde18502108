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
	t.engine.sink(t.q(), l, Key{0, 20});
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.id_of(t.claim()), 10);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_FALSE(l.in_startable);
	t.engine.sink(t.q(), l, Key{0, 5});
	l.limit = kMaxKey; // a loader starts
	t.engine.raise(t.q(), l, Key{0, 21});
	EXPECT_EQ(t.id_of(t.claim()), 20);
	EXPECT_EQ(t.claim(), kNil);
	t.engine.raise(t.q(), l, kMaxKey);
	EXPECT_EQ(t.id_of(t.claim()), 30);
	t.ready(15); // below the watermark: at once
	EXPECT_EQ(t.id_of(t.claim()), 15);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Watermark, ALoaderStopsBeforeWhatItMayHaveMissed)
{
	Rig t;
	Lane &l = t.lane_at();
	t.engine.sink(t.q(), l, Key{0, 100});
	l.limit = kMaxKey; // a loader starts
	t.engine.sink(t.q(), l, Key{0, 500});
	EXPECT_EQ(l.watermark, (Key{0, 100}));
	t.engine.raise(t.q(), l, Key{0, 300});
	EXPECT_EQ(l.watermark, (Key{0, 300}));
	t.engine.raise(t.q(), l, kMaxKey);
	EXPECT_EQ(l.watermark, (Key{0, 500}));
	t.engine.raise(t.q(), l, Key{0, 200}); // never down
	EXPECT_EQ(l.watermark, (Key{0, 500}));
	l.limit = kMaxKey;
	t.engine.sink(t.q(), l, Key{-1, 0}); // below where it began
	t.engine.raise(t.q(), l, kMaxKey);
	EXPECT_EQ(l.watermark, (Key{-1, 0}));
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
	t.engine.sink(t.q(), l, Key{0, 2});
	EXPECT_FALSE(asked()); // one is startable, which is enough for 16 entries
	t.claim();
	EXPECT_TRUE(asked());
	EXPECT_EQ(surroundings().refills.load(), 1);
	l.limit = Key{0, 7};
	t.engine.raise(t.q(), l, kMaxKey); // brings job 2
	EXPECT_FALSE(asked());
	t.claim();
	EXPECT_TRUE(asked());
	l.limit = Key{0, 9};
	t.engine.raise(t.q(), l, kMaxKey); // brings nothing: it must ask again, no claim will
	EXPECT_TRUE(asked());
	t.engine.raise(t.q(), l, kMaxKey); // no progress
	EXPECT_FALSE(asked());
	l.limit = kMaxKey;
	t.engine.raise(t.q(), l, kMaxKey); // that was all there is
	EXPECT_FALSE(asked());
	// a paused lane wants nothing, until it is resumed
	t.engine.set_paused(t.q(), &l, kNever);
	t.engine.sink(t.q(), l, Key{0, 11});
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
	t.engine.sink(t.q(), l, Key{5, 0});
	t.engine.change(t.q(), r, [](Entry &e) noexcept {
		e.priority = 9;
		e.flags |= kOverride;
	});
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_TRUE(t.engine.runs_dry(t.q(), l)); // it is no stock
	l.limit = kMaxKey;
	t.engine.raise(t.q(), l, Key{9, 3});
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
	EXPECT_EQ(l.limit, (Key{2, 5}));							// a loader at work stops before it
	EXPECT_FALSE(t.engine.evict_ready(t.q(), l, Key{2, 2}, 0)); // not greater
	EXPECT_TRUE(t.engine.evict_ready(t.q(), l, Key{2, 1}, 0));
	EXPECT_EQ(l.watermark, (Key{2, 2}));
	EXPECT_EQ(verify(t.engine), "");
	// what lies beyond the watermark already goes first, and moves only the limit
	l.limit = kMaxKey;
	t.ready(9, 7);
	EXPECT_TRUE(t.engine.evict_ready(t.q(), l, kMinKey, 0));
	EXPECT_EQ(l.watermark, (Key{2, 2}));
	EXPECT_EQ(l.limit, (Key{7, 9}));
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Evict, LeavesOverridesAbortedOnesAndWhateverIsNotReady)
{
	Rig t;
	t.engine.entry(t.ready(1)).flags |= kOverride;
	t.engine.entry(t.ready(2)).aborts = 1;
	const Ref running = t.ready(3, -1);
	EXPECT_EQ(t.claim(), running);
	t.delayed(4, 100);
	EXPECT_FALSE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0));
	EXPECT_EQ(t.lane_at().watermark, kMaxKey);
	t.ready(5, -2);
	EXPECT_TRUE(t.engine.evict_ready(t.q(), t.lane_at(), kMinKey, 0)); // behind the two
	uint16_t q;
	EXPECT_EQ(t.engine.find(0, 5, &q), kNil);
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
	t.ready(30, 9); // a new one is seen again
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
	t.engine.entry(t.delayed(4, 900)).flags |= kOverride;
	EXPECT_TRUE(t.engine.evict_delayed(t.q(), 0));
	uint16_t q;
	EXPECT_EQ(t.engine.find(0, 2, &q), kNil);
	EXPECT_EQ(t.engine.db(0).timer_watermark.load(), 300);
	EXPECT_EQ(t.lane_at().delayed_disk, 1);
	EXPECT_EQ(surroundings().sooner_wall.load(), 100); // of the queue; the eviction asked for 300
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

TEST(Timers, DueOnesBecomeReadyInOrderAtMostSoMany)
{
	Rig t;
	for (JobId id = 1; id <= 5; ++id)
		t.delayed(id, 100 * id, static_cast<int32_t>(-id));
	EXPECT_EQ(t.q().next_due.load(), 100);
	Ref out[8];
	int nout = 0;
	EXPECT_EQ(t.engine.fire_due(t.q(), 99, 8, 3, 9, out, &nout), 0);
	EXPECT_EQ(t.engine.fire_due(t.q(), 400, 3, 3, 9, out, &nout), 3);
	EXPECT_EQ(t.q().next_due.load(), 400);
	EXPECT_EQ(t.engine.fire_due(t.q(), 400, 8, 3, 9, out, &nout), 1);
	EXPECT_EQ(nout, 0);
	EXPECT_EQ(verify(t.engine), "");
	EXPECT_EQ(t.id_of(t.claim()), 4);
}

TEST(Timers, AClaimRolledBackTooOftenIsDoomed)
{
	Rig t;
	t.engine.entry(t.delayed(1, 10)).aborts = 3;
	t.engine.entry(t.delayed(2, 20)).aborts = 2;
	Ref out[4];
	int nout = 0;
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4, 3, 9, out, &nout), 2);
	ASSERT_EQ(nout, 1);
	EXPECT_EQ(t.id_of(out[0]), 1);
	EXPECT_EQ(t.engine.entry(out[0]).mark, Verb::kill);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Timers, WhoCannotEndJobsDoesNotStartThoseThatAreToBeCancelled)
{
	Rig t;
	t.engine.entry(t.delayed(1, 10)).flags |= tq::core::kCancelAsked;
	t.delayed(2, 20);
	int nout = 0;
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4, 0, 9, nullptr, &nout), 2);
	EXPECT_EQ(nout, 0);
	EXPECT_EQ(t.id_of(t.claim()), 2);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
	Ref out[4];
	EXPECT_EQ(t.engine.fire_due(t.q(), t.q().next_due.load(), 4, 3, 9, out, &nout), 1);
	ASSERT_EQ(nout, 1);
	EXPECT_EQ(t.id_of(out[0]), 1);
}

TEST(Timers, WithoutRoomForDoomedOnesItStopsBeforeTheFirst)
{
	Rig t;
	t.delayed(1, 10);
	t.engine.entry(t.delayed(2, 20)).aborts = 3;
	t.delayed(3, 30);
	int doomed = 0;
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4, 3, 9, nullptr, &doomed), 2); // looked at
	EXPECT_EQ(doomed, 1);
	EXPECT_EQ(t.q().next_due.load(), 20);
	EXPECT_EQ(t.id_of(t.claim()), 1);
	EXPECT_EQ(t.claim(), kNil);
	EXPECT_EQ(verify(t.engine), "");
}

TEST(Timers, AJobsOwnAttemptsDecideWhenItIsDoomed)
{
	Rig t;
	Entry &patient = t.engine.entry(t.delayed(2, 20));
	patient.aborts = 4;
	patient.max_attempts = 9;
	Entry &impatient = t.engine.entry(t.delayed(1, 10));
	impatient.aborts = impatient.max_attempts = 2;
	Ref out[4];
	int nout = 0;
	EXPECT_EQ(t.engine.fire_due(t.q(), 50, 4, 3, 9, out, &nout), 2);
	ASSERT_EQ(nout, 1);
	EXPECT_EQ(t.engine.entry(out[0]).id, 1);
}

TEST(Timers, AnEarlierOneIsTold)
{
	Rig t;
	t.delayed(1, 1000);
	EXPECT_EQ(surroundings().sooner_wall.load(), 1000);
	t.delayed(2, 2000);
	EXPECT_EQ(surroundings().sooner_wall.load(), 1000);
	t.delayed(3, 500);
	EXPECT_EQ(surroundings().sooner_wall.load(), 500);
	t.engine.sink_timer(0, 200);
	EXPECT_EQ(surroundings().sooner_wall.load(), 200);
}

TEST(Timers, TheWatermarkHonoursTheLimit)
{
	Rig t;
	auto &d = t.engine.db(0);
	t.engine.sink_timer(0, 100);
	EXPECT_EQ(t.engine.start_timer_load(0), 100);
	EXPECT_EQ(d.timer_limit.load(), kNever);
	t.engine.sink_timer(0, 250); // published while the loader reads
	EXPECT_EQ(d.timer_watermark.load(), 100);
	EXPECT_TRUE(t.engine.raise_timer(0, 100, 200));
	EXPECT_EQ(d.timer_watermark.load(), 200);
	EXPECT_TRUE(t.engine.raise_timer(0, 200, 300));
	EXPECT_EQ(d.timer_watermark.load(), 250);
	EXPECT_EQ(t.engine.start_timer_load(0), 250);
	t.engine.sink_timer(0, 240); // below where it began
	EXPECT_FALSE(t.engine.raise_timer(0, 250, kNever));
	EXPECT_EQ(d.timer_watermark.load(), 240);
	EXPECT_EQ(t.engine.start_timer_load(0), 240);
	EXPECT_TRUE(t.engine.raise_timer(0, 240, kNever));
	EXPECT_EQ(d.timer_watermark.load(), kNever);
}

} // namespace
