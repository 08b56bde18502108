// Enqueues jobs whose arguments were parsed: for the SQL functions, tq_inbox, and tq_retry_many to another queue.
// Regime: PG.
#pragma once

#include "jobs/job_options.hpp"

namespace tq
{

struct EnqueueItem
{
	// enqueue fills in id, enqueued_at, queue_id and unique_key; a priority of core::kUnset means the queue's
	journal::JobRow row;
	const char *kind;
	int element = 0; // of the caller's arrays, counted from 1; 0: not from an array
	text *unique_key = nullptr;
	UniqueMode mode = UniqueMode::skip;
	core::Micros unique_for = core::kUnset; // the job's own; kUnset: its queue's
	core::Micros expires_in = 0;			// set if expires_at comes from its queue
	bool made = false;						// enqueue has created the job
	core::JobId holder = 0;					// otherwise, the job that has its unique key
	// a copy or a follow-up: its contents do not come from the current user (jobs/outcome_rights.hpp)
	bool foreign = false;
};

// Appends the jobs and notes the operations that publish them at COMMIT. ids[i] receives the id for items[i]: its own
// id, or that of the job that has its unique key, or 0 (see UniqueMode). Takes the keys in order, so that two calls do
// not deadlock. `overdraw`: limits of the queue never refuse the jobs (queues/enqueue_limits.hpp); not for jobs with
// keys.
void enqueue(Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids, bool overdraw = false);

// Fills in the defaults of the queue: priority, expires_at, unique_for.
void fill_in(const Queue &q, core::Micros now, EnqueueItem *items, int n) noexcept;

// Raises 22023 if a job would expire before it may start.
void check_times(const journal::JobRow &row);
void check_headers(Jsonb *headers);

} // namespace tq
