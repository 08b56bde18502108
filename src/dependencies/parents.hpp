// depends_on and options.batch: a job's parents, and the batch that waits for it.
// Regime: PG; may ereport. Locks: a row of tq.dependency, shared, for jobs that join a batch; kept to the end of the
// transaction.
#pragma once

#include "dependencies/awaited.hpp"
#include "jobs/outcome_rights.hpp"

namespace tq
{

constexpr int kMostParents = 1000;

struct Parent
{
	core::JobId id;
	bool own;	// enqueued by this transaction
	Passes passes; // to the child
};

// What the jobs of one call wait for, and the batch that waits for them.
struct Waiting
{
	Parent *parents;
	int nparents;
	core::JobId batch; // 0: none
	char on_failure;   // for the jobs: c (cancel) or r (run)
};

// Reads depends_on, which is argument `i` of the called function, into the row. The row already has the options. Raises
// TQ004 for parents that do not exist or that the caller may not know of. Call it before the jobs are enqueued.
Waiting read_waiting(Db &db, FunctionCallInfo fcinfo, int i, journal::JobRow *row);

// What a call has done with its jobs.
struct Made
{
	core::JobId *made;
	int nmade;
	core::JobId *holders; // jobs that have the unique keys of jobs that were not made
	int nholders;
	core::JobId *replaced; // jobs that made way for those that were made
	int *elements;		   // those that replaced them, for for_element()
	int nreplaced;
};

// Writes the dependencies of the jobs that were made. The holders of keys join the batch, too, as far as they have
// records. Raises 22023 if a job would wait for itself, since it depends on a job that waits for the job that it
// replaces.
void write_waiting(Db &db, const Waiting &waiting, const Made &jobs);

// What a blocked job waits for, as the end of a sentence: "waits for job 17".
char *what_it_waits_for(Db &db, core::JobId id);

// Raises TQ004 if there is no such batch, and 42501 if the caller may not use it.
void check_batch(Db &db, core::JobId batch);

[[noreturn]] void raise_no_batch(core::JobId batch);
[[noreturn]] void raise_batch_closed(core::JobId batch);

} // namespace tq
