// Processes that wait for many queues, for every queue of a database, or for the end of jobs. Each queue, database and
// bucket of jobs has a row with a bit for every process, so that a wakeup costs the same however many queues others
// wait for.
#include "core/engine.hpp"

#include <bit>

namespace tq::core
{

namespace
{

// The low word of Watcher::state: not waiting, waiting, or the queue of its token + kGranted.
constexpr uint32_t kIdle = 0;
constexpr uint32_t kWatching = 1;
constexpr uint32_t kGranted = 2;

constexpr uint32_t phase(uint64_t state) noexcept { return static_cast<uint32_t>(state); }
constexpr uint64_t in_phase(uint64_t state, uint32_t to) noexcept { return (state >> 32 << 32) | to; }

constexpr uint64_t bit_of(uint32_t proc) noexcept { return uint64_t{1} << (proc % 64); }

} // namespace

// A hash of queue and kind.
uint64_t watched_pair(uint16_t queue, uint64_t kind) noexcept
{
	uint64_t h = kind ^ (uint64_t{queue} + 1) * 0x9e3779b97f4a7c15ULL;
	h = (h ^ h >> 32) * 0xd6e8feb86659fd93ULL;
	return h ^ h >> 32;
}

uint32_t Engine::job_row(uint16_t db, JobId id) const noexcept
{
	return shared_->limits.queues + shared_->limits.databases + mix32(static_cast<uint64_t>(id) + db) % kJobRows;
}

void Engine::watch(uint32_t row, uint32_t proc) noexcept
{
	if ((bits(row)[1 + proc / 64].fetch_or(bit_of(proc)) & bit_of(proc)) == 0)
		bits(row)->fetch_add(1);
}

void Engine::unwatch(uint32_t row, uint32_t proc) noexcept
{
	if ((bits(row)[1 + proc / 64].fetch_and(~bit_of(proc)) & bit_of(proc)) != 0)
		bits(row)->fetch_sub(1);
}

void Engine::wake_watchers(uint32_t row, bool clear) noexcept
{
	// `clear` takes all words: a process sets its bit before it counts it, so the count may be 0 too early
	for (uint32_t word = 0; word < watch_words() && (clear || bits(row)->load() > 0); ++word)
	{
		std::atomic<uint64_t> &these = bits(row)[1 + word];
		const uint64_t found = clear ? these.exchange(0) : these.load();
		if (clear)
			bits(row)->fetch_sub(static_cast<uint64_t>(std::popcount(found)));
		for (uint64_t left = found; left != 0; left &= left - 1)
			platform_.wake(word * 64 + static_cast<uint32_t>(std::countr_zero(left)));
	}
}

void Engine::watch_begin(uint32_t proc, const uint64_t *pairs, uint32_t npairs) noexcept
{
	Watcher &w = watchers_[proc];
	w.npairs.store(npairs, std::memory_order_relaxed);
	for (uint32_t i = 0; i < npairs; ++i)
		w.pairs[i].store(pairs[i], std::memory_order_relaxed);
	w.state.store(in_phase(w.state.load() + (uint64_t{1} << 32), kWatching));
}

uint16_t Engine::watch_end(uint32_t proc) noexcept
{
	std::atomic<uint64_t> &state = watchers_[proc].state;
	uint64_t now = state.load();
	while (!state.compare_exchange_weak(now, in_phase(now, kIdle)))
	{
	}
	return phase(now) >= kGranted ? static_cast<uint16_t>(phase(now) - kGranted) : kNoQueue;
}

uint16_t Engine::token_of_watcher(uint32_t proc) const noexcept
{
	const uint32_t now = phase(watchers_[proc].state.load());
	return now >= kGranted ? static_cast<uint16_t>(now - kGranted) : kNoQueue;
}

void Engine::return_token(Queue &q, uint32_t proc, bool pass) noexcept
{
	if (watchers_[proc].generation != q.generation) // the slot was freed, and its tokens with it
		return;
	--q.tokens;
	if (pass)
		wake_for_startable(q);
}

bool Engine::watches(uint32_t proc, const Queue &q, uint64_t kind) const noexcept
{
	const Watcher &w = watchers_[proc];
	if (phase(w.state.load()) != kWatching ||
		((bits(index_of(q))[1 + proc / 64].load() | bits(all_row(q.db))[1 + proc / 64].load()) & bit_of(proc)) == 0)
		return false;
	const auto has = [&w](uint64_t pair) noexcept {
		uint32_t low = 0, high = w.npairs.load(std::memory_order_relaxed);
		while (low < high)
		{
			const uint32_t mid = (low + high) / 2;
			if (w.pairs[mid].load(std::memory_order_relaxed) < pair)
				low = mid + 1;
			else
				high = mid;
		}
		return low < w.npairs.load(std::memory_order_relaxed) && w.pairs[low].load(std::memory_order_relaxed) == pair;
	};
	// no kinds at all, none for this queue, or this one
	return w.npairs.load(std::memory_order_relaxed) == 0 || !has(watched_pair(index_of(q), kSomeKinds)) ||
		   has(watched_pair(index_of(q), kind));
}

// Processes take turns roughly: the search begins at another one for each job.
bool Engine::grant_watcher(Queue &q, const Lane &l) noexcept
{
	const uint32_t words = watch_words();
	const auto start = static_cast<uint32_t>(q.startable_seq % shared_->limits.procs);
	for (uint32_t k = 0; k <= words; ++k)
	{
		const uint32_t word = (start / 64 + k) % words;
		uint64_t found = bits(index_of(q))[1 + word].load() | bits(all_row(q.db))[1 + word].load();
		const uint64_t from_start = ~uint64_t{0} << (start % 64);
		found &= k == 0 ? from_start : k == words ? ~from_start : ~uint64_t{0};
		for (; found != 0; found &= found - 1)
		{
			const uint32_t proc = word * 64 + static_cast<uint32_t>(std::countr_zero(found));
			std::atomic<uint64_t> &state = watchers_[proc].state;
			uint64_t now = state.load();
			// The state is read first. If the process registers for other queues meanwhile, the exchange fails.
			if (!watches(proc, q, l.kind_hash) ||
				!state.compare_exchange_strong(now, in_phase(now, kGranted + index_of(q))))
				continue;
			watchers_[proc].generation = q.generation;
			++q.tokens;
			platform_.wake(proc);
			return true;
		}
	}
	return false;
}

uint32_t Engine::watchers_of(const Queue &q) const noexcept
{
	uint32_t n = 0;
	for_watchers(q, [&n](uint32_t) noexcept { ++n; });
	return n;
}

} // namespace tq::core
