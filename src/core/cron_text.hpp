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

constexpr size_t kCronMax = 1024; // bytes of an expression

// `position` counts bytes of the text from 1; `text` is a sentence, static.
struct CronError
{
	CronField field;
	int position;
	const char *text;
};

// "day of month"; empty for `whole`.
const char *cron_field_name(CronField field) noexcept;

// Reads five fields (minute, hour, day of month, month, day of week), six (a second before them), or one of @yearly
// @annually @monthly @weekly @daily @midnight @hourly. Fields are lists of * a a-b with an optional step /n (a/n: from
// a on); names JAN.. and SUN.. in any case; 7 is Sunday; day of month: L, the last; day of week: nL, the last n of the
// month, and n#k, its k-th. Returns false and sets only *error if the text is malformed, longer than kCronMax, or names
// a day that never comes; otherwise sets only *cron.
//
// As in crontab(5) of Vixie cron, a day matches either day field if both are restricted. A field that begins with * (so
// also */2) is not restricted, and then both must match. L and # come from the Quartz scheduler.
bool parse_cron(const char *text, Cron *cron, CronError *error) noexcept;

} // namespace tq::core
