// The counts of one pass over the journal (recount.hpp), job by job.
// Regime: PG; may ereport. Locks: queue locks, held only inside.
#pragma once

#include "journal/journal.hpp"
#include "residency/recount.hpp"

namespace tq
{

// The counts of one pass over the journal, in private memory.
struct Tally
{
	Db *db;
	bool first;		 // first load: entries are made
	int64 *lanes;	 // unfinished jobs by lane
	int64 *delayed;	 // of them: delayed, without an entry
	int64 *blocked;	 // of them: waiting for their parents
	uint32 *changes; // Lane::delayed_changes when the count began
	uint32 *frees;	 // Lane::frees when the count began
	int64 segment_live;
	int64 segment_dead;
	int slot;		// of the segment being read
	bool partial;	// a segment could not be read
	int64 regained; // jobs missing in memory, of segments that can be read again
	int naps;		// that waited for commit callbacks
	CountResult result;
	// Later counts: jobs that must be in memory but are not, allocated in `context`.
	MemoryContext context;
	pg::Array<JobId> must;
	int overdue;		// of them: have expired on disk
	Micros next_expiry; // of the jobs that stay on disk
	pg::Array<JobId> waiting;
	// The lane of the last row, which neighbours mostly share.
	int32 last_queue_id;
	char last_kind[core::kNameMax];
	bool last_has_kind;
	uint16_t queue;
	uint16_t lane;
};

// A journal::SegmentVisit; `tally` is a Tally. Counts the job. The first load installs it. Later counts look for it in
// memory, and repair memory if it lost the job.
void tally_job(const journal::Candidate &c, const journal::Fold &fold, const journal::Values &, void *tally);

} // namespace tq
