// Size limits for arguments of the SQL functions. Every argument is checked before it is copied or parsed.
// Regime: PG. Locks: none.
#pragma once

#include "guc.hpp"
#include "core/cron_text.hpp"
#include "pg/sizes.hpp"

namespace tq
{

// Fixed limits. Names: of queues, kinds, workers and schedules. Words: values from a fixed list, such as a state or a
// privilege, and rates.
constexpr pg::SizeLimit kNameLimit{core::kNameMax - 1, nullptr};
constexpr pg::SizeLimit kWordLimit{63, nullptr};
constexpr pg::SizeLimit kTimeZoneLimit{127, nullptr};
constexpr pg::SizeLimit kCronLimit{core::kCronMax, nullptr};

constexpr Size kKilobyte = 1024;
inline pg::SizeLimit payload_limit() { return {static_cast<Size>(guc::max_payload) * kKilobyte, "tq.max_payload"}; }
inline pg::SizeLimit headers_limit() { return {static_cast<Size>(guc::max_headers) * kKilobyte, "tq.max_headers"}; }
inline pg::SizeLimit options_limit() { return {static_cast<Size>(guc::max_options) * kKilobyte, "tq.max_options"}; }
inline pg::SizeLimit result_limit() { return {static_cast<Size>(guc::max_result) * kKilobyte, "tq.max_result"}; }
// A longer error of an attempt, or its detail, is cut. A longer reason of a cancel is refused.
inline pg::SizeLimit error_limit() { return {static_cast<Size>(guc::max_error) * kKilobyte, "tq.max_error"}; }
// The options of a schedule include headers.
inline pg::SizeLimit schedule_options_limit()
{
	return {options_limit().bytes + headers_limit().bytes, "tq.max_options and tq.max_headers"};
}
// An array as a whole.
inline pg::SizeLimit array_limit()
{
	return {static_cast<Size>(guc::max_array_size) * kKilobyte, "tq.max_array_size"};
}
// An array of at most n names. Twice the longest name covers its length word and padding; 256 bytes cover bounds
// and nulls.
constexpr pg::SizeLimit names_limit(int n) { return {static_cast<Size>(n) * 2 * core::kNameMax + 256, nullptr}; }

} // namespace tq
