// The current state of a job, for functions that show jobs or look for them: what the journal, the job's entry and the
// clock say together.
// Regime: PG, but nothing here raises. Locks: the job's queue lock while its entry is copied.
#pragma once

#include "jobs/verbs.hpp"

namespace tq
{

struct JobNow
{
	bool ended;				// or is overdue: it expires when the scheduler handles it
	journal::FoldState how; // ended
	State state;			// otherwise
	int32 attempt;
	int32 priority;
	TimestampTz run_at;
	TimestampTz expires_at;
	char worker[core::kNameMax]; // of the running or the last attempt; empty if it has no name

	const char *name() const noexcept;
};

// The job must not have been moved or purged.
JobNow job_now(const Db &db, const journal::Candidate &row, const journal::Fold &fold, Micros now) noexcept;

} // namespace tq
