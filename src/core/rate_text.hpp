// Rates as text: "100/s", "5/min".
// Regime: core.
#pragma once

#include "core/token_bucket.hpp"

namespace tq::core
{

constexpr int64_t kMaxRateCount = 1000000;
constexpr int64_t kLongestRefill = int64_t{3652} * 86400 * 1000000000; // nanoseconds

// Reads "count/unit" (s, sec, second, min, minute, h, hour, d, day; count 1 to 1000000, spaces allowed) into *rate. The
// burst is a tenth of a second's count, at least 1. If malformed, returns false and leaves *rate unchanged.
bool parse_rate(const char *text, Rate *rate) noexcept;

// Whether a bucket of this rate can have that burst: it must refill within ten years.
bool burst_fits(const Rate &rate, int64_t burst) noexcept;

} // namespace tq::core
