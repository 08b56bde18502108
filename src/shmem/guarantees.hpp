// Whether the sizes of shared memory allow the guaranteed shares of all queues and databases (core/share.hpp).
// Regime: PG; warn_of_sizes reports, the rest only allocates. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// A size that guarantees a slot to fewer holders than there can be.
struct ShortSize
{
	const char *setting;
	int value;
	const char *slots;	 // what the setting counts
	const char *holders; // "queues" or "databases"
	const char *limit;	 // the setting for their number
	int most;			 // its value
	int guaranteed;		 // holders with a guaranteed slot
	int needed;			 // the least value of `setting` for all holders; 0: it cannot be that high
};

// How many of the databases have a guaranteed slot for a queue.
int guaranteed_databases() noexcept;

constexpr int kSizes = 4;
// Returns the number of sizes in `out` that are too small.
int short_sizes(ShortSize (&out)[kSizes]) noexcept;

// What to set, for a hint.
const char *advice(const ShortSize &s);

// Reports them in the log, at server start.
void warn_of_sizes();

} // namespace tq
