// Terms that the core and all code above it share.
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
constexpr Micros kSecond = 1000000;
constexpr Micros kNever = INT64_MAX;
constexpr size_t kCacheLine = 64; // bytes; separates data of different writers
constexpr size_t kNameMax = 64; // bytes of a queue's, kind's or worker's name with the final zero

// The order of a lane: lower priority number first, then the older job. Jobs that became ready again may have a later
// place, see Engine::line_up.
struct Key
{
	int32_t priority;
	JobId id;
	int64_t turn = 0; // among the jobs with the same place; 0: the job with this id
	friend constexpr auto operator<=>(const Key &, const Key &) = default;
};
constexpr Key kMinKey{INT32_MIN, INT64_MIN};
constexpr Key kMaxKey{INT32_MAX, INT64_MAX};

// The state of a job entry. Terminal jobs and jobs that are only on disk have no entry.
enum class State : uint8_t
{
	none,		 // entry is free
	placeholder, // a loader is reading the job's journal
	committing,	 // enqueued by a transaction between PRE_COMMIT and COMMIT
	ready,
	delayed,
	running,
	terminal, // only as a pending state: the entry is freed at commit
	blocked,  // waits for its parents; only while a change of the job is open
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
	lose,	// scheduler: lease lost
	expire, // scheduler
	move,	// janitor: to segment 0
	erase,	// janitor: deletes a finished row of segment 0
	kill,	// scheduler: aborted too often
	purge,	// tq_purge of a waiting job
	forget, // tq_purge of an ended job; also its retry in another queue
	checkpoint,
	free, // scheduler: its parents have ended
};

// What ends a lease early.
enum class Binding : uint8_t
{
	none,
	session, // the end of the session that claimed
	worker,	 // the worker, see Engine::lease_end
};

// Whether a running job with this mark keeps running after the commit.
constexpr bool stays_running(Verb mark) noexcept
{
	return mark == Verb::none || mark == Verb::claim || mark == Verb::checkpoint;
}

inline uint64_t hash_name(const char *s) noexcept // FNV-1a, 64 bits; never 0
{
	uint64_t h = 0xcbf29ce484222325ULL;
	for (; *s != '\0'; ++s)
		h = (h ^ static_cast<unsigned char>(*s)) * 0x100000001b3ULL;
	return h != 0 ? h : 1;
}

} // namespace tq::core
