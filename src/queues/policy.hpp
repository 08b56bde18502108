// Which policy applies to a job: the job's, the queue's, or the server's.
// Regime: PG; noexcept except retry_of. Locks: none; a caller that passes a queue's settings holds its lock or has a
// copy of them (settings_of).
#pragma once

#include "queues/queue_settings.hpp"

namespace tq
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

// Takes the queue's lock and returns a copy; defaults for kNoQueue.
core::QueueSettings settings_of(uint16_t queue) noexcept;

// `own`: from the job's row, 0 if it has none.
Applied lease_of(int64 own, const core::QueueSettings &s) noexcept;
Applied timeout_of(int64 own, const core::QueueSettings &s) noexcept; // 0: none
Applied max_attempts_of(int32 own, const core::QueueSettings &s) noexcept;

Applied priority_of(const core::QueueSettings &s) noexcept;
Applied lease_grace_of(const core::QueueSettings &s) noexcept;
Applied strict_timeout_of(const core::QueueSettings &s) noexcept; // a boolean
Applied on_lost_of(const core::QueueSettings &s) noexcept;		  // a core::OnLost, never OnLost::unset
Applied cancel_grace_of(const core::QueueSettings &s) noexcept;
Applied expires_in_of(const core::QueueSettings &s) noexcept; // 0: never
// When a job expires that may start at `start`; core::kNever if it does not.
Micros expiry_from(Micros start, Micros expires_in) noexcept;
Applied unique_for_of(const core::QueueSettings &s) noexcept; // 0: while live
Applied max_depth_of(const core::QueueSettings &s) noexcept;  // 0: no limit

const core::RetryPolicy &retry_of_queue(const core::QueueSettings &s) noexcept; // for a job without a policy of its own

// The retry policy: `own` (from the job's row, may be null) over the queue's, else over the server's. Ignores a
// malformed policy (in a row written by hand) with a WARNING. May allocate.
core::RetryPolicy retry_of(Jsonb *own, const core::QueueSettings &s, From *from = nullptr);

// When a running job's lease or attempt ends (monotonic). A hint without the queue's lock.
Micros ends_at(const Queue &q, const Entry &e) noexcept;

// Queue lock held, inside Engine::change: limits the lease of a running job to the cancel grace.
void limit_cancelled(const Queue &q, Entry &e) noexcept;

} // namespace tq
