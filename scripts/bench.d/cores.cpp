// How much threads with one queue each slow each other down: the core alone, in ordinary memory, without a server.
// Prints enqueues and ends per second as JSON, for one thread and for one per processor (64 at most).
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/engine.hpp"

namespace
{

using namespace tq::core;

struct alignas(kCacheLine) SpinLock
{
	std::atomic<bool> taken;
};
SpinLock partitions[kPartitions];

void lock(uint32_t p, bool) noexcept
{
	while (partitions[p].taken.exchange(true, std::memory_order_acquire))
		std::this_thread::yield();
}
void unlock(uint32_t p) noexcept { partitions[p].taken.store(false, std::memory_order_release); }

constexpr int kJobs = 64; // per thread at a time
constexpr double kSeconds = 1;

// Enqueues jobs into its own queue, looks them up by id, and ends them.
uint64_t work(Engine &engine, uint16_t queue, const std::atomic<bool> &stop)
{
	Queue &q = engine.queue(queue);
	const uint16_t lane = engine.find_lane(q, nullptr);
	uint64_t done = 0;
	JobId id = JobId{queue} * 100'000'000'000;
	Ref mine[kJobs];
	while (!stop.load(std::memory_order_relaxed))
	{
		for (Ref &r : mine)
		{
			Ref existing = kNil;
			q.users.fetch_add(1);
			r = engine.insert(q,
				{.lane = lane, .id = ++id, .priority = 0, .state = State::placeholder}, queue, &existing);
			uint16_t at = 0;
			if (r == kNil || engine.find(0, id, &at) != r || at != queue)
				std::abort();
		}
		for (const Ref r : mine)
		{
			engine.drop(q, r, queue);
			q.users.fetch_sub(1);
		}
		done += kJobs;
	}
	return done;
}

double rate(uint32_t threads)
{
	const Limits limits{1 << 20, 16, threads, 1, 64, 8, 16};
	void *memory = std::aligned_alloc(128, Engine::size(limits));
	static Engine engine;
	engine.set_platform({lock, unlock, [](uint32_t) noexcept {}, [](uint32_t, Micros, bool) noexcept {}, [](uint32_t) noexcept {},
						 []() noexcept -> Micros { return 0; }});
	engine.create(memory, limits);
	for (uint32_t i = 0; i < threads; ++i)
		engine.init_queue(engine.queue(static_cast<uint16_t>(i)), 0, static_cast<int32_t>(i + 1), "q", QueueState::active);
	std::atomic<bool> stop{false};
	std::atomic<uint64_t> done{0};
	std::vector<std::thread> all;
	for (uint32_t i = 0; i < threads; ++i)
		all.emplace_back([&, i] { done += work(engine, static_cast<uint16_t>(i), stop); });
	std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
	stop = true;
	for (std::thread &t : all)
		t.join();
	std::free(memory);
	return static_cast<double>(done) / kSeconds;
}

} // namespace

int main()
{
	const uint32_t most = std::min(std::max(std::thread::hardware_concurrency(), 1U), 64U);
	const double one = rate(1);
	std::printf("{\"threads\": %u, \"one\": %.0f, \"all\": %.0f}\n", most, one, rate(most));
}
