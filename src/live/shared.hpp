// The live state in shared memory: the core's region, one slot per database, and the locks.
// Lock order: segment map (of a database) -> registry -> queue -> hash partition. Nothing that may raise an error, allocate or
// wait is called under any of them, with one exception: live/recount.cpp takes a snapshot under the map lock.
// Regime: PG.
#pragma once

#include "pg/prelude.hpp"

#include "core/engine.hpp"
#include "journal/journal.hpp"
#include "live/clock.hpp"

namespace tq::live
{

using core::Engine;
using core::Entry;
using core::JobId;
using core::Key;
using core::kNil;
using core::Lane;
using core::LeaseNo;
using core::Queue;
using core::Ref;
using core::State;
using core::Verb;

enum class SegmentState : uint8
{
	free,
	open,	  // takes jobs; at most one
	sealed,	  // takes none
	finished, // every job terminal; waits for retention
	dropping,
};

// A segment as the map knows it. By the map lock, but for the atomics.
struct SegmentSlot
{
	int32 number;
	Oid job;
	Oid event;
	int64 first_id; // ids of its jobs lie in first_id .. last_id (0 for segment 0, which is looked into last)
	int64 last_id;	// PG_INT64_MAX while open
	TimestampTz opened_at;
	TimestampTz sealed_at;
	TimestampTz finished_at;
	SegmentState state;
	std::atomic<int64> rows; // appended jobs
	std::atomic<int64> live; // committed jobs that are not terminal
	std::atomic<int64> delta; // what `live` gained since the snapshot of a recount under way
	std::atomic<int64> dead; // of the terminal ones: dead or buried (they outlive ordinary retention)
	std::atomic<uint32> dead_changes; // how often a commit has changed that
	std::atomic<TimestampTz> looked_at; // when the janitor has moved all that can be moved out of it since it was finished; 0: not yet
};

enum class LoadState : uint32
{
	none,	 // nobody has asked yet
	mapped,	 // segments are known; enqueue works
	loading, // a process reads the journal
	loaded,
};

// What a count of the journal sees; ids of transactions with their epochs. All zero: nothing.
struct CountSnapshot
{
	uint64 xmin, xmax;
	int32 nxip; // those running between the two: count_xip, counted_xip
};

// Which jobs others wait for (live/dependencies.hpp). Without a lock.
constexpr uint32 kAwaitedBits = 16384;
constexpr uint32 kNoted = 256;
struct Awaited
{
	std::atomic<uint64> filter[kAwaitedBits / 64]; // by the hash of a parent's id
	std::atomic<int64> noted[kNoted]; // what the resolver is to look at: a parent, or minus a child; 0: free
	std::atomic<uint32> bits;		  // how many of the filter's are set; 0: nobody waits for anything
	std::atomic<uint32> emptied;	  // grows by two when the filter is emptied, odd meanwhile
	std::atomic<int32> openers;		  // transactions that may have looked at parents, and have not ended
	std::atomic<bool> some;			  // there is something in `noted`
	std::atomic<bool> all;			  // all of tq.dependency is to be looked through
	std::atomic<bool> complete;		  // every row there has its bit
};

// One database (and one extension in it: DROP and CREATE EXTENSION in one transaction must not meet).
// After an error; steady_now.
struct Pause
{
	std::atomic<Micros> until;
	std::atomic<Micros> length; // 0 if it went well
};

struct Db
{
	Oid database;  // registry lock
	Oid extension; // registry lock
	bool used;	   // registry lock
	std::atomic<uint32> load_state;
	std::atomic<uint32> loader;	  // procno + 1 of who loads or recounts, 0 if nobody
	std::atomic<uint32> timer_loader; // procno + 1 of who reads delayed jobs in, 0 if nobody
	std::atomic<bool> reload;	  // tables were touched from outside: recount and re-read
	std::atomic<uint32> outside_changes; // grows with each change of the tables from outside
	std::atomic<uint32> outside_adopted; // the last of them that the janitor has compared the segments after, if all were whole
	std::atomic<uint32> outside_counted; // the last of them that it has counted the journal after, if so
	std::atomic<Micros> outside_changed_at;
	std::atomic<Micros> adopt_at; // monotonic: the janitor looks again for segments that somebody had locked; 0: it need not
	std::atomic<uint32> ids_checked;	 // the last of them that the id counter was compared with
	std::atomic<bool> dormant;	  // a clone or restore: schedules and executors are held
	std::atomic<bool> was_fresh;  // tq.meta had no row, and nobody has activated the database since
	std::atomic<uint32> activations; // commits that ended that; counted before dormant is changed
	std::atomic<uint32> scheduler; // procno + 1, 0 if none
	std::atomic<Micros> plan_wall; // when the scheduler means to wake: anything sooner sets its latch
	std::atomic<Micros> plan_mono;
	std::atomic<bool> refill; // some queue wants a refill
	std::atomic<bool> queue_rows; // some queue's row is to be written
	std::atomic<bool> keys_clean; // tq.unique_key has no row, and none was written since
	std::atomic<Micros> keys_due; // when the janitor may look through it again; mono_now
	std::atomic<uint32> handler_changes; // grows when a commit has changed tq.handler
	std::atomic<uint32> queue_changes; // grows before a commit changes a slot: who read the rows before must read them again
	std::atomic<uint32> schedule_changes; // grows with each commit that changes schedules
	Awaited awaited;
	std::atomic<int64> next_id; // drawn with the map lock shared
	std::atomic<int64> id_limit;
	int32 nsegments;  // map lock; slots 0 .. nsegments - 1 have been in use
	int32 open;		  // map lock; slot that takes jobs
	// counts of the journal (map lock)
	bool counting;
	CountSnapshot count;   // of the one under way
	CountSnapshot counted; // of the last that came to its end
	// figures
	std::atomic<int64> loads, refilled, evicted, aborted_claims, claims_logged, rows_gone, lost_found;
	std::atomic<int64> audits, drifted, outdated; // counts after the first load, and what they found
	std::atomic<int64> fires, fires_missed, fires_failed, fires_again; // of schedules
	std::atomic<int64> follow_ups_lost; // could not be enqueued when a job ended
	std::atomic<Micros> follow_up_logged_at;
	std::atomic<int64> rows_unknown; // by the last count: unfinished jobs of queues that do not exist
	std::atomic<int64> orphans;		 // by the last count: jobs that wait for others, of whom nobody knows
	std::atomic<Micros> loaded_at, load_took;
	std::atomic<Micros> counted_at;	 // last recount
	std::atomic<Micros> warned_at;	 // last time the log said that there is no room for another segment
	std::atomic<Micros> cleaned_at;	 // last time segment 0 was cleaned
	Pause opening; // of the janitor, which comes and goes,
	Pause tidying; // and for all else that it does
};

extern Engine engine;			// process-local view
extern uint32 my_proc;			// this backend's number

void request_shmem();			// shmem_request_hook
void init_shmem();				// shmem_startup_hook
bool preloaded() noexcept;

Db &db_at(int i) noexcept;
SegmentSlot &segment_at(const Db &db, int slot) noexcept;
TransactionId *count_xip(const Db &db) noexcept;
TransactionId *counted_xip(const Db &db) noexcept;
uint16_t index_of(const Db &db) noexcept;

inline journal::Segment tables_of(const SegmentSlot &s) noexcept { return {s.number, s.job, s.event}; }

// Locks.
LWLock *registry_lock() noexcept;
LWLock *map_lock(const Db &db) noexcept;
LWLock *queue_lock(uint16_t queue) noexcept;
inline void lock_queue(uint16_t q) noexcept { LWLockAcquire(queue_lock(q), LW_EXCLUSIVE); }
inline void unlock_queue(uint16_t q) noexcept { LWLockRelease(queue_lock(q)); }

// A job's weight as its entry has it.
inline uint16_t hundredths(float4 weight) noexcept // 0 for what is no weight, such as NaN
{
	return weight > 0 ? static_cast<uint16_t>(std::min(weight * 100, 65535.0F)) : 0;
}

void wake_proc(uint32 proc) noexcept;
void wake_scheduler(const Db &db) noexcept;

// Wait points (DESIGN section 10): with -DTQ_TEST a process can be made to stop, fail, leave or die at a named place. Where nothing may
// fail (commit, abort and exit callbacks, between a commit and what follows from it) it is TQ_WAIT_POINT_NOFAIL.
#ifdef TQ_TEST
void wait_point(const char *name);
void wait_point_nofail(const char *name) noexcept;
#define TQ_WAIT_POINT(name) ::tq::live::wait_point(name)
#define TQ_WAIT_POINT_NOFAIL(name) ::tq::live::wait_point_nofail(name)
#else
#define TQ_WAIT_POINT(name) static_cast<void>(0)
#define TQ_WAIT_POINT_NOFAIL(name) static_cast<void>(0)
#endif

} // namespace tq::live
