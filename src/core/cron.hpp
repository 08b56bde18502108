// Cron expressions: when they fire next in a time zone. cron_text.hpp describes the syntax.
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
	bool every_hour;		 // the hours begin with * or are all 24: fires by elapsed time, see next_fire
};

// Seconds since 2000-01-01 00:00, either UTC (an instant) or as shown by a clock on the wall (local).
using Seconds = int64_t;

// The instants at which a clock shows a local time. None: skipped; `first` is the first instant after the gap. Two:
// repeated.
struct Instants
{
	int n;
	Seconds first;
	Seconds second;
};

// The clocks of a time zone. A change is less than two days; an offset lasts more than three hours.
struct Zone
{
	const void *data;
	Seconds (*local)(const void *data, Seconds instant) noexcept;
	Instants (*instants)(const void *data, Seconds local) noexcept;
};

// The first second after `from` at which the expression fires; kNever if there is none within half a century.
// When the clock changes, an expression that names its hours fires once for each local time. A skipped time fires at
// the end of the gap; several of one gap fire once. A repeated time fires the first time only.
// An expression with every hour (* or */n, or all 24) describes intervals. It fires whenever the clock shows a matching
// time: twice in a repeated hour, never in a skipped one.
// Vixie cron (ISC cron 4) does the same for changes of up to three hours, with two differences: it fires several
// skipped times one after the other, and only a * in the minutes makes an expression one of intervals. Here `*/5 2 * *
// *` names its hour.
Micros next_fire(const Cron &cron, Micros from, const Zone &zone) noexcept;

// Whether it fires when the clock shows this time.
bool matches(const Cron &cron, Seconds local) noexcept;

// The first matching day from `day` on, counted from 2000-01-01; false if there is none in so many months.
bool next_day(const Cron &c, int64_t *day, int months) noexcept;

// UTC.
extern const Zone kUtc;

} // namespace tq::core
