// Cron expressions: what they say, and when they fire next on the clocks of a time zone.
// Regime: core. A Cron is plain data; the zone is passed in as two functions.
#pragma once

#include "core/types.hpp"

namespace tq::core
{

// In the order of the text. `whole`: the error is in no single field.
enum class CronField : uint8_t
{
	second,
	minute,
	hour,
	day,
	month,
	weekday,
	whole,
};
constexpr int kCronFields = 6;

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

// `position` counts bytes of the text from 1; `text` is a sentence, static.
struct CronError
{
	CronField field;
	int position;
	const char *text;
};

// "day of month"; empty for `whole`.
const char *cron_field_name(CronField field) noexcept;

// Reads five fields (minute, hour, day of month, month, day of week), six (a second before them), or one of @yearly @annually
// @monthly @weekly @daily @midnight @hourly. Fields are lists of * a a-b with an optional step /n (a/n: from a on); names JAN.. and
// SUN.. in any case; 7 is Sunday; day of month: L, the last; day of week: nL, the last n of the month, and n#k, its k-th. False if it
// is malformed, or if no such day ever comes; *cron is changed only if all is well, *error only if not.
//
// After crontab(5) of Vixie cron: if both day fields are restricted, a day is right if one of them matches; a field that begins with * (so
// also */2) is not restricted, and then both must match. L and # are those of the Quartz scheduler.
bool parse_cron(const char *text, Cron *cron, CronError *error) noexcept;

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

// UTC.
extern const Zone kUtc;

} // namespace tq::core
