#include "core/rate_text.hpp"

#include "core/duration.hpp"

#include <cstring>

namespace tq::core
{

namespace
{

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
	const Unit *unit = find_unit(p, n);
	if (unit == nullptr || !unit->of_rates)
		return false;
	rate->interval = (unit->micros * 1000 + count - 1) / count; // never more often than asked for
	rate->burst = static_cast<int32_t>(std::max<int64_t>(count / (10 * unit->micros / kSecond), 1));
	return true;
}

bool burst_fits(const Rate &rate, int64_t burst) noexcept
{
	return burst >= 1 && burst <= INT32_MAX && (!rate.limits() || burst <= kLongestRefill / rate.interval);
}

} // namespace tq::core
