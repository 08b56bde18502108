// Rate limits as token buckets.
// Regime: core. The generic cell rate algorithm (ITU-T I.371): the bucket is one number, the time at which it is full
// again.
#pragma once

#include <algorithm>

#include "core/types.hpp"

namespace tq::core
{

// At most `burst` at once, and one more every `interval` nanoseconds.
struct Rate
{
	int64_t interval = 0; // 0: no limit
	int32_t burst = 1;
	bool limits() const noexcept { return interval > 0; }
};

// Times are monotonic: microseconds outside, nanoseconds inside. Locks: the owner's.
struct Bucket
{
	int64_t full_at = 0; // nanoseconds

	static constexpr Micros rounded_up(int64_t nanos) noexcept { return nanos / 1000 + (nanos % 1000 != 0); }

	// When the next one may start; not in the future: now.
	Micros opens_at(const Rate &r) const noexcept
	{
		const int64_t at = full_at - static_cast<int64_t>(r.burst - 1) * r.interval;
		return at <= 0 ? 0 : rounded_up(at);
	}
	bool open(const Rate &r, Micros now) const noexcept { return !r.limits() || opens_at(r) <= now; }
	// How many may start now, at most `want`.
	int64_t available(const Rate &r, Micros now, int64_t want) const noexcept
	{
		if (!r.limits())
			return want;
		const int64_t credit = now * 1000 - full_at + static_cast<int64_t>(r.burst) * r.interval;
		return std::clamp<int64_t>(credit / r.interval, 0, std::min<int64_t>(want, r.burst));
	}
	// When the bucket is full.
	Micros full_by() const noexcept { return full_at <= 0 ? 0 : rounded_up(full_at); }
	// After a change of the rate: limits the wait to the new rate's longest.
	void fit(const Rate &r, Micros now) noexcept
	{
		full_at = r.limits() ? std::min(full_at, now * 1000 + static_cast<int64_t>(r.burst) * r.interval) : 0;
	}
	// Saturates on overflow: the bucket then stays empty forever.
	void take(const Rate &r, Micros now, int64_t n = 1) noexcept
	{
		if (!r.limits())
			return;
		int64_t cost = 0;
		if (__builtin_mul_overflow(n, r.interval, &cost) ||
			__builtin_add_overflow(std::max(full_at, now * 1000), cost, &full_at))
			full_at = INT64_MAX;
	}
	// Empties the bucket, because starts before a crash are unknown.
	void empty(const Rate &r, Micros now) noexcept
	{
		if (r.limits())
			full_at = std::max(full_at, now * 1000 + static_cast<int64_t>(r.burst) * r.interval);
	}
};

} // namespace tq::core
