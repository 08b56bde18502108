// Concurrent operations; run it under ThreadSanitizer.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "unit/rig.hpp"
#include "unit/verify.hpp"

namespace
{

using namespace tq::test;

// After such a sleep a wakeup was lost; longer than a pause of the whole process.
constexpr std::chrono::milliseconds kPatience{180'000};

void in_threads(int n, const std::function<void(int)> &body)
{
	std::vector<std::thread> threads;
	std::latch start(n);
	for (int i = 0; i < n; ++i)
		threads.emplace_back([&, i] {
			start.arrive_and_wait();
			body(i);
		});
	for (auto &t : threads)
		t.join();
}

std::mutex &queue_lock(uint16_t q) { return surroundings().queues[q]; }

// More threads than entries: every pop races with every push. No entry may have two owners.
TEST(Threads, AnEntryHasOneOwner)
{
	Limits l = kMiddle;
	l.entries = 20;
	Rig t(l);
	std::atomic<int> wrong{0}, full{0};
	for (uint16_t q = 0; q < 4; ++q)
		t.lane(nullptr, q);
	in_threads(4, [&](int me) {
		const auto q = static_cast<uint16_t>(me);
		std::mt19937 random(static_cast<uint32_t>(me));
		std::vector<Ref> mine;
		for (int i = 0; i < 20'000 || full == 0; ++i)
		{
			const std::lock_guard guard(queue_lock(q));
			if (mine.size() < 12 && random() % 2 == 0)
			{
				Ref existing;
				const Ref r = t.engine.insert(t.q(q),
					{.lane = t.engine.find_lane(t.q(q), nullptr), .id = i * 4 + me, .priority = 0,
					 .state = State::placeholder}, random(), &existing);
				if (r == kNil)
				{
					++full;
					continue;
				}
				t.engine.entry(r).block = static_cast<uint32_t>(me);
				mine.push_back(r);
			}
			else if (!mine.empty())
			{
				std::swap(mine[random() % mine.size()], mine.back());
				wrong += t.engine.entry(mine.back()).block != static_cast<uint32_t>(me);
				t.engine.drop(t.q(q), mine.back(), random());
				mine.pop_back();
			}
		}
		const std::lock_guard guard(queue_lock(q));
		for (const Ref r : mine)
			t.engine.drop(t.q(q), r, r);
	});
	EXPECT_EQ(wrong, 0);
	EXPECT_EQ(t.engine.free_entries(), 20);
	EXPECT_EQ(verify(t.engine), "");
	// all entries are free again
	Ref existing;
	for (int i = 0; i < 20; ++i)
		EXPECT_NE(t.engine.insert(t.q(),
			{.lane = t.lane(), .id = i, .priority = 0,
			 .state = State::placeholder, .reserve = true}, 0, &existing), kNil);
}

// Finds a job without the queue's lock, then checks again under the lock. The result is the requested job or nothing.
TEST(Threads, FoundThenLockedIsTheJobOrNothing)
{
	Limits l = kMiddle;
	l.entries = 48;
	Rig t(l);
	std::atomic<int> wrong{0}, found{0}, gone{0};
	std::atomic<int> writers{2};
	for (uint16_t q = 0; q < 4; ++q)
		t.lane(nullptr, q);
	in_threads(4, [&](int me) {
		std::mt19937 random(static_cast<uint32_t>(me));
		if (me < 2)
		{
			// two writers, each in both queues of its database; ids are reused
			for (int i = 0; i < 30'000 || found < 1'000; ++i)
			{
				const JobId id = random() % 20 + 1;
				const auto q = static_cast<uint16_t>(me + 2 * (id % 2));
				const std::lock_guard guard(queue_lock(q));
				Ref existing;
				const Ref r = t.engine.insert(t.q(q),
					{.lane = t.engine.find_lane(t.q(q), nullptr), .id = id, .priority = static_cast<int32_t>(id),
					 .state = State::placeholder}, random(), &existing);
				if (r == kNil && existing != kNil)
					t.engine.drop(t.q(q), existing, random());
			}
			--writers;
			return;
		}
		while (writers > 0)
		{
			const JobId id = random() % 20 + 1;
			uint16_t q;
			const auto db = static_cast<uint16_t>(random() % 2);
			const Ref r = t.engine.find(db, id, &q);
			if (r == kNil)
				continue;
			const std::lock_guard guard(queue_lock(q));
			if (t.engine.is(t.q(q), r, id))
			{
				++found;
				const Entry &e = t.engine.entry(r);
				wrong += e.queue != q || e.priority != id || e.state != State::placeholder || t.q(q).db != db;
			}
			else
				++gone;
		}
	});
	EXPECT_EQ(wrong, 0);
	EXPECT_EQ(verify(t.engine), "");
}

// Four queues, each with its own lock, compete for the slots of groups. All use the same keys.
TEST(Threads, AGroupsSlotIsOfOneQueue)
{
	Limits l = kMiddle;
	l.groups = 7;
	Rig t(l);
	for (uint16_t q = 0; q < 4; ++q)
		t.lane(nullptr, q);
	std::atomic<int> wrong{0}, full{0};
	in_threads(4, [&](int me) {
		const auto qi = static_cast<uint16_t>(me);
		std::mt19937 random(static_cast<uint32_t>(me));
		Queue &q = t.q(qi);
		JobId id = JobId{me} * 1'000'000'000;
		for (int i = 0; i < 20'000 || full == 0; ++i)
		{
			const std::lock_guard guard(queue_lock(qi));
			const char key[2] = {static_cast<char>('a' + random() % 5), '\0'};
			switch (random() % 8)
			{
				case 0:
				case 1:
				case 2:
					if (q.lanes != kNoLane && t.grouped(key, ++id, 0, nullptr, qi) == kNil)
						++full;
					break;
				case 3:
					if (const Ref g = t.group(key, qi); g != kNil)
					{
						wrong += !t.engine.owns(q, g) || t.engine.group(g).key[0] != key[0];
						t.engine.lower_group_watermark(q, g, Key{0, id});
					}
					break;
				case 4:
					if (const Ref g = t.engine.take_wanted(q); g != kNil)
					{
						t.engine.start_group_load(q, g, 1);
						t.engine.raise_group(q, g, kMaxKey);
						t.engine.end_group_load(q, g, true);
					}
					break;
				case 5:
					t.set([&](QueueSettings &s) { s.fair = random() % 2 == 0; }, qi);
					t.engine.lower_group_watermarks(q, Key{0, id});
					t.engine.want_groups_again(q);
					q.discover = false;
					break;
				default:
					if (const Ref r = t.claim(1, 0, qi); r != kNil)
					{
						wrong += t.engine.entry(r).queue != qi || !t.engine.owns(q, t.engine.entry(r).group);
						t.finish(r, qi);
					}
			}
		}
	});
	EXPECT_EQ(wrong, 0);
	EXPECT_EQ(verify(t.engine), "");
}

// A waiting process registers, checks for jobs, and sleeps on its latch. Returns false if it slept although it had a
// job.
class Waiting
{
public:
	Waiting(Rig &t, uint32_t me, std::vector<uint64_t> kinds) : t_(t), me_(me), kinds_(std::move(kinds)) {}

	Ref claim()
	{
		auto terms = Rig::terms(me_);
		terms.kinds = kinds_.data();
		terms.nkinds = static_cast<int>(kinds_.size());
		return t_.engine.claim(t_.q(), terms);
	}

	// Claims and finishes at most one job.
	bool take()
	{
		const std::lock_guard guard(queue_lock(0));
		const Ref r = claim();
		if (r == kNil)
			return false;
		t_.commit_claim(r);
		t_.engine.mark(t_.q(), r, me_, Verb::complete, State::terminal);
		t_.engine.drop(t_.q(), r, me_);
		return true;
	}

	enum class End
	{
		took,
		stopped,
		forgotten,
	};

	// `patience`: sleeps before it gives up, as a cancelled query does (0: never gives up).
	End wait(const std::atomic<bool> &stop, int patience)
	{
		for (;;)
		{
			clear_latch();
			{
				const std::lock_guard guard(queue_lock(0));
				t_.engine.wait_enter(t_.q(), me_, me_, kinds_.data(), static_cast<int>(kinds_.size()));
			}
			const bool got = take();
			bool woken = true;
			if (!got && !stop)
				woken = sleep(patience > 0 ? std::chrono::milliseconds(0) : kPatience);
			Key key;
			bool there;
			const bool got_now = got || take();
			{
				const std::lock_guard guard(queue_lock(0));
				there = t_.engine.claimable(t_.q(), kinds_.data(), static_cast<int>(kinds_.size()), &key);
				t_.engine.wait_leave(t_.q(), me_);
			}
			if (got_now)
				return !woken ? End::forgotten : End::took;
			if (stop)
				return End::stopped;
			if (!woken && patience == 0 && there)
				return End::forgotten;
			if (patience > 0)
				return End::stopped;
		}
	}

private:
	Rig &t_;
	uint32_t me_;
	std::vector<uint64_t> kinds_;

	void clear_latch()
	{
		const std::lock_guard guard(surroundings().latch_lock);
		surroundings().latch[me_] = false;
	}
	bool sleep(std::chrono::milliseconds most)
	{
		std::unique_lock guard(surroundings().latch_lock);
		return surroundings().latch_set.wait_for(guard, most, [this] { return surroundings().latch[me_]; }) ||
			   most.count() == 0;
	}
};

// Every job has workers, and all of them sleep while there are no jobs. After a lost wakeup, jobs remain and a worker
// sleeps until its timeout.
TEST(Threads, NoWakeUpIsLost)
{
	Rig t(kMiddle);
	constexpr int kJobs = 6'000, kWorkers = 6;
	for (const char *kind : {"a", "b", "c"})
		t.lane(kind);
	const uint64_t a = hash_name("a"), b = hash_name("b"), c = hash_name("c");
	const std::vector<uint64_t> filters[kWorkers] = {{}, {a}, {b}, {a, c}, {c, b}, {a, b, c, 1, 2, 3, 4, 5, 6}};
	std::atomic<int> taken{0}, forgotten{0};
	std::atomic<bool> stop{false};
	in_threads(kWorkers + 2, [&](int me) {
		std::mt19937 random(static_cast<uint32_t>(me));
		if (me < kWorkers)
		{
			Waiting w(t, static_cast<uint32_t>(me), filters[me]);
			while (!stop)
			{
				// some do not wait, some give up at once
				const uint32_t how = random() % 8;
				if (how == 0)
					taken += w.take();
				else
				{
					const auto end = w.wait(stop, how == 1 ? 1 : 0);
					taken += end != Waiting::End::stopped;
					forgotten += end == Waiting::End::forgotten;
				}
				// the thread that takes the last job stops all threads, whichever way it took it
				if (taken == kJobs && !stop.exchange(true))
					for (uint32_t p = 0; p < kWorkers; ++p)
						set_latch(p);
			}
		}
		else if (me == kWorkers)
		{
			for (JobId id = 1; id <= kJobs; ++id)
			{
				static const char *const kKinds[] = {"a", "b", "c"};
				for (bool done = false; !done; std::this_thread::yield())
				{
					const std::lock_guard guard(queue_lock(0));
					done = t.ready(id, static_cast<int32_t>(random() % 3), kKinds[random() % 3]) != kNil;
				}
				// let the workers sleep often
				if (id % 4 == 0)
					while (taken < id - 2 && !stop)
						std::this_thread::yield();
			}
		}
		else
			while (!stop) // pauses and watermark changes in parallel
			{
				{
					const std::lock_guard guard(queue_lock(0));
					Lane &l = t.lane_at(random() % 2 == 0 ? "a" : "b");
					switch (random() % 4)
					{
						case 0:
							t.engine.set_paused(t.q(), &l, kNever);
							break;
						case 1:
							t.engine.set_paused(t.q(), &l, 0);
							break;
						case 2:
							t.engine.lower_watermark(t.q(), l, Key{static_cast<int32_t>(random() % 3), 0});
							break;
						default:
							l.limit = kMaxKey;
							t.engine.raise_watermark(t.q(), l, kMaxKey);
					}
				}
				{
					const std::lock_guard guard(queue_lock(0));
					for (const char *kind : {"a", "b"})
					{
						Lane &l = t.lane_at(kind);
						if (random() % 2 == 0)
							continue;
						t.engine.set_paused(t.q(), &l, 0);
						l.limit = kMaxKey;
						t.engine.raise_watermark(t.q(), l, kMaxKey);
					}
				}
				std::this_thread::yield();
			}
	});
	EXPECT_EQ(taken, kJobs);
	EXPECT_EQ(forgotten, 0);
	EXPECT_EQ(t.q().tokens, 0U);
	EXPECT_EQ(verify(t.engine), "");
}

// A process waits for all queues of its database. It finds jobs by the bits of the queues, without their locks; jobs that
// come later find its own bit. Each job comes alone, when the one before is taken.
TEST(Threads, ALookWithoutLocksMissesNoJob)
{
	Rig t(kMiddle);
	constexpr int kJobs = 20'000;
	std::atomic<int> taken{0}, forgotten{0};
	in_threads(2, [&](int me) {
		const uint16_t queues[] = {0, 2}; // of database 0
		if (me == 0)
			for (JobId id = 1; id <= kJobs; ++id)
			{
				const uint16_t queue = queues[id % 2];
				{
					const std::lock_guard guard(queue_lock(queue));
					t.ready(id, 0, nullptr, queue);
				}
				while (taken < id)
					std::this_thread::yield();
			}
		const uint32_t row = t.engine.all_row(0);
		while (me == 1 && taken < kJobs)
		{
			{
				const std::lock_guard guard(surroundings().latch_lock);
				surroundings().latch[1] = false;
			}
			t.engine.watch(row, 1);
			t.engine.watch_begin(1, nullptr, 0);
			const auto there = [&t](uint16_t queue) {
				Key key;
				const std::lock_guard guard(queue_lock(queue));
				return t.engine.claimable(t.q(queue), nullptr, 0, &key);
			};
			if (!t.engine.any_startable(there))
			{
				std::unique_lock guard(surroundings().latch_lock);
				const bool woken = surroundings().latch_set.wait_for(guard, kPatience,
																	 [] { return surroundings().latch[1]; });
				guard.unlock();
				forgotten += !woken && t.engine.any_startable(there);
			}
			const uint16_t token = t.engine.watch_end(1);
			t.engine.unwatch(row, 1);
			for (const uint16_t queue : queues)
			{
				const std::lock_guard guard(queue_lock(queue));
				if (queue == token)
					t.engine.return_token(t.q(queue), 1, false);
				if (const Ref r = t.claim(1, 0, queue); r != kNil)
				{
					t.commit_claim(r, queue);
					t.finish(r, queue);
					++taken;
				}
			}
		}
	});
	EXPECT_EQ(forgotten, 0);
	EXPECT_EQ(verify(t.engine), "");
}

// Timers that are evicted during a load: none remains below the watermark.
TEST(Threads, NoTimerFallsBehindTheWatermark)
{
	Rig t(kSmall);
	constexpr int kTimers = 20'000;
	struct Row
	{
		std::atomic<Micros> due{0}; // 0: not visible
		bool loaded = false;
	};
	std::vector<Row> rows(kTimers * 2);
	t.engine.lower_timer_watermark(0, 0);
	std::atomic<int> writers{2};
	auto load = [&] {
		const Micros from = t.engine.start_timer_load(0);
		Micros to = from;
		for (auto &row : rows)
			if (const Micros due = row.due.load(); due != 0 && due >= from)
			{
				row.loaded = true;
				to = std::max(to, due + 1);
			}
		t.engine.raise_timer_watermark(0, from, to);
		return to;
	};
	in_threads(3, [&](int me) {
		if (me == 2)
		{
			while (writers > 0)
				load();
			return;
		}
		std::mt19937 random(static_cast<uint32_t>(me));
		for (int i = me * kTimers; i < (me + 1) * kTimers; ++i)
		{
			const Micros due = random() % 1'000 + 1;
			rows[static_cast<size_t>(i)].due = due; // its commit
			t.engine.lower_timer_watermark(0, due);
		}
		--writers;
	});
	const Micros watermark = t.engine.db(0).timer_watermark.load();
	int lost = 0;
	for (const auto &row : rows)
		lost += !row.loaded && row.due < watermark;
	EXPECT_EQ(lost, 0);
}

} // namespace
