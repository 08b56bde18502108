// The arguments of the functions that claim jobs.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "shmem/waiting.hpp"

namespace tq
{

// The name of a worker that a call claims for. If the worker begins to drain, a waiting call ends. If the worker was
// draining when the call began, the call waits for tq_undrain.
struct Claimant
{
	const char *name; // null: none
	uint32 slot;
	bool draining;	   // at the last attempt
	bool was_draining; // at the first attempt
};

// The positions of a function's arguments; -1: it does not have this one. `completed`: of the ids to complete.
struct ClaimPositions
{
	int queues, max_jobs, worker, lease_for, wait, kinds, bind_session, bind_worker, completed;
	bool many_queues, many_workers;
};
struct ClaimArguments
{
	const char *names[core::kWaitersPerProc]; // of queues
	int nnames;
	int32 each; // most jobs for one worker
	int32 max;	// most jobs
	Claimant *workers;
	int nworkers;
	uint64 worker_bits; // of its workers; tq_drain wakes the waiters by these
	Filter filter;
	const char *kinds[lengthof(Filter::kinds)]; // the names in the filter
	core::ClaimTerms terms;
	core::Micros wait;
};

// Reads the arguments of a call, and allocates its workers.
void parse_claim(FunctionCallInfo fcinfo, const ClaimPositions &at, ClaimArguments *c);

} // namespace tq
