// An engine over ordinary memory, with a simulated server: partition locks, queue locks, counted wakeups.
// Regime: core tests. The platform's functions have no context argument, so the surroundings are global: one rig at a
// time.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "core/engine.hpp"

namespace tq::test
{

using namespace tq::core;

constexpr uint32_t kMaxProcs = 64;

struct Surroundings
{
	std::array<std::shared_mutex, kPartitions> partitions;
	std::array<std::mutex, 16> queues;
	std::atomic<int> refills{0};
	std::atomic<Micros> sooner_wall{kNever};
	std::atomic<Micros> sooner_mono{kNever};
	std::atomic<Micros> mono{0}; // the monotonic clock
	std::atomic<JobId> next_id{1000};
	// latches
	std::mutex latch_lock;
	std::condition_variable latch_set;
	std::array<bool, kMaxProcs> latch{};
	std::array<int, kMaxProcs> wakes{};
};

inline Surroundings &surroundings()
{
	static Surroundings s;
	return s;
}

// A thread holds at most one partition lock, so it can store its mode.
inline thread_local bool partition_exclusive = false;

inline void lock_partition(uint32_t p, bool exclusive) noexcept
{
	if (exclusive)
		surroundings().partitions[p].lock();
	else
		surroundings().partitions[p].lock_shared();
	partition_exclusive = exclusive;
}

inline void unlock_partition(uint32_t p) noexcept
{
	if (partition_exclusive)
		surroundings().partitions[p].unlock();
	else
		surroundings().partitions[p].unlock_shared();
}

inline void set_latch(uint32_t proc) noexcept
{
	const std::lock_guard guard(surroundings().latch_lock);
	surroundings().latch[proc] = true;
	++surroundings().wakes[proc];
	surroundings().latch_set.notify_all();
}

inline int wakes_of(uint32_t proc)
{
	const std::lock_guard guard(surroundings().latch_lock);
	return surroundings().wakes[proc];
}

inline void note_sooner(uint32_t, Micros when, bool monotonic) noexcept
{
	lower(monotonic ? surroundings().sooner_mono : surroundings().sooner_wall, when);
}

inline void note_refill(uint32_t) noexcept { surroundings().refills.fetch_add(1); }

inline Micros mono_now() noexcept { return surroundings().mono.load(std::memory_order_relaxed); }
inline JobId next_id(uint32_t) noexcept { return surroundings().next_id.load(std::memory_order_relaxed); }

constexpr Limits kSmall{16, 4, 2, 1, 4, 2, 4};
constexpr Limits kMiddle{1024, 16, 4, 2, 16, 8, 64};

// Locks::none: for one thread only, in benchmarks.
enum class Locks
{
	real,
	none,
};

class Rig
{
public:
	Engine engine;

	explicit Rig(const Limits &limits = kMiddle, Locks locks = Locks::real)
		: memory_(static_cast<char *>(std::aligned_alloc(128, Engine::size(limits))), std::free)
	{
		auto &s = surroundings();
		s.refills = 0;
		s.sooner_wall = s.sooner_mono = kNever;
		s.mono = 0;
		s.latch.fill(false);
		s.wakes.fill(0);
		Platform platform = locks == Locks::real
								? Platform{lock_partition, unlock_partition, set_latch, note_sooner, note_refill,
										   mono_now}
								: Platform{[](uint32_t, bool) noexcept {}, [](uint32_t) noexcept {},
										   [](uint32_t) noexcept {}, [](uint32_t, Micros, bool) noexcept {},
										   [](uint32_t) noexcept {}, mono_now};
		platform.next_id = next_id;
		engine.set_platform(platform);
		engine.create(memory_.get(), limits);
		for (uint32_t d = 0; d < limits.databases; ++d)
			engine.db(static_cast<uint16_t>(d)).next_lease.store(1000);
		for (uint32_t q = 0; q < limits.queues; ++q)
			engine.init_queue(engine.queue(static_cast<uint16_t>(q)), static_cast<uint16_t>(q % limits.databases),
							  static_cast<int32_t>(q + 1), "q", QueueState::active);
	}

	char *memory() { return memory_.get(); }
	Queue &q(uint16_t i = 0) { return engine.queue(i); }

	// The lane of a kind, created on demand.
	uint16_t lane(const char *kind = nullptr, uint16_t queue = 0)
	{
		const uint16_t l = engine.find_lane(q(queue), kind);
		return l != kNoLane ? l : engine.make_lane(q(queue), kind);
	}
	Lane &lane_at(const char *kind = nullptr, uint16_t queue = 0) { return engine.lane(lane(kind, queue)); }

