// When a schedule fires: its times, the due times after a pause, and the jitter of the start.
// Regime: core.
#pragma once

#include "core/cron.hpp"

namespace tq::core
{

// Which times since the last fire count.
enum class CatchUp : uint8_t
{
	none,	// the newest, if it is not late
	latest, // the newest
	all,	// the newest ones, up to a limit
};

// The times of a cron expression, or `every` from the anchor on; within first .. last.
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

// The limit of counted missed times: each takes the scheduler 0.4 us.
constexpr int64_t kMostMissed = 10000;

struct Due
{
	int n;			// times to fire at, in order, in the caller's array
	int64_t missed; // times that are not among them
	Micros last;	// the newest time, whether it fires or not; kNever if none is due
};

struct CatchUpRule
{
	CatchUp times;
	Micros late; // with CatchUp::none, an older time is missed
	int most;	 // with CatchUp::all; at least 1
};

// The due times in (from, now]. out[] receives the newest that the rule allows.
Due due_times(const Recurrence &r, Micros from, Micros now, const CatchUpRule &rule, Micros *out) noexcept;

// A part of `jitter`, uniformly distributed and constant for one schedule (by a hash of its name) and one time.
Micros spread(uint64_t schedule, Micros fire_at, Micros jitter) noexcept;

} // namespace tq::core
