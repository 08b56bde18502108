// What callers pass to the engine, and what they get from it.
// Regime: core. Locks: none.
#pragma once

#include "core/layout.hpp"

namespace tq::core
{

// Functions that the process supplies to the core.
struct Platform
{
	void (*lock_partition)(uint32_t partition, bool exclusive) noexcept;
	void (*unlock_partition)(uint32_t partition) noexcept;
	void (*wake)(uint32_t proc) noexcept;	 // set a backend's latch
	// a timer now ends at `at`, which may be before the scheduler's planned wakeup; `monotonic`: by which clock
	void (*sooner)(uint32_t db, Micros at, bool monotonic) noexcept;
	void (*want_refill)(uint32_t db) noexcept; // a lane or a group has few jobs in memory and more on disk
	Micros (*mono)() noexcept;				   // the monotonic clock
	// a queue with Queue::call has a startable job and no waiter for it
	void (*startable)(uint32_t db) noexcept = nullptr;
	void (*end_progress)(uint16_t slot) noexcept = nullptr; // a lease with progress in this slot ended
	void (*has_unsent)(uint32_t db) noexcept = nullptr; // a queue that notifies has its first unsent event
	JobId (*next_id)(uint32_t db) noexcept = nullptr; // the id that the next enqueued job gets
};

// Slots that are guaranteed to queues.
struct Guarantees
{
	uint32_t entries;
	uint32_t groups;
	uint32_t kinds;
};

// What the queues of a queue's creator have together; without one: what the queue has. Exact under the registry lock,
// except for progress.
struct Holder
{
	uint32_t queues, kinds, progress;
	uint32_t lent; // kinds of the pool
};

// A job that gets an entry.
struct NewEntry
{
	uint16_t lane;
	JobId id;
	int32_t priority;
	State state;		  // placeholder or committing
	bool reserve = false; // may use the entries kept for pins
	Ref group = kNil;	  // slot of its group, kNil if it has none
};

// What a claim gives to its jobs, and which kinds it takes.
struct ClaimTerms
{
	uint32_t owner;
	uint32_t worker;	 // kNil: none
	uint32_t lease_ms;	 // 0: the job's, else the queue's, else default_lease_ms
	uint32_t default_lease_ms;
	Micros wall;
	Micros mono;
	Binding binding;	   // worker: `worker` is known
	const uint64_t *kinds; // hashes of the kinds wanted
	int nkinds;			   // 0: any
	bool except = false;   // all except those kinds
	uint32_t default_timeout_ms = 0; // of an attempt, if the queue sets none; 0: none
};

// Which limit, if any, blocks a waiting group.
enum class Block : uint8_t
{
	none,
	paused,	 // tq_pause with group_key
	running, // Engine::group_limit()
	held,	 // the job before it waits for its next attempt
	rate,
	disk, // its next job is being read in
};

// Whether Engine::mark has marked an entry.
enum class MarkResult : uint8_t
{
	ok,
	busy, // another transaction has marked it, or its job is not published
};

// Segments that a session has locked, so that no event can be appended to them for now.
struct LockedSegments
{
	const Micros *until = nullptr; // by segment slot: when to try it again
	Micros now = 0;
	bool skipped = false; // a job of such a segment was skipped
	bool has(uint16_t segment) const noexcept { return until != nullptr && until[segment] > now; }
};

// Entries that must not start again: those that had `aborts` rolled-back claims in a row (or their own max_attempts of
// them), or a cancel request while they ran. fire_due() marks them `kill` by `owner`, and puts them in out[n]. Without
// `out` it stops at the first one and only counts it.
struct Doom
{
	int aborts;
	uint32_t owner = kNil;
	Ref *out = nullptr;
	int n = 0;
};

// The mark that an entry had before collect_lost().
struct PrevMark
{
	Verb mark;
	uint32_t owner;
};

// Which leases collect_lost() ends.
struct LossTerms
{
	Micros until;
	int max;
	uint32_t owner;
	bool strict = false; // see Engine::lease_end
};

// How far revoke_leases() has walked through the lease tree.
struct LeasePosition
{
	Micros timer = kLongAgo;
	JobId id = 0;
};

} // namespace tq::core
