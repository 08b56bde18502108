// Words the core and everything above it share.
// Regime: core (no PostgreSQL header may be included here, in src/core).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace tq::core
{

using JobId = int64_t;
using LeaseNo = int64_t;
using Micros = int64_t; // wall clock: microseconds since 2000-01-01 UTC; monotonic clock: since boot
using Ref = uint32_t;	// index into one of the arrays in shared memory

constexpr Ref kNil = UINT32_MAX;
constexpr Micros kNever = INT64_MAX;
constexpr size_t kNameMax = 64; // bytes of a queue's, kind's or worker's name with the final zero

// The order of a lane: lower priority number first, then the older job.
struct Key
{
	int32_t priority;
	JobId id;
	friend constexpr auto operator<=>(const Key &, const Key &) = default;
};
constexpr Key kMinKey{INT32_MIN, INT64_MIN};
constexpr Key kMaxKey{INT32_MAX, INT64_MAX};

// Where the state of a job entry may be. Jobs that are terminal, or only on disk, have no entry.
enum class State : uint8_t
{
	none,		 // entry is free
	placeholder, // a loader is asking the journal about this job
	committing,	 // enqueued by a transaction between PRE_COMMIT and COMMIT
	ready,
	delayed,
	running,
	terminal, // only as what a mark leads to: the entry goes at commit
	blocked,  // waits for its parents; only while somebody is about to change it
};
constexpr int kStates = 8;

// What an open transaction is about to do to an entry (its mark).
enum class Verb : uint8_t
{
	none,
	enqueue,
	claim,
	complete,
	fail,
	release,
	bury,
	cancel,
	retry,
	reschedule,
	lose,	// the scheduler's: lease lost
	expire, // the scheduler's
	move,	// the janitor's: to segment 0
	erase,	// the janitor's: a finished row of segment 0 is deleted
	kill,	// the scheduler's: aborted too often
	purge,	// tq_purge: of a job that waits
	forget, // ... of one that has ended; also when it is retried in another queue
	checkpoint,
	free, // the scheduler's: its parents have ended
};

// Whether a running job with this mark goes on running when the mark's transaction commits.
constexpr bool goes_on(Verb mark) noexcept
{
	return mark == Verb::none || mark == Verb::claim || mark == Verb::checkpoint;
}

} // namespace tq::core
