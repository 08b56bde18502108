// Intervals as microseconds.
// Regime: PG; raises 22023.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

constexpr core::Micros kDay = core::Micros{86400} * 1000000;
constexpr core::Micros kLongest = 3652 * kDay;

// Months are refused (they have no fixed length), and so is what is below `low` or above `high`. `name` names the argument.
core::Micros interval_micros(const Interval *interval, const char *name, core::Micros low, core::Micros high = kLongest);

// Text as interval reads it; null if it is malformed.
Interval *interval_of(const char *text);

} // namespace tq::pg
