#include "core/cron_text.hpp"

#include <algorithm>
#include <cstring>

namespace tq::core
{

namespace
{

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
constexpr const char *kTooLong = "An expression has at most 1024 bytes.";
static_assert(kCronMax == 1024);
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

// The index of the three letters at p in a list of names without separators; -1 if absent.
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

	// Reports the missing character at p_.
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

	// Digits; too many digits count as a number that is too large.
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

	// The suffix of a weekday that is not in a list: nL, n#k.
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
		// any 28 years without an odd century include every combination of length and first weekday
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

} // namespace

const char *cron_field_name(CronField field) noexcept { return kNames[static_cast<int>(field)]; }

bool parse_cron(const char *text, Cron *cron, CronError *error) noexcept
{
	if (strnlen(text, kCronMax + 1) > kCronMax)
	{
		*error = {CronField::whole, 1, kTooLong};
		return false;
	}
	return Reader(text, error).read(cron);
}

} // namespace tq::core
