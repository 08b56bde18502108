#include "core/cron.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tq::core
{

namespace
{

constexpr Seconds kHour = 3600;
constexpr Seconds kDay = 86400;
constexpr Seconds kNone = INT64_MAX;
constexpr Micros kMicros = 1'000'000;

// ---- the calendar

constexpr int64_t floor_div(int64_t a, int64_t b) noexcept { return a / b - (a % b < 0 ? 1 : 0); }

struct Date
{
	int64_t year;
	int month;
	int day;
};

// Days are counted from 2000-01-01. Both ways after Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, in
// eras of 400 years.
constexpr int64_t kDaysTo2000 = 730425; // from 0000-03-01
constexpr int64_t kDaysOfEra = 146097;

constexpr int64_t days_of(int64_t year, int month, int day) noexcept
{
	const int64_t y = month <= 2 ? year - 1 : year;
	const int64_t era = floor_div(y, 400);
	const int64_t year_of_era = y - era * 400;
	const int64_t day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
	const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
	return era * kDaysOfEra + day_of_era - kDaysTo2000;
}

constexpr Date date_of(int64_t days) noexcept
{
	const int64_t z = days + kDaysTo2000;
	const int64_t era = floor_div(z, kDaysOfEra);
	const int64_t day_of_era = z - era * kDaysOfEra;
	const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
	const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	const int64_t m = (5 * day_of_year + 2) / 153;
	const int month = static_cast<int>(m < 10 ? m + 3 : m - 9);
	return {year_of_era + era * 400 + (month <= 2 ? 1 : 0), month,
			static_cast<int>(day_of_year - (153 * m + 2) / 5 + 1)};
}

static_assert(days_of(2000, 1, 1) == 0 && days_of(1970, 1, 1) == -10957 && date_of(59).month == 2 &&
			  date_of(59).day == 29);

constexpr int length_of(int64_t year, int month) noexcept
{
	if (month == 2)
		return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
	return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

// 2000-01-01 was a Saturday.
constexpr int weekday_of(int64_t days) noexcept { return static_cast<int>(days + 6 - floor_div(days + 6, 7) * 7); }

// ---- days and times that match

// The days of a month that match, by bit.
uint32_t matching_days(const Cron &c, int64_t year, int month) noexcept
{
	const int length = length_of(year, month);
	const uint32_t all = static_cast<uint32_t>((uint64_t{2} << length) - 2);
	const uint32_t by_day = (c.days & all) | (c.last_day ? uint32_t{1} << length : 0);
	const int first = weekday_of(days_of(year, month, 1));
	uint32_t by_weekday = 0;
	for (int day = 1; day <= length; ++day)
	{
		const int weekday = (first + day - 1) % 7;
		const unsigned any = c.weekdays | c.nth_weekdays[(day - 1) / 7] | (day + 7 > length ? c.last_weekdays : 0U);
		by_weekday |= (any >> weekday & 1U) << day;
	}
	return c.any_day || c.any_weekday ? by_day & by_weekday : by_day | by_weekday;
}

// The first matching day from `day` on; false if there is none in so many months.
bool next_day(const Cron &c, int64_t *day, int months) noexcept
{
	Date d = date_of(*day);
	for (; months > 0; --months)
	{
		if ((c.months >> d.month & 1) != 0)
		{
			const uint32_t left = matching_days(c, d.year, d.month) >> d.day;
			if (left != 0)
			{
				*day = days_of(d.year, d.month, d.day + std::countr_zero(left));
				return true;
			}
		}
		d.day = 1;
		if (++d.month > 12)
		{
			d.month = 1;
			++d.year;
		}
	}
	return false;
}

// The first bit from n on, -1 if there is none.
int next_bit(uint64_t bits, int n) noexcept
{
	const uint64_t left = n < 64 ? bits >> n << n : 0;
	return left != 0 ? std::countr_zero(left) : -1;
}

// The first matching second of a day from `at` on, -1 if there is none.
int next_time(const Cron &c, int at) noexcept
{
	const int first_second = next_bit(c.seconds, 0), first_minute = next_bit(c.minutes, 0);
	int hour = at / 3600, minute = at / 60 % 60;
	if ((c.hours >> hour & 1) != 0 && (c.minutes >> minute & 1) != 0)
	{
		const int second = next_bit(c.seconds, at % 60);
		if (second >= 0)
			return hour * 3600 + minute * 60 + second;
	}
	if ((c.hours >> hour & 1) != 0)
	{
		minute = next_bit(c.minutes, minute + 1);
		if (minute >= 0)
			return hour * 3600 + minute * 60 + first_second;
	}
	hour = next_bit(c.hours, hour + 1);
	return hour < 0 ? -1 : hour * 3600 + first_minute * 60 + first_second;
}

// A 29th of February is on a given weekday every 28 years, and over the end of most centuries after 40.
constexpr int kSearchMonths = 50 * 12;

// The first matching local time from `local` on.
bool next_match(const Cron &c, Seconds local, Seconds *out) noexcept
{
	const int64_t today = floor_div(local, kDay);
	int64_t day = today;
	if (!next_day(c, &day, kSearchMonths))
		return false;
	int time = next_time(c, day == today ? static_cast<int>(local - today * kDay) : 0);
	if (time < 0) // today, but later than all of its times
	{
		++day;
		if (!next_day(c, &day, kSearchMonths))
			return false;
		time = next_time(c, 0);
	}
	*out = day * kDay + time;
	return true;
}

// ---- reading

constexpr int kMin[kCronFields] = {0, 0, 0, 1, 1, 0};
constexpr int kMax[kCronFields] = {59, 59, 23, 31, 12, 7};
constexpr const char *kNames[] = {"second", "minute", "hour", "day of month", "month", "day of week", ""};
constexpr const char *kRanges[kCronFields] = {
	"Seconds are 0 to 59.",
	"Minutes are 0 to 59.",
	"Hours are 0 to 23.",
	"Days of the month are 1 to 31, or L for the last one.",
	"Months are 1 to 12, or JAN to DEC.",
	"Days of the week are 0 to 7 (0 and 7 are Sunday), or SUN to SAT.",
};
constexpr const char *kSteps[kCronFields] = {
	"A step of seconds is 1 to 59.", "A step of minutes is 1 to 59.", "A step of hours is 1 to 23.",
	"A step of days is 1 to 31.",	 "A step of months is 1 to 12.",  "A step of weekdays is 1 to 7.",
};
constexpr const char *kItems[kCronFields] = {
	"An item is *, a number or a range such as 0-30, each with an optional step such as /5.",
	"An item is *, a number or a range such as 0-30, each with an optional step such as /5.",
	"An item is *, a number or a range such as 9-17, each with an optional step such as /2.",
	"An item is L, or *, a number or a range such as 1-15, each with an optional step such as /2.",
	"An item is *, a month or a range such as JAN-JUN, each with an optional step such as /2.",
	"An item is *, a weekday or a range such as MON-FRI, each with an optional step such as /2; or FRIL or FRI#2.",
};
constexpr const char *kNoFields =
	"There must be five fields (minute, hour, day of month, month, day of week), or six with the second first.";
constexpr const char *kNoMacro = "Known are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly.";
constexpr const char *kMonthNames = "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC";
constexpr const char *kWeekdayNames = "SUNMONTUEWEDTHUFRISAT";

struct Macro
{
	const char *name;
	const char *text;
};
constexpr Macro kMacros[] = {
	{"@YEARLY", "0 0 1 1 *"}, {"@ANNUALLY", "0 0 1 1 *"}, {"@MONTHLY", "0 0 1 * *"}, {"@WEEKLY", "0 0 * * 0"},
	{"@DAILY", "0 0 * * *"},  {"@MIDNIGHT", "0 0 * * *"}, {"@HOURLY", "0 * * * *"},
};

bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
char upper(char c) noexcept { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
bool is_end(char c) noexcept { return c == '\0' || c == ',' || is_space(c); }

// Three letters at p out of a list of names without separators; -1 if they are none.
int find_name(const char *names, const char *p) noexcept
{
	for (int i = 0; names[3 * i] != '\0'; ++i)
		if (upper(p[0]) == names[3 * i] && upper(p[1]) == names[3 * i + 1] && upper(p[2]) == names[3 * i + 2])
			return i;
	return -1;
}

class Reader
{
	const char *begin_;
	const char *p_;
	CronError *error_;
	int field_ = 0;
	Cron cron_{};

	bool fail(const char *at, const char *text) noexcept
	{
		*error_ = {static_cast<CronField>(field_), static_cast<int>(at - begin_) + 1, text};
		return false;
	}
	bool is(CronField f) const noexcept { return field_ == static_cast<int>(f); }

	// What is not there, said of the character at p_.
	bool fail_item() noexcept
	{
		const char c = upper(*p_);
		if (c == 'W' && is(CronField::day))
			return fail(p_, "W (the weekday nearest to a day) is not supported.");
		if (c == '?')
			return fail(p_, "? is not supported; write *.");
		if (c == 'L' && is(CronField::weekday))
			return fail(p_, "L stands behind one weekday, as in 5L or FRIL, for the last one of the month.");
		if (c == 'L' && is(CronField::day))
			return fail(p_, "L stands alone, for the last day of the month.");
		if (c == '#')
			return fail(p_, "# stands between one weekday and its number in the month, as in 5#2 or FRI#2.");
		return fail(p_, kItems[field_]);
	}

	// Digits; more than the largest of them are as good as too large.
	int number() noexcept
	{
		int v = 0;
		for (; is_digit(*p_); ++p_)
			v = std::min(v * 10 + (*p_ - '0'), 1000);
		return v;
	}

	bool value(int *out) noexcept
	{
		const char *const at = p_;
		int v = -1;
		if (is_digit(*p_))
			v = number();
		else
		{
			if (is(CronField::month))
				v = find_name(kMonthNames, p_) + 1;
			else if (is(CronField::weekday))
				v = find_name(kWeekdayNames, p_);
			if (v < kMin[field_])
			{
				const char c = upper(*p_);
				return (c >= 'A' && c <= 'Z' && c != 'L' && c != 'W') ? fail(at, kRanges[field_]) : fail_item();
			}
			p_ += 3;
		}
		if (v < kMin[field_] || v > kMax[field_])
			return fail(at, kRanges[field_]);
		*out = v;
		return true;
	}

	// What comes after a weekday and is no list of days: nL, n#k.
	bool of_month(int weekday) noexcept
	{
		const auto bit = static_cast<uint8_t>(1U << weekday % 7);
		if (*p_++ != '#')
			cron_.last_weekdays |= bit;
		else
		{
			const char *const at = p_;
			const int k = number();
			if (k < 1 || k > 5)
				return fail(at, "After # comes which one of the month it is, 1 to 5.");
			cron_.nth_weekdays[k - 1] |= bit;
		}
		return is_end(*p_) || fail_item();
	}

	bool item(uint64_t *bits) noexcept
	{
		const char *const at = p_;
		int low = kMin[field_], high = kMax[field_], step = 1;
		bool one = false;
		if (*p_ == '*')
			++p_;
		else if (upper(*p_) == 'L' && is(CronField::day) && is_end(p_[1]))
		{
			++p_;
			cron_.last_day = true;
			return true;
		}
		else
		{
			if (!value(&low))
				return false;
			if (is(CronField::weekday) && (*p_ == '#' || upper(*p_) == 'L'))
				return of_month(low);
			one = *p_ != '-';
			if (!one)
			{
				++p_;
				if (!value(&high))
					return false;
				if (is(CronField::weekday) && high == 0 && low > 0)
					high = 7; // FRI-SUN
				if (high < low)
					return fail(at, "The range runs backwards.");
			}
		}
		if (*p_ == '/')
		{
			const char *const step_at = ++p_;
			step = number();
			if (step < 1 || step > kMax[field_])
				return fail(step_at, kSteps[field_]);
			one = false;
		}
		if (!is_end(*p_))
			return fail_item();
		if (one)
			high = low;
		for (int v = low; v <= high; v += step)
			*bits |= uint64_t{1} << v;
		return true;
	}

	bool list(uint64_t *bits) noexcept
	{
		*bits = 0;
		for (;;)
		{
			if (!item(bits))
				return false;
			if (*p_ != ',')
				return true;
			++p_;
		}
	}

	bool fields(int n) noexcept
	{
		const char *day_at = p_;
		cron_.seconds = 1;
		for (field_ = kCronFields - n; field_ < kCronFields; ++field_)
		{
			while (is_space(*p_))
				++p_;
			const bool star = *p_ == '*';
			uint64_t bits = 0;
			const char *const at = p_;
			if (!list(&bits))
				return false;
			switch (static_cast<CronField>(field_))
			{
				case CronField::second:
					cron_.seconds = bits;
					break;
				case CronField::minute:
					cron_.minutes = bits;
					break;
				case CronField::hour:
					cron_.hours = static_cast<uint32_t>(bits);
					cron_.every_hour = star || bits == 0xFFFFFF;
					break;
				case CronField::day:
					cron_.days = static_cast<uint32_t>(bits);
					cron_.any_day = star;
					day_at = at;
					break;
				case CronField::month:
					cron_.months = static_cast<uint16_t>(bits);
					break;
				default:
					cron_.weekdays = static_cast<uint8_t>((bits | bits >> 7) & 0x7F);
					cron_.any_weekday = star;
			}
		}
		// every sort of year, by length and first weekday, is among any 28 without an odd century
		int64_t day = 0;
		if (next_day(cron_, &day, 28 * 12))
			return true;
		field_ = static_cast<int>(CronField::day);
		return fail(day_at, "No such day ever comes in the months given.");
	}

public:
	Reader(const char *text, CronError *error) noexcept : begin_(text), p_(text), error_(error) {}

	bool read(Cron *out) noexcept
	{
		field_ = static_cast<int>(CronField::whole);
		while (is_space(*p_))
			++p_;
		int n = 0;
		for (const char *p = p_; *p != '\0';)
		{
			if (++n > kCronFields)
				return fail(p, kNoFields);
			while (*p != '\0' && !is_space(*p))
				++p;
			while (is_space(*p))
				++p;
			if (*p == '\0' && n < kCronFields - 1 && *p_ != '@')
				return fail(p, kNoFields);
		}
		if (n == 0)
			return fail(p_, kNoFields);
		if (*p_ == '@')
			return macro(out);
		if (!fields(n))
			return false;
		*out = cron_;
		return true;
	}

private:
	bool macro(Cron *out) noexcept
	{
		for (const Macro &m : kMacros)
		{
			size_t n = 0;
			while (m.name[n] != '\0' && upper(p_[n]) == m.name[n])
				++n;
			if (m.name[n] != '\0' || (p_[n] != '\0' && !is_space(p_[n])))
				continue;
			const char *rest = p_ + n;
			while (is_space(*rest))
				++rest;
			if (*rest != '\0')
				return fail(rest, "Nothing comes after a word such as @daily.");
			return Reader(m.text, error_).read(out);
		}
		return fail(p_, kNoMacro);
	}
};

// ---- firing

constexpr Seconds kLongestChange = 2 * kDay; // of a clock
constexpr Seconds kProbe = 3 * kHour;		 // no clock is changed twice within
constexpr int kMostProbes = 1000;

// The first instant at which the clock shows `local` or later; a later local time never has an earlier one.
Seconds reached(const Zone &z, Seconds local) noexcept { return z.instants(z.data, local).first; }

// For named hours: the first matching local time that the clock has not reached yet.
Seconds next_named(const Cron &c, Seconds now, const Zone &z) noexcept
{
	const Seconds shown = z.local(z.data, now);
	Seconds local = 0;
	if (!next_match(c, shown + 1, &local))
		return kNone;
	const Seconds fire = reached(z, local);
	if (fire > now)
		return fire;
	// The clock was set back, and shows again what it has shown already. Find the first time that will be new.
	Seconds old = local, fresh = std::max(shown, local) + kLongestChange;
	while (fresh - old > 1)
	{
		const Seconds middle = old + (fresh - old) / 2;
		(reached(z, middle) <= now ? old : fresh) = middle;
	}
	return next_match(c, fresh, &local) ? reached(z, local) : kNone;
}

// For every hour: the first instant at which the clock shows a match. Walks from change to change of the clock; once a change back cannot
// bring old times again, goes straight to the next match.
Seconds next_shown(const Cron &c, Seconds now, const Zone &z) noexcept
{
	Seconds t = now + 1, since = t;
	for (int i = 0; i < kMostProbes; ++i)
	{
		const Seconds shown = z.local(z.data, t);
		Seconds local = 0;
		if (!next_match(c, shown, &local))
			return kNone;
		const Seconds wait = local - shown;
		if (wait == 0)
			return t;
		Seconds until = t + std::min(wait, kProbe);
		if (z.local(z.data, until) - until == shown - t)
		{
			if (wait <= kProbe)
				return until;
			t = until - since <= kLongestChange ? until : std::max(until, reached(z, local));
			continue;
		}
		Seconds before = t;
		while (until - before > 1)
		{
			const Seconds middle = before + (until - before) / 2;
			(z.local(z.data, middle) - middle == shown - t ? before : until) = middle;
		}
		t = since = until;
	}
	return kNone;
}

Seconds utc_local(const void *, Seconds instant) noexcept { return instant; }
Instants utc_instants(const void *, Seconds local) noexcept { return {1, local, local}; }

} // namespace

const Zone kUtc{nullptr, utc_local, utc_instants};

const char *cron_field_name(CronField field) noexcept { return kNames[static_cast<int>(field)]; }

bool parse_cron(const char *text, Cron *cron, CronError *error) noexcept { return Reader(text, error).read(cron); }

bool matches(const Cron &cron, Seconds local) noexcept
{
	Seconds next = 0;
	return next_match(cron, local, &next) && next == local;
}

Micros next_fire(const Cron &cron, Micros from, const Zone &zone) noexcept
{
	const Seconds now = floor_div(from, kMicros);
	const Seconds fire = cron.every_hour ? next_shown(cron, now, zone) : next_named(cron, now, zone);
	return fire > INT64_MAX / kMicros ? kNever : fire * kMicros;
}

} // namespace tq::core
