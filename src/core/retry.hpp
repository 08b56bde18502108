// When to retry a failed attempt.
// Regime: core. The random number is passed in, so that a test can repeat it.
#pragma once

#include "core/types.hpp"

namespace tq::core
{

enum class Backoff : uint8_t
{
	exponential,
	linear,
	fixed,
	list,
};

constexpr int kMaxDelays = 16;

// The retry policy of a queue or a job; all times in microseconds.
struct RetryPolicy
{
	Backoff backoff = Backoff::exponential;
	uint8_t ndelays = 0;			 // list: number of delays; the last one repeats
	float factor = 2;				 // exponential: delay * factor^(attempt - 1)
	float jitter = 0.1F;			 // random share added to the delay, 0..1
	Micros delay = 10'000'000;		 // first delay; linear: delay * attempt; fixed: delay
	Micros max = 3'600'000'000;		 // upper bound of the delay, before the jitter
	Micros on_lost = 0;				 // after a lost lease
	Micros delays[kMaxDelays] = {};
};

// The delay after attempt number `attempt` (1 = the first) failed; `random` is uniform over uint64.
Micros retry_delay(const RetryPolicy &policy, int attempt, uint64_t random) noexcept;

} // namespace tq::core
