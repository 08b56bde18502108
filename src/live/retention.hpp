// How long jobs are kept after they have ended.
// Regime: PG; noexcept. Locks: none (a setting that changes meanwhile counts from then on).
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

struct Retention
{
	Micros finished;
	Micros dead; // dead and buried; never less than the others
};

// What a queue asks for; of kNoQueue: the server's.
Retention retention_of_queue(uint16_t queue) noexcept;

// The longest that any queue of the database asks for: segments are shared by all of them.
Retention retention_of(const Db &db) noexcept;

} // namespace tq::live
