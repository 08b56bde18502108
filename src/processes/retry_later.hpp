// What the scheduler retries later: segments that another session has locked, for all of its work, and jobs that the
// resolver (src/dependencies) could not check. Neither a locked segment nor an unreadable row delays the other jobs.
// Regime: PG; nothing here raises. Locks: none, this is the scheduler's own memory.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

constexpr int kLate = 500;
constexpr int kNoSegment = -1;
constexpr int kFollowUp = -2; // follow-ups of a job: no segment, and other jobs do not depend on them

// A pass of the resolver. The number of failed checks in it is limited, since each failure may have waited for a lock.
void begin_pass() noexcept;
bool gave_up() noexcept;
bool end_pass() noexcept; // false: some of the failures did not fit

// Records that a lock on a segment, or for follow-ups, was not available. For a while the scheduler does not wait for
// it again.
void block_segment(int slot) noexcept;
bool is_segment_blocked(int slot) noexcept;
const core::Micros *blocked_untils() noexcept; // by slot of the segment, monotonic

// A note is a job that the resolver has to check: a parent, or minus a child. delay_note() delays one that the pass did
// not reach; false if the list is full. note_failed() delays one whose check failed: these are checked last. Call it
// only if gave_up() is false.
bool delay_note(core::JobId note) noexcept;
void note_failed(core::JobId note) noexcept;

int take_late(core::JobId *out) noexcept; // due notes, at most kLate
core::Micros next_late() noexcept;		  // monotonic; kNever

// Should an error with this code be logged? False if the same code was logged a moment ago.
bool is_new_error(int code) noexcept;

} // namespace tq
