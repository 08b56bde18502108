// depends_on, and options.batch: what a job waits for, and what waits for it.
// Regime: PG; may ereport. Locks: a row of tq.dependency, shared, for jobs that join a batch; kept to the end of the transaction.
#pragma once

#include "api/enqueue.hpp"
#include "live/dependencies.hpp"

namespace tq::api
{

constexpr int kMostParents = 1000;

struct Parent
{
	core::JobId id;
	bool own;	// enqueued by this transaction
	bool shown; // the child is given its result
};

// What the jobs of one call wait for, and the batch that waits for them.
struct Waiting
{
	Parent *parents;
	int nparents;
	core::JobId batch; // 0: none
	char on_failure;   // of the jobs: c or r
};

// Argument `i` of the called function is depends_on; the options are in the item's row, which receives its depends_on. Raises TQ004
// for parents that do not exist, or that the caller may not know of. To be called before the jobs are enqueued.
Waiting read_waiting(live::Db &db, FunctionCallInfo fcinfo, int i, EnqueueItem *item);

// Writes it down for those of the jobs that are new.
void write_waiting(live::Db &db, const Waiting &waiting, const EnqueueItem *items, int n, const int64 *ids);

// What a blocked job waits for, as the end of a sentence: "waits for job 17".
char *what_it_waits_for(live::Db &db, core::JobId id);

// Raises TQ004, 42501: is there such a batch, and may the caller use it?
void check_batch(live::Db &db, core::JobId batch);

[[noreturn]] void raise_no_batch(core::JobId batch);
[[noreturn]] void raise_batch_closed(core::JobId batch);

} // namespace tq::api
