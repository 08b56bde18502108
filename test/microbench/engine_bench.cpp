// The cost of the core's part of a job, with one thread and no contended lock. Target: enqueue, claim and finish of one
// entry below 400 ns.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "unit/rig.hpp"

namespace
{

using namespace tq::test;

constexpr Limits kLarge{1U << 20, 16, 2, 1, 16, 8, 4096};

// A job's whole life on top of a backlog: inserted before its commit, published, claimed, the claim committed,
// finished, dropped.
void life_of_a_job(benchmark::State &state)
{
	Rig t(kLarge);
	JobId id = 0;
	for (int64_t i = 0; i < state.range(0); ++i)
		t.ready(++id);
	const uint16_t lane = t.lane();
	Queue &q = t.q();
	for (auto _ : state)
	{
		Ref existing;
		const Ref r = t.engine.insert(q,
			{.lane = lane, .id = ++id, .priority = 0, .state = State::committing}, 1, &existing);
		t.engine.change(q, r, [](Entry &e) noexcept { e.state = State::ready; });
		const Ref c = t.claim(1, id);
		t.commit_claim(c);
		t.engine.mark(q, c, 1, Verb::complete, State::terminal);
		t.engine.drop(q, c, 1);
	}
}
BENCHMARK(life_of_a_job)->Arg(0)->Arg(1'000)->Arg(100'000)->Arg(900'000);

// The same for jobs of a thousand groups that take turns, with a rate for each.
void life_of_a_grouped_job(benchmark::State &state)
{
	Rig t(kLarge, Locks::none);
	t.set([](QueueSettings &s) {
		s.fair = true;
		s.group_rate = Rate{1'000, 1'000'000};
	});
	JobId id = 0;
	std::vector<std::string> keys;
	for (int i = 0; i < 1'000; ++i)
		keys.push_back("tenant " + std::to_string(i));
	for (int64_t i = 0; i < state.range(0); ++i)
		t.grouped(keys[static_cast<size_t>(i) % keys.size()].c_str(), ++id);
	for (auto _ : state)
	{
		surroundings().mono = ++id;
		t.grouped(keys[static_cast<size_t>(id * 7) % keys.size()].c_str(), id);
		const Ref c = t.claim(1, id);
		t.commit_claim(c);
		t.finish(c);
	}
}
BENCHMARK(life_of_a_grouped_job)->Arg(0)->Arg(1'000)->Arg(100'000);

void claim_and_give_back(benchmark::State &state)
{
	Rig t(kLarge);
	for (JobId id = 1; id <= state.range(0); ++id)
		t.ready(id);
	for (auto _ : state)
		t.undo_claim(t.claim());
}
BENCHMARK(claim_and_give_back)->Arg(1'000)->Arg(900'000);

void claim_one_of_three_kinds(benchmark::State &state)
{
	Rig t(kLarge);
	JobId id = 0;
	for (const char *kind : {"a", "b", "c", "d", "e"})
		for (int i = 0; i < 1'000; ++i)
			t.ready(++id, 0, kind);
	const uint64_t kinds[] = {hash_name("b"), hash_name("c"), hash_name("e")};
	auto terms = Rig::terms();
	terms.kinds = kinds;
	terms.nkinds = 3;
	for (auto _ : state)
		t.undo_claim(t.engine.claim(t.q(), terms));
}
BENCHMARK(claim_one_of_three_kinds);

void find_and_look(benchmark::State &state)
{
	Rig t(kLarge);
	for (JobId id = 1; id <= 900'000; ++id)
		t.ready(id);
	JobId id = 0;
	for (auto _ : state)
	{
		uint16_t q;
		id = id % 900'000 + 7;
		const Ref r = t.engine.find(0, id, &q);
		benchmark::DoNotOptimize(r != kNil && t.engine.is(t.q(q), r, id));
	}
}
BENCHMARK(find_and_look);

void wake_a_waiter(benchmark::State &state)
{
	Rig t(kLarge);
	const Ref r = t.ready(1);
	Ref c = t.claim();
	for (auto _ : state)
	{
		t.engine.wait_enter(t.q(), 3, 3, nullptr, 0);
		t.undo_claim(r); // it becomes startable again: a token
		c = t.claim();
		t.engine.wait_leave(t.q(), 3);
	}
	benchmark::DoNotOptimize(c);
}
BENCHMARK(wake_a_waiter);

} // namespace

int main(int argc, char **argv)
{
	benchmark::Initialize(&argc, argv);
	benchmark::RunSpecifiedBenchmarks();
	return 0;
}
