// What the resolver could not look at: a segment that somebody has locked, or a row that cannot be read, must not hold up the other jobs.
// Regime: PG; nothing here raises. Locks: none, it is the scheduler's own memory.
#pragma once

#include "live/shared.hpp"

namespace tq::workers
{

constexpr int kLate = 500;
constexpr int kNoSegment = -1;
constexpr int kFollowUp = -2; // what follows a job: no segment either, but no business of the other jobs

// A pass, of which not more than a part may fail, since each failure may have waited for a lock.
void begin_pass() noexcept;
bool gave_up() noexcept;
bool end_pass() noexcept; // false: for some of it there was no room

// A lock on a segment, or for what follows a job, was not to be had: for a while nobody waits for it again.
void shut(int slot) noexcept;
bool is_shut(int slot) noexcept;

// A parent, or minus a child, that was not tried, or that failed: it is tried again later, what failed last. False: there is no room.
bool put_off(core::JobId note) noexcept;
void note_failed(core::JobId note) noexcept;

int take_late(core::JobId *out) noexcept; // whose time has come, at most kLate
core::Micros next_late() noexcept;		  // monotonic; kNever

// Whether an error of this code is worth a line in the log, where the same one was a moment ago.
bool is_news(int code) noexcept;

} // namespace tq::workers
