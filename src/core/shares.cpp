// A queue's share of the common memory. No setting of a queue changes it.
// Regime: core; everything is noexcept. Locks: the queue's, by the caller, where it says so.
#include "core/engine.hpp"

namespace tq::core
{

// The guaranteed part of the entries counts twice: a queue whose changes have used up its guaranteed number may still
// run that number (places_to_start). With the pool that is seven eighths of all entries, so one can always be evicted.
Guarantees Engine::guarantees(const Limits &l) noexcept
{
	return {l.entries / 8, Share::part_for(l.groups, l.queues), Share::part_for(l.lanes, l.queues)};
}

void Engine::set_shares() noexcept
{
	const Limits &l = shared_->limits;
	const Guarantees part = guarantees(l);
	entry_share_ = Share::of(part.entries, l.queues, l.entries / 8 * 5 + l.entries % 8 / 2, 4);
	group_share_ = Share::of(part.groups, l.queues, l.groups - part.groups, 4);
	kind_share_ = Share::of(part.kinds, l.queues, l.lanes - part.kinds, 1);
}

uint32_t Engine::lent_kinds(const Queue &q) const noexcept
{
	return q.kinds > kind_share_.guaranteed ? q.kinds - kind_share_.guaranteed : 0;
}

Holder Engine::held_by_creator(const Queue &q) const noexcept
{
	if (q.creator == 0)
		return {1, q.kinds, q.progress, lent_kinds(q)};
	Holder h{};
	for (uint32_t i = 0; i < shared_->limits.queues; ++i)
	{
		const Queue &x = queues_[i];
		if (x.state == QueueState::free || x.creator != q.creator)
			continue;
		++h.queues;
		h.kinds += x.kinds;
		h.progress += x.progress;
		h.lent += lent_kinds(x);
	}
	return h;
}

// Most of the time the search through all queues is not needed: all of them together have less than one may have.
bool Engine::may_add_kind(const Queue &q) const noexcept
{
	if (q.kinds < kind_share_.guaranteed)
		return true;
	const Share pool{0, kind_share_.pool, kind_share_.factor}, database{0, shared_->limits.lanes, 4};
	const uint32_t lent = shared_->lent_kinds.load(std::memory_order_relaxed);
	return database.left(dbs_[q.db].kinds.load(), used_kinds()) > 0 &&
		   (pool.left(lent, lent) > 0 || pool.left(held_by_creator(q).lent, lent) > 0);
}

// A quarter of all entries is not pinned, or an eighth at worst (see guarantees). With full memory, the biggest of n
// holders can give at least a quarter / n, and keeps at least half of that (evict_entries). The low mark is at most
// that much, so the giver keeps enough, and jobs do not move back and forth. With an eighth, they may.
uint32_t Engine::low_mark(const Queue &q) const noexcept
{
	const uint32_t all = shared_->limits.entries;
	const uint64_t queues = std::max(shared_->paged_queues.load(std::memory_order_relaxed), 1U);
	const uint64_t holders = std::max(q.paged_lanes + (q.paged_groups > 0), 1U);
	return std::clamp(static_cast<uint32_t>(all / 8 / (queues * holders)), 1U, std::clamp(all / 32, 1U, 1000U));
}

void Engine::count_paged(Queue &q, uint32_t Queue::*counter, bool was, bool is) noexcept
{
	if (was == is)
		return;
	const bool paged = q.paged_lanes + q.paged_groups > 0;
	q.*counter += is ? 1 : UINT32_MAX;
	if (paged != (q.paged_lanes + q.paged_groups > 0))
		shared_->paged_queues.fetch_add(is ? 1 : UINT32_MAX, std::memory_order_relaxed);
}

void Engine::count_pin(Queue &q, bool was, bool is) noexcept
{
	if (was == is)
		return;
	const uint32_t guaranteed = entry_share().guaranteed;
	const bool lent = is ? q.pinned++ >= guaranteed : --q.pinned >= guaranteed;
	if (!lent)
		return;
	shared_->lent_entries.fetch_add(is ? 1 : UINT32_MAX, std::memory_order_relaxed);
	dbs_[q.db].lent_entries.fetch_add(is ? 1 : UINT32_MAX, std::memory_order_relaxed);
}

} // namespace tq::core
