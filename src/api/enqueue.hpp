// Enqueueing for whoever has parsed its arguments: the functions, tq_inbox, tq_retry_many to another queue.
// Regime: PG.
#pragma once

#include "live/shared.hpp"

namespace tq::api
{

// What becomes of a job whose unique key another job has.
enum class UniqueMode : uint8
{
	skip,		 // the other one's id is returned
	ignore,		 // no id
	replace,	 // a waiting one is cancelled, and this one takes its place
	keep_run_at, // the same, at the time of the other one
	error,		 // TQ008
};

struct EnqueueItem
{
	journal::JobRow row; // id, enqueued_at, queue_id and unique_key are filled in; a priority of core::kUnset: the queue's
	const char *kind;
	text *unique_key = nullptr;
	UniqueMode mode = UniqueMode::skip;
	core::Micros unique_for = core::kUnset; // the job's own; kUnset: as its queue has it
	core::Micros expires_in = 0;			// if expires_at is its queue's doing
	bool made = false;						// there is such a job by now
};

// Appends the jobs and notes them for publication; ids[i] receives the id of items[i]: of another job, or 0, if that has its unique key.
// Their keys are won in order, so that two calls do not wait for each other. `overdraw`: see live/admission.hpp; not for jobs with keys.
void enqueue(live::Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids, bool overdraw = false);

// Fills in what the items leave to their queue: priority, expires_at, unique_for.
void fill_in(const live::Queue &q, core::Micros now, EnqueueItem *items, int n) noexcept;

// Raises 22023 for a job that would expire before it may start.
void check_times(const journal::JobRow &row);
void check_payload(const Jsonb *payload);
void check_headers(Jsonb *headers);

} // namespace tq::api
