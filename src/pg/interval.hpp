// Intervals as microseconds.
// Regime: PG; raises 22023.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

constexpr core::Micros kDay = 86400 * core::kSecond;
constexpr core::Micros kLongest = 3652 * kDay;

// Raises for months, which have no fixed length, and for values outside `low` to `high`. `name` names the argument.
core::Micros interval_micros(const Interval *interval, const char *name, core::Micros low,
							 core::Micros high = kLongest);

// Parses text as the type interval does; null if it is malformed.
Interval *interval_of(const char *text);

} // namespace tq::pg
