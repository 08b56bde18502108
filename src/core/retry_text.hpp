// A retry policy written as JSON, read without the server: tq.retry is checked in processes that are in no transaction.
// Regime: core. Accepts what the setting `retry` of a queue accepts, with durations such as "10 s", "1 h 30 min", "00:00:05".
#pragma once

#include "core/retry.hpp"

namespace tq::core
{

// Reads `text` over *policy; false if it is malformed, and *error says why (static text). *policy is changed only if all is well.
bool parse_retry_text(const char *text, RetryPolicy *policy, const char **error) noexcept;

// "10 s", "1 day 2 h", "01:30:00", "250 ms": microseconds; false if it is not a duration from 0 to ten years.
bool parse_duration(const char *text, Micros *out) noexcept;

} // namespace tq::core
