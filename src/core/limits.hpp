// Rates: so many in so much time, as a token bucket.
// Regime: core. The generic cell rate algorithm (ITU-T I.371): the bucket is one number, the time at which it would be full again.
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

// Times are monotonic, in microseconds outside and in nanoseconds inside. Its owner's lock.
struct Bucket
{
	int64_t full_at = 0; // nanoseconds

	static constexpr Micros rounded_up(int64_t nanos) noexcept { return nanos / 1000 + (nanos % 1000 != 0); }

	// When the next one may go; in the past or now: at once.
	Micros opens_at(const Rate &r) const noexcept
	{
		const int64_t at = full_at - static_cast<int64_t>(r.burst - 1) * r.interval;
		return at <= 0 ? 0 : rounded_up(at);
	}
	bool open(const Rate &r, Micros now) const noexcept { return !r.limits() || opens_at(r) <= now; }
	// How many may go now, at most `want`.
	int64_t available(const Rate &r, Micros now, int64_t want) const noexcept
	{
		if (!r.limits())
			return want;
		const int64_t room = now * 1000 - full_at + static_cast<int64_t>(r.burst) * r.interval;
		return std::clamp<int64_t>(room / r.interval, 0, std::min<int64_t>(want, r.burst));
	}
	// When as many may go at once as ever.
	Micros full_by() const noexcept { return full_at <= 0 ? 0 : rounded_up(full_at); }
	// After the rate has changed, so that what an old one left does not last longer than the new one's longest wait.
	void fit(const Rate &r, Micros now) noexcept
	{
		full_at = r.limits() ? std::min(full_at, now * 1000 + static_cast<int64_t>(r.burst) * r.interval) : 0;
	}
	// What so many take may go beyond what can be counted: then it is as good as for ever.
	void take(const Rate &r, Micros now, int64_t n = 1) noexcept
	{
		if (!r.limits())
			return;
		int64_t cost = 0;
		if (__builtin_mul_overflow(n, r.interval, &cost) ||
			__builtin_add_overflow(std::max(full_at, now * 1000), cost, &full_at))
			full_at = INT64_MAX;
	}
	// As after a burst that has just been used up: what was started before a crash is not known.
	void empty(const Rate &r, Micros now) noexcept
	{
		if (r.limits())
			full_at = std::max(full_at, now * 1000 + static_cast<int64_t>(r.burst) * r.interval);
	}
};

} // namespace tq::core
