// Durations, counted by length.
// Regime: core. Locks: its owner's.
#pragma once

#include <algorithm>
#include <iterator>

#include "core/types.hpp"

namespace tq::core
{

// Small, because every queue has two. Counters wrap at 2^32; a computed rate shows a wrap as a restart.
struct Histogram
{
	static constexpr Micros kBounds[] = {1'000,		 5'000,		 25'000,	 100'000,		500'000,	  2'500'000,
										 10'000'000, 60'000'000, 300'000'000, 1'800'000'000, 7'200'000'000};
	static constexpr int kBuckets = static_cast<int>(std::size(kBounds)) + 1;

	uint64_t sum; // microseconds
	// By bucket: times above the previous bound, up to its own; the last bucket has no upper bound.
	uint32_t counts[kBuckets];

	// Negative if the clock went back.
	void add(Micros took) noexcept
	{
		took = std::max<Micros>(took, 0);
		sum += static_cast<uint64_t>(took);
		++counts[std::lower_bound(std::begin(kBounds), std::end(kBounds), took) - std::begin(kBounds)];
	}
};

} // namespace tq::core
