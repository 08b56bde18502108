// When a failed attempt is tried again.
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

// A retry policy as a queue or a job has it; all times in microseconds.
struct RetryPolicy
{
	Backoff backoff = Backoff::exponential;
	uint8_t ndelays = 0;			 // list: how many of delays[] count; the last one repeats
	float factor = 2;				 // exponential: delay * factor^(attempt - 1)
	float jitter = 0.1F;			 // a share of the delay added at random, 0..1
	Micros delay = 10'000'000;		 // first delay; linear: delay * attempt; fixed: delay
	Micros max = 3'600'000'000;		 // no delay is longer, but for the jitter
	Micros on_lost = 0;				 // after a lost lease
	Micros delays[kMaxDelays] = {};
};

// The delay after attempt number `attempt` (1 = the first) failed; `random` is uniform over uint64.
Micros retry_delay(const RetryPolicy &policy, int attempt, uint64_t random) noexcept;

} // namespace tq::core
