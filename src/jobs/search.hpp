// Finds the jobs of a queue that are in certain states, by reading the segments: for tq_retry_many, tq_purge, tq_reset
// and tq_dead_groups.
// Regime: PG; may ereport.
#pragma once

#include "jobs/verbs.hpp"
#include "segments/segments.hpp"
#include "pg/array.hpp"

namespace tq
{

constexpr uint32 bit_of(journal::FoldState state) noexcept { return 1U << static_cast<int>(state); }

// The conditions. The ids found are allocated in `context`, so they outlive the scan.
struct Search
{
	MemoryContext context = nullptr;
	int32 queue_id = 0;					  // 0: all
	const char *kind = nullptr;			  // null: all
	TimestampTz since = journal::kNoTime; // ended (waiting: enqueued) at this time or later
	core::Micros now = 0;
	uint32 ended = 0;	// bits of FoldState
	uint32 waiting = 0; // bits of State, of jobs that have not ended
	pg::Array<int64> ids;
};

// Adds the ids of the matching jobs of one segment, in ascending order.
void search_segment(Search *search, const SegmentView &segment);

// Locks out the janitor from dropping a segment before this transaction ends. False if the segment is gone.
bool keep_segment(const SegmentView &segment);

} // namespace tq
