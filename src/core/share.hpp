// Shares a fixed number of slots so that no holder can take all of them. Each holder has a guaranteed number; the rest
// is a pool. A holder may take a slot of the pool while it holds fewer than `factor` times the free ones (dynamic
// thresholds: Choudhury and Hahne, 1998). So one holder gets at most factor / (factor + 1) of the pool, and the next
// always finds some.
// Regime: core. Locks: none; `held` is the holder's own, `lent` is read without a lock and may be slightly out of date.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tq::core
{

struct Share
{
	uint32_t guaranteed; // of each holder
	uint32_t pool;		 // beyond that, of all holders
	uint32_t factor;

	// How many more slots a holder may take. `held`: its slots; `lent`: used slots of the pool.
	constexpr uint32_t left(uint32_t held, uint32_t lent) const noexcept
	{
		const uint64_t own = held > guaranteed ? held - guaranteed : 0;
		const uint64_t free = lent < pool ? pool - lent : 0;
		const uint64_t most = factor * free;
		const uint64_t more = own < most ? (most - own + factor) / (factor + 1) : 0;
		return static_cast<uint32_t>(std::min(more, free)) + (held < guaranteed ? guaranteed - held : 0);
	}

	// The most slots one holder can have while no other holder uses the pool.
	constexpr uint32_t most() const noexcept { return guaranteed + left(guaranteed, 0); }

	// The slots of `total` to guarantee to `holders` holders: an eighth, or one each if that is more, up to a quarter.
	static constexpr uint32_t part_for(uint32_t total, uint32_t holders) noexcept
	{
		return std::max(total / 8, std::min(holders, total / 4));
	}

	// Guarantees `part` slots in equal numbers, at least one. Adds up if there are slots for `part` and the pool, and
	// no more holders than `part`.
	static constexpr Share of(uint32_t part, uint32_t holders, uint32_t pool, uint32_t factor) noexcept
	{
		return {std::max(part / std::max(holders, 1U), 1U), pool, factor};
	}
};

} // namespace tq::core
