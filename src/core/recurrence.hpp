// When a schedule fires: its times, which of them are due after a pause, and the random part of the start.
// Regime: core.
#pragma once

#include "core/cron.hpp"

namespace tq::core
{

// Which of the times that have passed since the last fire count.
enum class CatchUp : uint8_t
{
	none,	// the newest, if it is not late
	latest, // the newest
	all,	// the newest so many
};

// The times: those of a cron expression, or `every` from the anchor on; within first .. last.
struct Recurrence
{
	bool by_cron;
	Cron cron;
	Zone zone;
	Micros every;  // 0 by cron
	Micros anchor; // of `every`; itself one of the times
	Micros first;  // none before it
	Micros last;   // none after it; kNever: no end
};

// The first time after `after`; kNever if there is none.
Micros next_time(const Recurrence &r, Micros after) noexcept;

// Beyond so many the times that were missed are not counted.
constexpr int64_t kMostMissed = 100000;

struct Due
{
	int n;			// times to fire at, in order, in the caller's array
	int64_t missed; // times that are not among them
	Micros last;	// the newest time, whether it is to be fired at or not; kNever if none is due
};

// What is due of the times in (from, now]. `late`: with CatchUp::none a time that is longer ago is missed. At most `most` (at least 1)
// times, the newest, in times[].
Due due_times(const Recurrence &r, Micros from, Micros now, CatchUp catch_up, Micros late, int most,
			  Micros *times) noexcept;

// A part of `jitter`, evenly spread and always the same for one schedule (by a hash of its name) and one time.
Micros spread(uint64_t schedule, Micros fire_at, Micros jitter) noexcept;

} // namespace tq::core
