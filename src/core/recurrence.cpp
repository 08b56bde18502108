#include "core/recurrence.hpp"

#include <algorithm>

namespace tq::core
{

namespace
{

// Ignores the end. The times of `every` are anchor, anchor + every, ...
Micros next_of(const Recurrence &r, Micros after) noexcept
{
	if (r.by_cron)
		return next_fire(r.cron, after, r.zone);
	if (after < r.anchor)
		return r.anchor;
	// the distance between the extreme times overflows int64
	const auto into = static_cast<Micros>((static_cast<uint64_t>(after) - static_cast<uint64_t>(r.anchor)) %
										  static_cast<uint64_t>(r.every));
	return after - into > kNever - r.every ? kNever : after - into + r.every;
}

// Returns a start after `from` with at least `most` times up to `now`, to skip earlier times.
Micros near_end(const Recurrence &r, Micros from, Micros now, int most) noexcept
{
	for (Micros window = kSecond; now - from > window; window *= 4)
	{
		int n = 0;
		for (Micros t = now - window; n <= most && (t = next_time(r, t)) <= now;)
			++n;
		if (n > most)
			return now - window;
	}
	return from;
}

} // namespace

Micros next_time(const Recurrence &r, Micros after) noexcept
{
	const Micros t = next_of(r, std::max(after, r.first - 1));
	return t <= r.last ? t : kNever;
}

Due due_times(const Recurrence &r, Micros from, Micros now, const CatchUpRule &rule, Micros *out) noexcept
{
	const int keep = rule.times == CatchUp::all ? rule.most : 1;
	Due d{0, 0, kNever};
	int64_t counted = 0;
	for (Micros t = from; counted < kMostMissed && (t = next_time(r, t)) <= now; ++counted)
		d.last = out[counted % keep] = t;
	if (counted == 0)
		return d;
	int64_t held = counted; // the times in out[]
	if (counted == kMostMissed)
	{
		// more times may remain, which are not counted
		held = 0;
		for (Micros t = near_end(r, from, now, keep); (t = next_time(r, t)) <= now; ++held)
			d.last = out[held % keep] = t;
	}
	d.n = static_cast<int>(std::min<int64_t>(held, keep));
	std::rotate(out, out + (held > keep ? held % keep : 0), out + d.n);
	if (rule.times == CatchUp::none && now - d.last > rule.late)
		d.n = 0;
	d.missed = counted - d.n;
	return d;
}

Micros spread(uint64_t schedule, Micros fire_at, Micros jitter) noexcept
{
	if (jitter <= 0)
		return 0;
	// the mixing function of SplitMix64 (Steele, Lea, Flood 2014)
	uint64_t z = schedule ^ static_cast<uint64_t>(fire_at);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	z ^= z >> 31;
	return static_cast<Micros>(z % static_cast<uint64_t>(jitter));
}

} // namespace tq::core
