#include "core/duration.hpp"

#include <cstring>

namespace tq::core
{

namespace
{

constexpr double kTenYears = 3652.0 * 86400e6;
constexpr size_t kWordMax = 8;
constexpr Micros kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;

bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

constexpr Unit kUnits[] = {
	{"us", 1, false},		  {"ms", 1000, false},		{"s", kSecond, true},		 {"sec", kSecond, true},
	{"secs", kSecond, false}, {"second", kSecond, true}, {"seconds", kSecond, false}, {"m", kMinute, false},
	{"min", kMinute, true},	  {"mins", kMinute, false}, {"minute", kMinute, true},	 {"minutes", kMinute, false},
	{"h", kHour, true},		  {"hour", kHour, true},	{"hours", kHour, false},	 {"d", kDay, true},
	{"day", kDay, true},	  {"days", kDay, false},
};

void skip(const char *&p) noexcept
{
	while (is_space(*p))
		++p;
}

// Digits with an optional fraction; no sign, no exponent, no locale.
bool read_number(const char *&p, double *out) noexcept
{
	if (!is_digit(*p))
		return false;
	double v = 0;
	for (; is_digit(*p); ++p)
		v = v * 10 + (*p - '0');
	if (*p == '.')
	{
		double place = 0.1;
		for (++p; is_digit(*p); ++p, place /= 10)
			v += (*p - '0') * place;
	}
	*out = v;
	return true;
}

} // namespace

const Unit *find_unit(const char *name, size_t n) noexcept
{
	for (const Unit &u : kUnits)
		if (std::strlen(u.name) == n && std::strncmp(u.name, name, n) == 0)
			return &u;
	return nullptr;
}

bool parse_duration(const char *text, Micros *out) noexcept
{
	const char *p = text;
	double total = 0;
	bool any = false;
	Micros last = INT64_MAX; // the unit before: units come in falling order, each once
	for (skip(p); *p != '\0'; skip(p), any = true)
	{
		double v = 0;
		if (!read_number(p, &v))
			return false;
		if (*p == ':') // hours:minutes[:seconds]
		{
			double minutes = 0, seconds = 0;
			const char *from = ++p;
			if (!read_number(p, &minutes) || minutes >= 60)
				return false;
			if (*p == ':' ? !read_number(++p, &seconds) || seconds >= 60
						  : std::memchr(from, '.', static_cast<size_t>(p - from)) != nullptr)
				return false; // for the type interval "1:30.5" is minutes and seconds
			if (last <= kHour)
				return false;
			last = 0;
			total += v * kHour + minutes * kMinute + seconds * kSecond;
		}
		else
		{
			skip(p);
			char name[kWordMax];
			size_t n = 0;
			while (is_letter(*p) && n < kWordMax)
				name[n++] = lower(*p++);
			const Unit *unit = find_unit(name, n);
			if (unit == nullptr || unit->micros >= last)
				return false;
			last = unit->micros;
			total += v * static_cast<double>(unit->micros);
		}
	}
	if (!any || !(total <= kTenYears))
		return false;
	*out = static_cast<Micros>(total + 0.5);
	return true;
}

} // namespace tq::core
