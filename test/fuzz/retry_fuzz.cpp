// libFuzzer: what is written as text for the settings: retry policies, durations, rates. What is refused changes nothing; what is taken
// lies within its limits, comes back from its own text, and gives delays that neither shrink nor leave the policy's bounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "core/rate_text.hpp"
#include "core/retry_text.hpp"

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
constexpr const char *kPolicyItems[] = {
	"{",
	"}",
	"\"policy\":",
	"\"delay\":",
	"\"max\":",
	"\"factor\":",
	"\"jitter\":",
	"\"delays\":",
	"\"on_lost\":",
	"[",
	"]",
	",",
	" ",
	"null",
	"1",
	"0.5",
	"1000",
	"2.25",
	"\"list\"",
	"\"linear\"",
	"\"fixed\"",
	"\"10 s\"",
	"\"1 h\"",
	"\"0 s\"",
	"\"3652 d\"",
	"\"3653 d\"",
	"\"0:0:1\"",
	"\"250 ms\"",
	"\"exponential\"",
	"\"",
	"\\",
	"-",
};
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

bool same(const RetryPolicy &a, const RetryPolicy &b)
{
	bool all = a.backoff == b.backoff && a.ndelays == b.ndelays && a.factor == b.factor && a.jitter == b.jitter &&
			   a.delay == b.delay && a.max == b.max && a.on_lost == b.on_lost;
	for (int i = 0; i < a.ndelays; ++i)
		all = all && a.delays[i] == b.delays[i];
	return all;
}

std::string number(double d)
{
	char text[64];
	std::snprintf(text, sizeof(text), "%.30f", d);
	return text;
}

std::string written(const RetryPolicy &p)
{
	constexpr const char *kNames[] = {"exponential", "linear", "fixed", "list"};
	const auto micros = [](Micros m) { return "\"" + std::to_string(m) + " us\""; };
	std::string text = std::string("{\"policy\":\"") + kNames[static_cast<int>(p.backoff)] +
					   "\",\"delay\":" + micros(p.delay) + ",\"max\":" + micros(p.max) +
					   ",\"on_lost\":" + micros(p.on_lost) + ",\"factor\":" + number(p.factor) +
					   ",\"jitter\":" + number(p.jitter);
	for (int i = 0; i < p.ndelays; ++i)
		text += (i == 0 ? ",\"delays\":[" : ",") + micros(p.delays[i]);
	return text + (p.ndelays > 0 ? "]}" : "}");
}

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

void policy(const std::string &text)
{
	RetryPolicy p;
	p.delay = 17;
	const RetryPolicy before = p;
	const char *error = nullptr;
	if (!parse_retry_text(text.c_str(), &p, &error))
	{
		check(error != nullptr, "no reason", text);
		check(same(p, before), "what is refused changes something", text);
		return;
	}
	check(error == nullptr, "a reason for nothing", text);
	check(is_duration(p.delay) && is_duration(p.max) && is_duration(p.on_lost), "a time that is none", text);
	check(p.factor >= 1 && p.factor <= 1000 && p.jitter >= 0 && p.jitter <= 1, "a number beyond its limits", text);
	check(p.ndelays <= kMaxDelays && (p.backoff != Backoff::list || p.ndelays > 0), "the list of delays", text);
	for (int i = 0; i < p.ndelays; ++i)
		check(is_duration(p.delays[i]), "a delay that is no time", text);
	RetryPolicy again;
	check(parse_retry_text(written(p).c_str(), &again, &error) && same(p, again), "another policy from its own text",
		  text);
	delays(p, text);
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
	check(parse_duration((text + " 0:1:30").c_str(), &again) == fits && (!fits || again == m + 90'000'000), "no sum",
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
			policy(text_of(text, size - 1, items, kPolicyItems));
			break;
		case 1:
			duration(text_of(text, size - 1, items, kTimeItems));
			break;
		default:
			rate(text_of(text, size - 1, items, kRateItems));
	}
	return 0;
}
