// Durations as text, and the units that durations and rates share.
// Regime: core.
#pragma once

#include "core/types.hpp"

namespace tq::core
{

struct Unit
{
	const char *name;
	int64_t micros;
	bool of_rates; // "100/s"
};

// The unit with this name of n lower-case letters; null if there is none.
const Unit *find_unit(const char *name, size_t n) noexcept;

// Reads "10 s", "1 day 2 h", "01:30:00", "250 ms" as microseconds. False unless it is a duration from 0 to ten years
// with units in falling order, each at most once. Agrees with the type interval on texts that both accept.
bool parse_duration(const char *text, Micros *out) noexcept;

} // namespace tq::core
