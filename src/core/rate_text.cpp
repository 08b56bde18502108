#include "core/rate_text.hpp"

#include <cstring>

namespace tq::core
{

namespace
{

struct Unit
{
	const char *name;
	int64_t seconds;
};
constexpr Unit kUnits[] = {
	{"s", 1},		{"sec", 1}, {"second", 1},	{"min", 60}, {"minute", 60},
	{"h", 3600},	{"hour", 3600}, {"d", 86400}, {"day", 86400},
};

void skip(const char *&p) noexcept
{
	while (*p == ' ')
		++p;
}

} // namespace

bool parse_rate(const char *text, Rate *rate) noexcept
{
	const char *p = text;
	skip(p);
	int64_t count = 0;
	for (; *p >= '0' && *p <= '9'; ++p)
		if ((count = count * 10 + (*p - '0')) > kMaxRateCount)
			return false;
	skip(p);
	if (count < 1 || *p != '/')
		return false;
	skip(++p);
	size_t n = std::strlen(p);
	while (n > 0 && p[n - 1] == ' ')
		--n;
	for (const Unit &u : kUnits)
		if (std::strlen(u.name) == n && std::strncmp(u.name, p, n) == 0)
		{
			rate->interval = (u.seconds * 1000000000 + count - 1) / count; // never more often than asked for
			rate->burst = static_cast<int32_t>(std::max<int64_t>(count / (10 * u.seconds), 1));
			return true;
		}
	return false;
}

bool burst_fits(const Rate &rate, int64_t burst) noexcept
{
	return burst >= 1 && burst <= INT32_MAX && (!rate.limits() || burst <= kLongestRefill / rate.interval);
}

} // namespace tq::core
