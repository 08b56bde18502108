// Loads a database's live state from its journal, and counts the journal again to check it (R17, tq_check).
// Regime: PG; may ereport. Locks: map lock while taking the count's snapshot and while storing its result.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// A counter that was wrong in memory.
struct Drift
{
	enum Counter : uint8
	{
		unfinished, // jobs of a lane
		blocked,	// unfinished jobs of a lane that wait for parents
		of_segment	// unfinished jobs of a segment
	} counter;
	int32 where; // lane, or number of the segment
	int64 was, is;
};

// The result of a count, with differences between memory and journal.
struct CountResult
{
	int64 jobs;		  // rows read
	int64 unfinished; // of these rows
	int64 drifted;	  // counters of lanes or segments that differed from the journal
	int64 missing;	  // jobs that were missing in memory; they are read in again
	int64 unknown;	  // unfinished jobs of queues that do not exist
	int64 orphans;	  // jobs that wait for parents and have no row in tq.dependency
	Drift drifts[4];  // the first drifted counters
};

// Describes result.drifts for a log; null if there are none.
const char *describe_drifts(const CountResult &result);

// Reads all unfinished segments under one snapshot. The first time it fills the live state, only adding entries, and
// the database becomes loaded. Later it repairs counters and lowers watermarks to jobs that wrongly have no entry. The
// caller holds db.loader (try_become_loader).
CountResult count_journal(Db &db);

// One process at a time loads or counts. give_up_loader, an error or the process's exit releases the role.
bool try_become_loader(Db &db) noexcept;
void give_up_loader(Db &db) noexcept;

// Takes the role if possible, counts and releases the role, also on an error, which it passes on. False if another
// process has the role.
bool load_or_count(Db &db, CountResult *result);

// From _PG_init: ensure_loaded (database/attach.hpp) loads with load_or_count.
void register_loader();

// `count` counts the blocked jobs found by a count that no row of tq.dependency will free.
void set_orphan_counter(int64 (*count)(Db &db, const JobId *ids, int64 n));

} // namespace tq