	// Publishes a job as its enqueuer does. Returns kNil if memory is full or the job has an entry.
	Ref ready(JobId id, int32_t priority = 0, const char *kind = nullptr, uint16_t queue = 0)
	{
		Ref existing;
		const Ref r = engine.insert(q(queue),
			{.lane = lane(kind, queue), .id = id, .priority = priority, .state = State::committing}, 0, &existing);
		if (r != kNil)
			engine.change(q(queue), r, [](Entry &e) noexcept { e.state = State::ready; });
		return r;
	}
	// A job of a group; kNil if memory is full, or no slot is left for its group.
	Ref grouped(const char *group, JobId id, int32_t priority = 0, const char *kind = nullptr, uint16_t queue = 0)
	{
		const Ref g = engine.group_for(q(queue), group, true);
		Ref existing;
		const Ref r = g == kNil ? kNil
								: engine.insert(q(queue),
									{.lane = lane(kind, queue), .id = id, .priority = priority,
									 .state = State::committing, .group = g}, 0, &existing);
		if (r != kNil)
			engine.change(q(queue), r, [](Entry &e) noexcept { e.state = State::ready; });
		return r;
	}
	Ref group(const char *key, uint16_t queue = 0) { return engine.group_for(q(queue), key, false); }
	Ref delayed(JobId id, Micros due, int32_t priority = 0, const char *kind = nullptr, uint16_t queue = 0)
	{
		Ref existing;
		const Ref r = engine.insert(q(queue),
			{.lane = lane(kind, queue), .id = id, .priority = priority, .state = State::committing}, 0, &existing);
		if (r != kNil)
			engine.change(q(queue), r, [due](Entry &e) noexcept {
				e.state = State::delayed;
				e.timer = due;
			});
		return r;
	}

	// An expiring job, before it is published.
	Ref expiring(JobId id, Micros expires_at, Micros due = kNever, int32_t priority = 0)
	{
		Ref existing;
		const Ref r = engine.insert(q(),
			{.lane = lane(), .id = id, .priority = priority, .state = State::committing}, 0, &existing);
		if (r != kNil)
			engine.change(q(), r, [&](Entry &e) noexcept {
				e.state = due == kNever ? State::ready : State::delayed;
				e.timer = due;
				e.expires_at = expires_at;
			});
		return r;
	}

	static core::ClaimTerms terms(uint32_t owner = 1, Micros mono = 0, Micros wall = 0)
	{
		return {owner, kNil, 0, 60'000, wall, mono, Binding::none, nullptr, 0, 0};
	}
	Ref claim(uint32_t owner = 1, Micros mono = 0, uint16_t queue = 0, Micros wall = 0)
	{
		return engine.claim(q(queue), terms(owner, mono, wall));
	}
	// Commits or rolls back the claim's transaction.
	void commit_claim(Ref r, uint16_t queue = 0)
	{
		engine.change(q(queue), r, [](Entry &e) noexcept { e.mark = Verb::none; });
	}
	void undo_claim(Ref r, uint16_t queue = 0)
	{
		engine.change(q(queue), r, [](Entry &e) noexcept {
			e.mark = Verb::none;
			e.state = State::ready;
			e.lease = 0;
			e.set_worker(kNil);
		});
	}
	// Completes a running job and returns its id.
	JobId finish(Ref r, uint16_t queue = 0)
	{
		const JobId id = id_of(r);
		engine.mark(q(queue), r, 1, Verb::complete, State::terminal);
		engine.drop(q(queue), r, 0);
		return id;
	}
	// Fails a running job, which then waits for its next attempt.
	void fail(Ref r, Micros due, uint16_t queue = 0)
	{
		engine.change(q(queue), r, [due](Entry &e) noexcept {
			e.mark = Verb::none;
			e.state = State::delayed;
			e.timer = due;
			e.lease = 0;
			e.flags |= kHeld;
			e.set_worker(kNil);
		});
	}
	void fire(Micros wall, uint16_t queue = 0) { engine.fire_due(q(queue), wall, 8); }
	template <class Edit>
	void set(Edit edit, uint16_t queue = 0)
	{
		edit(q(queue).settings);
		engine.refresh_groups(q(queue));
	}
	// Runs the scheduler at a given time.
	void at(Micros mono)
	{
		surroundings().mono = mono;
		for (uint32_t i = 0; i < engine.limits().queues; ++i)
			if (q(static_cast<uint16_t>(i)).next_open.load() <= mono)
				engine.open_due(q(static_cast<uint16_t>(i)), mono, 1000);
	}
	JobId id_of(Ref r) const { return r == kNil ? 0 : engine.entry(r).id; }

private:
	std::unique_ptr<char, void (*)(void *)> memory_;
};

} // namespace tq::test
