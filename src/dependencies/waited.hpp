// A job that has waited for its parents, and waits for them again.
// Regime: PG; may ereport. Locks: as tq_retry for the job; rows of tq.dependency that it inserts.
#pragma once

#include "jobs/job_control.hpp"
#include "pg/array.hpp"
#include "pg/owner.hpp"

namespace tq
{

// A job that has waited for its parents.
struct Waited
{
	int32 next_step = 0;		// 0: it is no such waiter, or has no parents
	bool begun = false;			// then: its parents had ended, and it has begun
	bool for_parents = false;	// the resolver has cancelled it because of its parents
	bool freed = false;			// its parents had ended
	bool runs_anyway = false;	// on_parent_failure
	bool is_callback = false;	// of a batch
	ArrayType *depends_on = nullptr;
	Jsonb *detail = nullptr; // for_parents: of that event (resolver.cpp); freed: the outcomes that it was given
};

enum class Waiter : uint8
{
	ended, // and can be retried
	free,  // its parents have ended, and it has not begun
};

// As this transaction sees it, with its own changes.
Waited find_waited(const Db &db, core::JobId id, Waiter is);

// The parents of a job that is no callback.
pg::Array<core::JobId> parents_of(const Waited &w);

// Whether the detail has the outcome of a parent.
bool had_succeeded(Jsonb *detail, core::JobId parent);

// What is known of a parent now.
enum class Now : uint8
{
	lives,
	succeeded,
	failed, // or is gone
};
Now parent_now(const Db &db, core::JobId id);

// Runs a statement as the owner. Returns a column of its first row, in the current memory context.
Jsonb *read_jsonb(Db &db, pg::Statement &statement, Datum *values, const char *nulls, const char *column);

// What a job has waited for, in the form of the event that cancels a job because of its parents. tq.edge has what the
// job is given; without it, the right of the role that retries it decides.
Jsonb *detail_for(Db &db, core::JobId id, const Waited &w, const pg::Array<core::JobId> &parents);

// Blocks the job, and writes the dependencies that the resolver has deleted. Outcomes of parents that have succeeded
// are kept; the resolver looks at the others. The failures of the parents in `forgiven` do not cancel the job.
JobResult block(Db &db, JobRequest r, const Waited &w, Jsonb *detail, const pg::Array<core::JobId> &forgiven);
// The same for the callback of a batch: the batch has kept its rows. It runs although some of its jobs have failed.
JobResult block_callback(Db &db, JobRequest r, const Waited &w);
// Whether an ended callback that was freed waits when it is retried: a job of its batch that had failed lives again.
bool some_job_lives(Db &db, core::JobId callback);

} // namespace tq
