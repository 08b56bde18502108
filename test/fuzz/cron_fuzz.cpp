// libFuzzer: cron expressions. A rejected expression reports the error position. An accepted one fires in order and
// skips no time that the clock shows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "core/cron_text.hpp"
#include "unit/clock.hpp"

namespace
{

using namespace tq::core;

void check(bool right, const char *what, const std::string &text)
{
	if (right)
		return;
	std::fprintf(stderr, "%s: \"%s\"\n", what, text.c_str());
	std::abort();
}

constexpr Seconds kHalfYear = 15768000;
constexpr int kChanges = 12;

// A clock that is set forward or back every half year, by an hour, half an hour or a day, and stops changing at some
// point.
const tq::test::Clock &clock_with_changes()
{
	static const tq::test::Clock clock = [] {
		tq::test::Clock c{3600, {}};
		constexpr Seconds kShifts[] = {3600, -3600, 1800, -1800, 86400, -86400};
		Seconds offset = c.offset;
		for (int i = 0; i < kChanges; ++i)
		{
			offset += kShifts[i % 6];
			c.changes.push_back({kHalfYear / 2 + i * kHalfYear, offset});
		}
		return c;
	}();
	return clock;
}

void fire(const Cron &cron, Micros from, const Zone &zone, bool utc, const std::string &text)
{
	for (int i = 0; i < 4; ++i)
	{
		const Micros next = next_fire(cron, from, zone);
		if (next == kNever)
			return;
		check(next > from, "fires in the past", text);
		check(next % kSecond == 0, "fires within a second", text);
		check(next_fire(cron, next - 1, zone) == next, "another answer from right before", text);
		check(next_fire(cron, from + (next - from) / 2, zone) == next, "another answer from half way", text);
		const Instants shown = zone.instants(zone.data, zone.local(zone.data, next / kSecond));
		check(shown.first == next / kSecond || shown.second == next / kSecond, "the clock does not show this", text);
		if (utc || cron.every_hour)
			check(matches(cron, zone.local(zone.data, next / kSecond)), "fires when it should not", text);
		from = next;
	}
}

// Mostly valid characters, so that not every input fails at its first character.
constexpr const char *kItems[] = {
	"*",   "0",	  "1",	  "2",	 "3",	  "5", "7",	 "23",	  "30",	 "59",	"31",	   "1-5", "2-3",	 "0-23",
	"*/2", "*/7", "*/20", "0/5", "1-7/2", "L", "5L", "FRI#2", "1#5", "JAN", "feb-MAR", "SUN", "FRI-SUN",
};

// The text up to the first zero. Otherwise each byte is an item and says whether the field continues; missing fields
// become *.
std::string text_of(const char *data, size_t size, bool items)
{
	if (!items)
		return std::string(data, size).c_str();
	std::string text;
	int fields = 0;
	for (size_t i = 0; i < size && fields < 6; ++i)
	{
		const auto byte = static_cast<unsigned char>(data[i]);
		text += kItems[byte % std::size(kItems)];
		const bool more = byte >= 192 && i + 1 < size;
		text += more ? "," : " ";
		fields += more ? 0 : 1;
	}
	for (; fields < 5; ++fields)
		text += "* ";
	return text;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	constexpr size_t kMost = 256;
	uint32_t start = 0;
	if (size < sizeof(start))
		return 0;
	size = std::min(size, kMost);
	std::memcpy(&start, data, sizeof(start));
	const std::string text =
		text_of(reinterpret_cast<const char *>(data) + sizeof(start), size - sizeof(start), start % 2 == 0);
	Cron cron{};
	CronError error{};
	if (!parse_cron(text.c_str(), &cron, &error))
	{
		check(error.text != nullptr && error.field <= CronField::whole, "no reason", text);
		check(error.position >= 1 && static_cast<size_t>(error.position) <= text.size() + 1, "no such position", text);
		return 0;
	}
	fire(cron, static_cast<Micros>(start) * kSecond, kUtc, true, text);
	// from within three days of a clock change
	constexpr Seconds kSixDays = 6 * 86400;
	const Seconds change = clock_with_changes().changes[start / 2 % kChanges].first;
	fire(cron, (change - kSixDays / 2 + start / 2 / kChanges % kSixDays) * kSecond, clock_with_changes().zone(), false,
		 text);
	check(next_fire(cron, 0, kUtc) != kNever, "never fires", text);
	return 0;
}
