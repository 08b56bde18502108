// When the janitor seals, empties and drops a segment. The rules only read; note_future and note_progress store what
// they see in the segment's slot.
// Regime: PG; noexcept. Locks: none.
#pragma once

#include "queues/queue_retention.hpp"
#include "segments/segments.hpp"

namespace tq
{

// True if the pause is over. A pause that began in the future counts as over, so that setting the clock back blocks
// nothing.
constexpr bool is_over(core::Micros since, core::Micros length, core::Micros now) noexcept
{
	return since + length <= now || since > now;
}

// The values for all segments of a database at one moment.
struct SegmentRules
{
	Retention keep;
	core::Micros now;
	bool scarce;	   // half of the slots are in use
	core::Micros pace; // least time between two segments, so that slots do not run out
	// If half of tq.max_segments outlive retention: the slot of the segment with the smallest part of its jobs left,
	// which is emptied at any cost; else -1.
	int sparsest;
};

// How long ago `at`, one of the segment's times, was. A time in the future means that the clock was ahead when the time
// was noted. Then the monotonic clock counts from the moment at which a worker saw that (note_future). So a date far
// ahead delays little, and a clock that is behind for a while ends no retention early.
core::Micros age_of(const SegmentView &s, TimestampTz at, const SegmentRules &rules) noexcept;

SegmentRules rules_of(const Db &db, const pg::Array<SegmentView> &map, core::Micros now) noexcept;

// True if so few of a segment's `rows` outlive retention that moving these `jobs` costs less than the space it frees.
// From a finished segment, up to a hundred dead letters are always moved.
constexpr bool few_outlive(int64 rows, int64 jobs, bool finished) noexcept
{
	return jobs * 2 <= rows || (finished && jobs <= 100);
}

// True if the clock was ahead when this time was noted. Clocks of two processes may differ a little.
bool is_future(TimestampTz at, const SegmentRules &rules) noexcept;

// Records whether one of a segment's times lies in the future. The scheduler calls it every second for numbered
// segments. The janitor calls it for segment 0, because it reads the times of its jobs.
void note_future(const Db &db, const SegmentView &s, bool future) noexcept;
bool has_future(const SegmentView &s, const SegmentRules &rules) noexcept;

// Records whether the jobs of a sealed segment are ending. The scheduler calls it every second.
void note_progress(const Db &db, const SegmentView &s) noexcept;

// The open segment is full, old or damaged: the janitor opens the next one, which seals it.
bool wants_next(const Db &db, const SegmentView &open, const SegmentRules &rules) noexcept;

// A sealed segment with expired retention, whose live jobs are to be moved to segment 0.
bool wants_emptying(const SegmentView &s, const SegmentRules &rules) noexcept;

// A finished segment with expired retention. Its dead letters may have to be moved first.
bool wants_dropping(const SegmentView &s, const SegmentRules &rules) noexcept;

// Segment 0 has ended jobs, and was not cleaned lately.
bool zero_wants_cleaning(const Db &db, const SegmentView &zero, const SegmentRules &rules) noexcept;

} // namespace tq
