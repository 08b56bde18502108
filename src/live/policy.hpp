// Which policy applies to a job: its own, its queue's, or the server's.
// Regime: PG; noexcept but for retry_of. Locks: none; whoever passes a queue's settings holds its lock or has a copy of them
// (settings_of).
#pragma once

#include "live/queue_settings.hpp"

namespace tq::live
{

enum class From : uint8
{
	job,
	queue,
	server,
};

// Durations in microseconds.
struct Applied
{
	int64 value;
	From from;
};

core::QueueSettings settings_of(uint16_t queue) noexcept; // a copy; of no queue: the defaults. Takes the queue's lock

// `own`: of the job's row, 0 if it has none.
Applied lease_of(int64 own, const core::QueueSettings &s) noexcept;
Applied timeout_of(int64 own, const core::QueueSettings &s) noexcept; // 0: none
Applied max_attempts_of(int32 own, const core::QueueSettings &s) noexcept;

Applied priority_of(const core::QueueSettings &s) noexcept;
Applied lease_grace_of(const core::QueueSettings &s) noexcept;
Applied strict_timeout_of(const core::QueueSettings &s) noexcept; // a boolean
Applied on_lost_of(const core::QueueSettings &s) noexcept;		  // a core::OnLost, never unset
Applied cancel_grace_of(const core::QueueSettings &s) noexcept;
Applied expires_in_of(const core::QueueSettings &s) noexcept; // 0: never
Applied unique_for_of(const core::QueueSettings &s) noexcept; // 0: while live
Applied max_depth_of(const core::QueueSettings &s) noexcept;  // 0: no limit

const core::RetryPolicy &retry_of_queue(const core::QueueSettings &s) noexcept; // of a job without one of its own

// The retry policy: what `own` (of the job's row, may be null) leaves out is its queue's, or else the server's. A policy that is malformed,
// which only a row written by hand can have, is left aside with a WARNING. May allocate.
core::RetryPolicy retry_of(Jsonb *own, const core::QueueSettings &s, From *from = nullptr);

} // namespace tq::live
