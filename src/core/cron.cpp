#include "core/cron.hpp"

#include <algorithm>
#include <bit>

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

// Days are counted from 2000-01-01. Both conversions follow Howard Hinnant, "chrono-Compatible Low-Level Date
// Algorithms": years begin in March, in eras of 400 years.
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

// The 29th of February falls on a given weekday every 28 years, and after 40 across most ends of centuries.
constexpr int kSearchMonths = 50 * 12;

// The first matching local time from `local` on.
bool next_match(const Cron &c, Seconds local, Seconds *out) noexcept
{
	const int64_t today = floor_div(local, kDay);
	int64_t day = today;
	if (!next_day(c, &day, kSearchMonths))
		return false;
	int time = next_time(c, day == today ? static_cast<int>(local - today * kDay) : 0);
	if (time < 0) // today's times have passed
	{
		++day;
		if (!next_day(c, &day, kSearchMonths))
			return false;
		time = next_time(c, 0);
	}
	*out = day * kDay + time;
	return true;
}

// ---- firing

constexpr Seconds kLongestChange = 2 * kDay; // of a clock
constexpr Seconds kProbe = 3 * kHour;		 // no clock changes twice within this time
constexpr int kMostProbes = 1000;

// The first instant at which the clock shows `local` or later. Monotonic in `local`.
Seconds reached(const Zone &z, Seconds local) noexcept { return z.instants(z.data, local).first; }

// Named hours: the first matching local time that the clock has not shown yet.
Seconds next_named(const Cron &c, Seconds now, const Zone &z) noexcept
{
	const Seconds shown = z.local(z.data, now);
	Seconds local = 0;
	if (!next_match(c, shown + 1, &local))
		return kNone;
	const Seconds fire = reached(z, local);
	if (fire > now)
		return fire;
	// The clock was set back and repeats times: find the first new one.
	Seconds old = local, fresh = std::max(shown, local) + kLongestChange;
	while (fresh - old > 1)
	{
		const Seconds middle = old + (fresh - old) / 2;
		(reached(z, middle) <= now ? old : fresh) = middle;
	}
	return next_match(c, fresh, &local) ? reached(z, local) : kNone;
}

// Every hour: the first instant at which the clock shows a match. Walks from clock change to clock change; once no
// change can repeat old times, goes straight to the next match.
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
