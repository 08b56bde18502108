// Walks over the jobs of one segment by id, from either end: for lists that go on where the last call stopped.
// Regime: PG; may ereport. Locks: AccessShareLock on both tables, from open to close.
#pragma once

#include "journal/journal.hpp"

namespace tq::journal
{

struct WalkTerms
{
	bool newest = true; // from the greatest id down
	int64 low = 1;		// ids, both included
	int64 high = PG_INT64_MAX;
	// Only jobs of one queue (0: all), through its indexes. With many kinds, groups or priorities the walk passes other
	// jobs, too.
	int32 queue_id = 0;
	const char *kind = nullptr; // empty: none
	const char *group_key = nullptr; // needs queue_id
	// Only jobs that ended in one of these states (bits of FoldState; 0: all). The walk reads the events and fetches
	// only the rows of such jobs, unless few of the segment's jobs belong to the queue; then it passes all of these.
	uint32 ended = 0;
	// Only jobs enqueued in this time. Narrows the ids by bisection, since later jobs have greater ids; so rows written
	// by hand may be left out. The caller allows for clocks that went back.
	TimestampTz from = kNoTime;
	TimestampTz to = kNoTime;
};

// One step of a walk, to the next id.
struct WalkStep
{
	int64 id;
	bool found; // there is a job to look at; otherwise the step only passed `id`
	Candidate job;
};

// Opaque; allocated in the current context.
struct Walk;
// Has no steps if the segment is gone or has no such ids. The caller keeps the snapshot registered.
Walk *walk_open(const Segment &segment, const WalkTerms &terms, Snapshot snapshot);
bool walk_next(Walk *walk, WalkStep *out);
void walk_close(Walk *walk);

// The work done so far: one for an event that was passed, some for a row, more for an index descent, and many for a
// table that this session has not used recently. A unit is about a third of a microsecond when the pages are cached.
int64 walk_cost(const Walk *walk);

// Folds the events of a job of this segment.
void walk_fold(Walk *walk, int64 id, Fold *fold);

// The keys of the job of the last step. Only for a walk over all jobs, without queue_id and `ended`.
JobKeys walk_keys(const Walk *walk);

// Finds a job of this segment by its id. Moves the scan, so do not call walk_next() afterwards.
bool walk_find(Walk *walk, int64 id, Candidate *out);

// Reads a row that a step found, with payload and headers cut to kMostShown. False if it is gone.
bool walk_row(Walk *walk, const Candidate &job, JobRow *row);

// The reason of an event of a job of this segment; null if there is none.
const char *walk_reason(Walk *walk, int64 job_id, int32 step);

// Calls visit for each event in `pages` pages of a segment's event table from page `first` on. False if there are no
// further pages. Needs no walk.
using EventVisit = void (*)(int64 job_id, int32 step, EventType type, void *arg);
bool scan_event_pages(const Segment &segment, Snapshot snapshot, uint32 first, uint32 pages, EventVisit visit,
					  void *arg);

} // namespace tq::journal
