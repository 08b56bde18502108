// A queue's share of the common memory. No setting of a queue changes it.
// Regime: core; everything is noexcept. Locks: the queue's, by the caller, where it says so.
#include "core/engine.hpp"

namespace tq::core
{

void Engine::set_shares() noexcept
{
	const Limits &l = shared_->limits;
	entry_share_ = Share::of(l.entries, l.queues, l.entries / 8 * 5 + l.entries % 8 / 2, 4);
	group_share_ = Share::of(l.groups, l.queues, std::max(l.groups / 8 * 7, l.groups / 2 + 1), 4);
}

Share Engine::kind_share() const noexcept
{
	const Limits &l = shared_->limits;
	return Share::of(l.lanes, l.queues, std::max(l.lanes / 8 * 7, l.lanes / 2 + 1), 1);
}

Share Engine::database_kind_share() const noexcept
{
	const Limits &l = shared_->limits;
	return Share::of(l.lanes, l.databases, l.lanes, 4);
}

uint32_t Engine::kinds_left(const Queue &q) const noexcept
{
	const uint32_t used = shared_->used_kinds.load(std::memory_order_relaxed), guaranteed = kind_share().guaranteed;
	if (q.kinds < guaranteed)
		return guaranteed - q.kinds;
	return std::min(kind_share().left(q.kinds, used), database_kind_share().left(dbs_[q.db].kinds.load(), used));
}

// A quarter of all entries is never pinned. So with full memory, the biggest of n holders can give at least a quarter /
// n, and keeps at least half of that (evict_entries). With a low mark of at most that, the giver keeps enough,
// and jobs do not move back and forth.
uint32_t Engine::low_mark(const Queue &q) const noexcept
{
	const uint32_t all = shared_->limits.entries;
	const uint64_t queues = std::max(shared_->paged_queues.load(std::memory_order_relaxed), 1U);
	const uint64_t holders = std::max(q.sunk_lanes + (q.sunk_groups > 0), 1U);
	return std::clamp(static_cast<uint32_t>(all / 8 / (queues * holders)), 1U, std::clamp(all / 32, 1U, 1000U));
}

void Engine::count_sunk(Queue &q, uint32_t Queue::*counter, bool was, bool is) noexcept
{
	if (was == is)
		return;
	const bool paged = q.sunk_lanes + q.sunk_groups > 0;
	q.*counter += is ? 1 : UINT32_MAX;
	if (paged != (q.sunk_lanes + q.sunk_groups > 0))
		shared_->paged_queues.fetch_add(is ? 1 : UINT32_MAX, std::memory_order_relaxed);
}

void Engine::count_pin(Queue &q, bool was, bool is) noexcept
{
	if (was == is)
		return;
	const uint32_t guaranteed = entry_share().guaranteed;
	if (is && q.pinned++ >= guaranteed)
		shared_->lent_entries.fetch_add(1, std::memory_order_relaxed);
	else if (was && --q.pinned >= guaranteed)
		shared_->lent_entries.fetch_sub(1, std::memory_order_relaxed);
}

} // namespace tq::core
