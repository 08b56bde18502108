// Cron expressions: when they fire next on the clocks of a time zone. How they are written is in cron_text.hpp.
// Regime: core. A Cron is plain data; the zone is passed in as two functions.
#pragma once

#include "core/types.hpp"

namespace tq::core
{

// Bit n stands for the value n. Bit 0 of weekdays is Sunday.
struct Cron
{
	uint64_t seconds;
	uint64_t minutes;
	uint32_t hours;
	uint32_t days;			 // of the month, from bit 1 on
	uint16_t months;		 // from bit 1 on
	uint8_t weekdays;		 // every week
	uint8_t last_weekdays;	 // nL: the last of the month
	uint8_t nth_weekdays[5]; // n#k: the k-th of the month is in [k - 1]
	bool last_day;			 // L
	bool any_day;			 // the field begins with *
	bool any_weekday;		 // likewise
	bool every_hour;		 // likewise, or all 24 are named: follows the clock through its changes, see next_fire
};

// Seconds since 2000-01-01 00:00, either UTC (an instant) or as shown by a clock on the wall (local).
using Seconds = int64_t;

// When a clock shows a local time. None: it is skipped, and `first` is the first instant after the gap. Two: it is repeated.
struct Instants
{
	int n;
	Seconds first;
	Seconds second;
};

// The clocks of a place: they are set forward or back by less than two days at a time, and keep their offset for more than three hours.
struct Zone
{
	const void *data;
	Seconds (*local)(const void *data, Seconds instant) noexcept;
	Instants (*instants)(const void *data, Seconds local) noexcept;
};

// The first time after `from` at which the expression fires, to the second; kNever if there is none within half a century.
//
// Where the clock is changed: an expression that names its hours fires once for each local time that it names. A skipped one fires
// at the next valid instant, the end of the gap; several of the same gap are one. A repeated one fires when it comes first. An
// expression with every hour (* or */n, or all 24) is about intervals, not about times of the day: it fires whenever the clock shows
// what it says, so in a repeated hour again, and in a skipped one not at all. Changes of up to three hours are what cron(8) of Vixie
// (ISC cron 4) treats like this, save that there several skipped times fire one after the other, and that a * in the minutes alone makes
// an expression one of intervals; here `*/5 2 * * *` names its hour.
Micros next_fire(const Cron &cron, Micros from, const Zone &zone) noexcept;

// Whether it fires when the clock shows this.
bool matches(const Cron &cron, Seconds local) noexcept;

// The first matching day from `day` on, counted from 2000-01-01; false if there is none in so many months.
bool next_day(const Cron &c, int64_t *day, int months) noexcept;

// UTC.
extern const Zone kUtc;

} // namespace tq::core
