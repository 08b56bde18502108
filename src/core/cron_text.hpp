// Cron expressions as text.
// Regime: core.
#pragma once

#include "core/cron.hpp"

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

} // namespace tq::core
