// libFuzzer: durations and rates as text, and retry policies. A refused text changes nothing. An accepted one is within
// its limits, and its own text parses to the same value. The delays of a policy neither shrink nor leave its bounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/duration.hpp"
#include "core/rate_text.hpp"
#include "core/retry.hpp"

namespace
{

using namespace tq::core;

constexpr Micros kTenYears = Micros{3652} * 86400 * 1'000'000;

void check(bool right, const char *what, const std::string &text)
{
	if (right)
		return;
	std::fprintf(stderr, "%s: \"%s\"\n", what, text.c_str());
	std::abort();
}

// Mostly what is right, so that not every input ends with its first character.
constexpr const char *kTimeItems[] = {
	"0",   "1",	   "9",		"59",	"60",  "99999999999999999999",
	".",   ":",	   " ",		"us",	"ms",  "s",
	"SEC", "mins", "h",		"d",	"day", "x",
	"1e3", "2 h",  "1 day", "1:30", "\t",  "000",
};
constexpr const char *kRateItems[] = {
	"0", "1",	 "7", "1000000", "1000001", "99999999999999999999", "/", "s", "sec", "min", "minute",
	"h", "hour", "d", "day",	 " ",
};

template <size_t N>
std::string text_of(const char *data, size_t size, bool items, const char *const (&words)[N])
{
	if (!items)
		return std::string(data, size).c_str(); // up to the first zero
	std::string text;
	for (size_t i = 0; i < size; ++i)
		text += words[static_cast<unsigned char>(data[i]) % N];
	return text;
}

bool is_duration(Micros m) { return m >= 0 && m <= kTenYears; }

void delays(const RetryPolicy &p, const std::string &text)
{
	constexpr int kAttempts[] = {-1, 0, 1, 2, 3, 15, 16, 17, 1000, 65535, INT32_MAX};
	Micros before = 0;
	for (const int n : kAttempts)
	{
		const Micros least = retry_delay(p, n, 0), most = retry_delay(p, n, UINT64_MAX);
		check(least >= 0 && least <= most, "a delay is less than nothing", text);
		check(least <= p.max, "a delay is longer than it may be", text);
		check(static_cast<double>(most) <= static_cast<double>(p.max) * (1.0 + static_cast<double>(p.jitter)) + 1,
			  "a delay with its random part is longer than it may be", text);
		check(p.backoff == Backoff::list || least >= before, "a later attempt waits less", text);
		check(p.backoff != Backoff::fixed || n <= 1 || least == before, "a fixed delay changes", text);
		before = least;
	}
}

void policy(const char *data, size_t size)
{
	size_t at = 0;
	const auto byte = [&] { return at < size ? static_cast<unsigned char>(data[at++]) : 0; };
	const auto time = [&] { return std::min(Micros{byte()} << (byte() % 48), kTenYears); };
	RetryPolicy p;
	p.backoff = static_cast<Backoff>(byte() % 4);
	p.factor = 1.0F + static_cast<float>(byte()) / 255.0F * 999.0F;
	p.jitter = static_cast<float>(byte()) / 255.0F;
	p.delay = time();
	p.max = time();
	p.ndelays = static_cast<uint8_t>(1 + byte() % kMaxDelays);
	for (int i = 0; i < p.ndelays; ++i)
		p.delays[i] = time();
	delays(p, std::string(data, size));
}

void duration(const std::string &text)
{
	Micros m = -17;
	if (!parse_duration(text.c_str(), &m))
	{
		check(m == -17, "what is refused changes something", text);
		return;
	}
	check(is_duration(m), "a time that is none", text);
	Micros again = -1;
	check(parse_duration((std::to_string(m) + "us").c_str(), &again) && again == m, "another time from its own text",
		  text);
	// parts of a microsecond are rounded once
	const bool fits = m + 90'000'000 < kTenYears;
	check(!parse_duration((text + " 0:1:30").c_str(), &again) || (fits && again == m + 90'000'000), "no sum",
		  text);
}

void rate(const std::string &text)
{
	Rate r{17, 17};
	if (!parse_rate(text.c_str(), &r))
	{
		check(r.interval == 17 && r.burst == 17, "what is refused changes something", text);
		return;
	}
	check(r.limits() && r.interval >= 1000 && r.interval <= int64_t{86400} * 1'000'000'000, "no such rate", text);
	check(r.burst >= 1 && burst_fits(r, r.burst), "a rate's own burst does not fit it", text);
	for (const int64_t burst :
		 {int64_t{0}, int64_t{1}, int64_t{INT32_MAX}, int64_t{INT32_MAX} + 1, INT64_MAX, INT64_MIN})
		check(!burst_fits(r, burst) ||
				  (burst > 0 && static_cast<double>(burst) * static_cast<double>(r.interval) <= 3.7e17),
			  "a burst that fills too slowly", text);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	constexpr size_t kMost = 256;
	if (size < 1)
		return 0;
	size = std::min(size, kMost);
	const auto *text = reinterpret_cast<const char *>(data) + 1;
	const bool items = data[0] % 2 == 0;
	switch (data[0] / 2 % 3)
	{
		case 0:
			policy(text, size - 1);
			break;
		case 1:
			duration(text_of(text, size - 1, items, kTimeItems));
			break;
		default:
			rate(text_of(text, size - 1, items, kRateItems));
	}
	return 0;
}
