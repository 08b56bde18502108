// How long ended jobs are kept.
// Regime: PG; noexcept. Locks: none (a setting applies from its change on).
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

struct Retention
{
	Micros finished;
	Micros dead; // dead and buried jobs; at least `finished`
};

// The retention of a queue with these settings.
Retention retention_by(const core::QueueSettings &settings) noexcept;

// The retention of a queue; for kNoQueue, the server's.
Retention retention_of_queue(uint16_t queue) noexcept;

// The longest retention of any queue in the database, because they share the segments.
Retention retention_of(const Db &db) noexcept;

// The least time between opening two segments that leaves free slots with this retention, once half of tq.max_segments
// are used. A segment stays for up to twice its retention: until its last jobs are moved, and then once more. At this
// pace these segments use a quarter of the slots.
Micros segment_pace(Micros retention) noexcept;

// Whether segments of tq.segment_interval fit without that pace.
bool fits_segments(Micros retention) noexcept;

} // namespace tq
