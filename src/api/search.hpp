// Finding the jobs of a queue that are in certain states, by reading the segments: for tq_retry_many and tq_purge.
// Regime: PG; may ereport.
#pragma once

#include "live/segments.hpp"
#include "live/verbs.hpp"

namespace tq::api
{

constexpr uint32 bit_of(journal::FoldState state) noexcept { return 1U << static_cast<int>(state); }

// What is looked for. The ids found outlive the scan, in `context`.
struct Search
{
	MemoryContext context = nullptr;
	int32 queue_id = 0;
	const char *kind = nullptr;			  // null: all
	TimestampTz since = journal::kNoTime; // ended (waiting: enqueued) then or later
	core::Micros now = 0;
	uint32 ended = 0;	// bits of FoldState
	uint32 waiting = 0; // bits of live::State: ready, delayed
	int64 *ids = nullptr;
	int64 n = 0;
	int64 room = 0;
};

// Adds the ids of the jobs of one segment that match, ascending.
void search_segment(Search *search, const live::SegmentView &segment);

// The segments there are, segment 0 first; allocated in the current context.
live::SegmentView *segments_of(const live::Db &db, int *n);

// Takes the lock that keeps the janitor from dropping a segment before this transaction has ended. False if it came too late.
bool keep_segment(const live::SegmentView &segment);

} // namespace tq::api
