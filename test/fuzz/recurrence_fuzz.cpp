// libFuzzer: cron, `every`, missed times, clock changes, against a search by second.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "core/cron_text.hpp"
#include "core/recurrence.hpp"
#include "unit/clock.hpp"

namespace
{

using namespace tq::core;

constexpr Seconds kHour = 3600;

void check(bool right, const char *what)
{
	if (right)
		return;
	std::fprintf(stderr, "%s\n", what);
	std::abort();
}

// Numbers from the fuzzer's bytes; zeros when they are used up.
struct Bytes
{
	const uint8_t *at;
	const uint8_t *end;

	int64_t below(int64_t n)
	{
		uint64_t x = 0;
		for (int64_t most = 1; most < n && at < end; most = most << 8 | 0xFF)
			x = x << 8 | *at++;
		return static_cast<int64_t>(x % static_cast<uint64_t>(n));
	}
	int64_t wide() // any value
	{
		int64_t x = 0;
		const auto n = std::min<size_t>(sizeof(x), static_cast<size_t>(end - at));
		std::memcpy(&x, at, n);
		at += n;
		return x;
	}
};

// Steps of a minute, so that a day is scanned quickly; clock changes can be at any second.
constexpr const char *kCrons[] = {
	"* * * * *",	 "*/7 * * * *", "0 * * * *",	"30 2 * * *",	  "0,30 0-5 * * *",
	"15 */2 * * *",	 "0 0 * * *",	"59 23 * * *",	"*/20 1-3 * * *", "30 0,12 L * *",
	"0 3 * * SUN#1", "1 1 * * 0",	"0 0-23 * * *", "45 22-23 1 * *",
};

// Up to six changes by less than two days, more than three hours apart: the core's precondition.
tq::test::Clock clock_of(Bytes &in)
{
	tq::test::Clock c{(in.below(113) - 56) * 900, {}};
	Seconds t = 0, offset = c.offset;
	for (int64_t n = in.below(7); n > 0; --n)
	{
		constexpr Seconds kShifts[] = {3600, -3600, 1800, -1800, 900, 7200, -7200, 86400, -86400, 61, -61};
		t += 3 * kHour + 1 + in.below(5 * 86400);
		offset += kShifts[in.below(static_cast<int64_t>(std::size(kShifts)))];
		c.changes.push_back({t, offset});
	}
	return c;
}

// Whether it fires at this second.
bool fires(const Cron &cron, const Zone &zone, Seconds t)
{
	const Seconds shown = zone.local(zone.data, t), before = zone.local(zone.data, t - 1);
	if (shown % 60 != 0 && shown == before + 1) // kCrons fires off the minute only after a skipped time
		return false;
	if (cron.every_hour)
		return matches(cron, shown);
	// each local time once: at its first occurrence or, if skipped, at the end of the gap
	if (matches(cron, shown) && zone.instants(zone.data, shown).first == t)
		return true;
	for (Seconds skipped = before + 1; skipped < shown; ++skipped)
		if (matches(cron, skipped) && zone.instants(zone.data, skipped).first == t)
			return true;
	return false;
}

void cron_times(const Cron &cron, const Zone &zone, Seconds from)
{
	constexpr Seconds kWindow = 5400;
	Seconds naive = from;
	do
		++naive;
	while (naive <= from + kWindow && !fires(cron, zone, naive));
	const Micros next = next_fire(cron, from * kSecond, zone);
	check(next > from * kSecond, "fires in the past");
	if (naive <= from + kWindow)
		check(next == naive * kSecond, "fires at another second than it should");
	else
		check(next > (from + kWindow) * kSecond, "fires when it should not");
}

void due(const Recurrence &r, Micros from, Micros now, Bytes &in)
{
	std::vector<Micros> all;
	for (Micros t = next_time(r, from); t <= now && all.size() < 300; t = next_time(r, t))
	{
		check(t > (all.empty() ? from : all.back()) && t >= r.first && t <= r.last, "a time out of order or bounds");
		all.push_back(t);
	}
	if (all.size() == 300)
		return;
	const auto catch_up = static_cast<CatchUp>(in.below(3));
	const int most = 1 + static_cast<int>(in.below(8));
	const Micros late = in.below(7200) * kSecond;
	Micros times[8];
	const Due d = due_times(r, from, now, {catch_up, late, most}, times);
	size_t keep = catch_up == CatchUp::all ? static_cast<size_t>(most) : 1;
	if (!all.empty() && catch_up == CatchUp::none && now - all.back() > late)
		keep = 0;
	keep = std::min(keep, all.size());
	check(static_cast<size_t>(d.n) == keep && d.missed == static_cast<int64_t>(all.size() - keep), "how many are due");
	check(d.last == (all.empty() ? kNever : all.back()), "the newest time");
	check(std::equal(all.end() - static_cast<std::ptrdiff_t>(keep), all.end(), times), "what is due");
}

// Any anchor and any bounds in the range of timestamps.
void every(Bytes &in)
{
	constexpr Micros kFirst = -211813488000000000, kLast = 9223371331200000000,
					 kCentury = Micros{36525} * 86400 * kSecond;
	const auto time = [&] { return std::clamp(in.wide(), kFirst, kLast); };
	Recurrence r{};
	r.every = 1 + in.below(in.below(2) == 0 ? 100 * kSecond : kCentury);
	r.anchor = time();
	r.first = in.below(2) == 0 ? kFirst : time();
	r.last = in.below(2) == 0 ? kNever : time();
	const Micros from = in.below(2) == 0 ? r.anchor : time();
	const Micros next = next_time(r, from);
	if (next != kNever)
	{
		check(next > from && next >= r.first && next <= r.last && next >= r.anchor, "a time out of bounds");
		check((static_cast<uint64_t>(next) - static_cast<uint64_t>(r.anchor)) % static_cast<uint64_t>(r.every) == 0,
			  "a time beside the beat");
		const Micros least = std::max(from + 1, r.first);
		check(next == r.anchor ||
				  static_cast<uint64_t>(next) - static_cast<uint64_t>(least) < static_cast<uint64_t>(r.every),
			  "a time is left out");
		due(r, from, std::min(next, kLast - 3 * kCentury) + in.below(in.below(2) == 0 ? 20 * r.every : kCentury), in);
	}
	const Micros jitter = in.wide(), part = spread(static_cast<uint64_t>(in.wide()), from, jitter);
	check(part >= 0 && (jitter <= 0 ? part == 0 : part < jitter), "the random part");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	constexpr size_t kMost = 128;
	if (size < 1)
		return 0;
	size = std::min(size, kMost);
	Bytes in{data + 1, data + size};
	if (data[0] % 4 == 0)
	{
		every(in);
		return 0;
	}
	const tq::test::Clock clock = clock_of(in);
	Recurrence r{};
	CronError error{};
	r.by_cron = true;
	check(parse_cron(kCrons[in.below(static_cast<int64_t>(std::size(kCrons)))], &r.cron, &error),
		  "an expression is refused");
	r.zone = clock.zone();
	const Seconds near =
		clock.changes.empty() ? 0 : clock.changes[static_cast<size_t>(in.below(6)) % clock.changes.size()].first;
	const Seconds from = near - kHour * 3 + in.below(6 * kHour);
	if (data[0] % 4 == 1)
	{
		r.first = (from + in.below(kHour)) * kSecond;
		r.last = in.below(2) == 0 ? kNever : r.first + in.below(86400) * kSecond;
		due(r, from * kSecond, (from + in.below(2 * 86400)) * kSecond, in);
	}
	else
		cron_times(r.cron, r.zone, from);
	return 0;
}
