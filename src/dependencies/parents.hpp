// depends_on and options.batch: a job's parents, and the batch that waits for it.
// Regime: PG; may ereport. Locks: a row of tq.dependency, shared, for jobs that join a batch; kept to the end of the
// transaction.
#pragma once

#include "dependencies/awaited.hpp"

namespace tq
{

constexpr int kMostParents = 1000;

struct Parent
{
	core::JobId id;
	bool own;	// enqueued by this transaction
	bool shown; // the child gets its result
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

// Writes the dependencies of jobs that were enqueued.
void write_waiting(Db &db, const Waiting &waiting, const core::JobId *made, int n);

// What a blocked job waits for, as the end of a sentence: "waits for job 17".
char *what_it_waits_for(Db &db, core::JobId id);

// Raises TQ004 if there is no such batch, and 42501 if the caller may not use it.
void check_batch(Db &db, core::JobId batch);

[[noreturn]] void raise_no_batch(core::JobId batch);
[[noreturn]] void raise_batch_closed(core::JobId batch);

} // namespace tq
