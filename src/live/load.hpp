// Loading a database's live state from its journal, and counting again what it should be (R17, tq_check).
// Regime: PG; may ereport. Locks: map lock while the count's snapshot is taken and when its result is put in place.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// A counter that memory had wrong.
struct Drift
{
	enum Counter : uint8
	{
		unfinished, // jobs of a lane
		blocked,	// of them: that wait for their parents
		of_segment	// unfinished jobs of a segment
	} counter;
	int32 where; // lane, or number of the segment
	int64 was, is;
};

// What a count found that memory did not agree with.
struct CountResult
{
	int64 jobs;		  // rows read
	int64 unfinished; // of them
	int64 drifted;	  // lanes or segments whose counters were not what the journal says
	int64 missing;	  // jobs that memory had lost (now to be read in again)
	int64 unknown;	  // unfinished jobs of queues that do not exist
	int64 orphans;	  // jobs that wait for others, of whom nobody knows
	int64 outdated;	  // jobs in memory that did not know of an event in the journal (dropped, or read in again)
	Drift drifts[4];  // the first of those that had drifted
};

// Which they were, for a log; null if none had.
const char *describe_drifts(const CountResult &result);

// Reads all unfinished segments under one snapshot. The first time it fills the live state (entries are only added) and the database
// becomes loaded; later it only compares and repairs counters, and sinks watermarks under jobs that have no entry where they should.
// The caller holds db.loader (try_become_loader).
CountResult count_journal(Db &db);

// One process at a time loads or counts. Released by give_up_loader, also at error or exit while it counts.
bool try_become_loader(Db &db) noexcept;
void give_up_loader(Db &db) noexcept;

// Becomes loader if possible, counts, gives up; false if somebody else is at it. Errors pass through, with the role given up.
bool load_or_count(Db &db, CountResult *result);

// Asks for a recount of this session's database: tables were changed from outside (R6).
void request_reload(Db &db) noexcept;
void request_reload() noexcept;

// Jobs that are nowhere to be found may be yet to come: segments are not whole, or somebody still writes to them; rows of others are
// visible only when their COPY ends. What is true now may be so for ten minutes after the last change from outside.
bool restore_may_be_under_way(const Db &db) noexcept;

// The same for a database that nobody uses yet, but in which somebody has written past tq: its tables may come in any order, so what tq does
// by itself and cannot take back waits.
bool copy_is_coming(const Db &db) noexcept;

// The same at commit of the open transaction (the reload triggers).
void mark_reload() noexcept;

} // namespace tq::live
