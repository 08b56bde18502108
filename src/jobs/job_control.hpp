// Changes a job without its lease, for the functions on one job and on many.
// Regime: PG.
#pragma once

#include "jobs/verbs.hpp"

namespace tq
{

// One of Verb::cancel, retry, reschedule, purge on one job.
struct JobRequest
{
	core::JobId id = 0;
	Verb verb = Verb::none;
	const char *reason = nullptr;		   // cancel
	Jsonb *detail = nullptr;			   // cancel, and retry that blocks
	TimestampTz run_at = journal::kNoTime; // reschedule
	bool has_priority = false;
	int32 priority = 0;
	uint32 states = 0;		   // purge: the State bits that the job may be in
	bool only_waiting = false; // cancel: does not ask a running job to stop
	bool makes_way = false;	   // cancel: see Op
	int *reopened = nullptr; // retry: slot of the segment that this call reopened last; -1: none
	// retry: the job waits for its parents again. It has ended with the step before this one, or was free and has not
	// begun. 0: it does not wait.
	int32 blocks_at = 0;
};

enum class Verdict : uint8
{
	done,
	wrong_state,
	absent,
	busy,
	memory_full,
	closing, // the job's queue is being dropped, so no job may begin there
	duplicate, // another job has its unique key
};

struct JobResult
{
	Verdict verdict;
	const char *state; // the new state; for wrong_state, the state found
	core::Micros due = core::kNever; // the former due time of a waiting job
	core::JobId holder = 0;			 // duplicate: the job that has the unique key
	bool new_life = false;			 // retry: the job had ended before this transaction
	int64 begun = 0; // retry: jobs that waited for this one, and have begun although it had failed
};

// The request of tq_reschedule; its arguments run_at and priority begin at `i`.
JobRequest reschedule_request(FunctionCallInfo fcinfo, int i);

// Changes the job in the open transaction. Raises nothing for a verdict other than done.
JobResult change(Db &db, const JobRequest &request);

// Raises the error for a verdict other than done: TQ002, TQ004, TQ005, TQ008, 55P03, 53400.
[[noreturn]] void raise_outcome(const JobRequest &request, const JobResult &outcome);

// Whether tq_retry retries jobs that ended in this state.
bool can_begin_again(journal::FoldState state) noexcept;

} // namespace tq
