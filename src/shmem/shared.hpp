// The live state in shared memory: the core's region, one slot per database, and the locks.
// Lock order: segment map (of a database) -> registry -> queue -> hash partition. Code under any of them calls nothing
// that may raise an error, allocate or wait, with one exception: residency/recount.cpp takes a snapshot under the map
// lock.
// Regime: PG.
#pragma once

#include "pg/prelude.hpp"

#include "core/engine.hpp"
#include "journal/journal.hpp"
#include "shmem/clock.hpp"

namespace tq
{

using core::Engine;
using core::Entry;
using core::JobId;
using core::Key;
using core::kNil;
using core::kNoQueue;
using core::Lane;
using core::LeaseNo;
using core::Queue;
using core::Ref;
using core::State;
using core::Verb;

enum class SegmentState : uint8
{
	free,
	open,	  // accepts jobs; at most one
	sealed,	  // accepts no jobs
	finished, // every job terminal; waits for retention
	dropping,
};

// Values of SegmentSlot::ended that stand for every state, so that no reader skips the segment. kAnyEnd: not known yet.
// kReadingEnds: not known, and the janitor is reading the segment to find out.
constexpr uint8 kAnyEnd = 0xFF;
constexpr uint8 kReadingEnds = 0xFE;

// A segment in the map. The map lock protects everything except the atomics.
struct SegmentSlot
{
	int32 number;
	Oid job;
	Oid event;
	SegmentState state;
	std::atomic<bool> skipped; // a loader has skipped it because it was locked
	// How jobs of a finished segment may have ended: bits of journal::FoldState, from succeeded to expired, or one of
	// the values above.
	std::atomic<uint8> ended;
	std::atomic<bool> damaged; // a read has failed: loads and the janitor leave it out
	int64 first_id; // its jobs have ids first_id .. last_id (0 for segment 0, which is searched last)
	int64 last_id;	// PG_INT64_MAX while open
	TimestampTz opened_at;
	TimestampTz sealed_at;
	TimestampTz finished_at;
	std::atomic<Micros> noted_at; // when the scheduler last saw `live` grow, or fall by a 16th (steady_now); 0: never
	// Lookups by id read the fields above; commits write those below.
	alignas(core::kCacheLine) std::atomic<int64> rows; // appended jobs
	std::atomic<int64> live; // committed jobs that are not terminal
	std::atomic<int64> delta; // change of `live` since the snapshot of the count under way
	std::atomic<int64> dead; // ended jobs that are dead or buried (kept longer)
	std::atomic<uint32> dead_changes; // number of commits that changed `dead`
	std::atomic<int32> noted_live; // `live` at noted_at
	// When the janitor last read the finished segment and had no job left to move to segment 0; 0: not yet.
	std::atomic<TimestampTz> looked_at;
	std::atomic<Micros> again_at; // the janitor does not scan it before this (steady_now)
	// When a time in this segment was first seen to be in the future (mono_now); 0: none is.
	std::atomic<Micros> future_since;

	void forget_counts() noexcept
	{
		for (std::atomic<int64> *count : {&rows, &live, &delta, &dead, &looked_at, &again_at, &noted_at, &future_since})
			count->store(0);
		ended.store(kAnyEnd);
		damaged.store(false);
		skipped.store(false);
	}
};
static_assert(sizeof(SegmentSlot) == 2 * core::kCacheLine);

enum class LoadState : uint32
{
	none,	// not requested yet
	mapped, // segments are known; enqueue works
	loaded,
};

// What the snapshot of a count sees; transaction ids include their epochs. All zero: nothing. A count reads the journal
// and compares memory with it: the first load, or an audit (residency/README.md).
struct CountSnapshot
{
	uint64 xmin, xmax;
	int32 nxip; // number of running transactions in between: count_xip, counted_xip
};

// Jobs that others wait for (dependencies/awaited.hpp). No lock.
constexpr uint32 kAwaitedBits = 16384;
constexpr uint32 kNoted = 256;
struct Awaited
{
	std::atomic<uint64> filter[kAwaitedBits / 64]; // by the hash of a parent's id
	std::atomic<int64> noted[kNoted]; // ids for the resolver: a parent, or minus a child; 0: free
	std::atomic<uint32> bits;		  // number of bits set in the filter; 0: no job waits
	std::atomic<uint32> emptied;	  // grows by two when the filter is emptied; odd meanwhile
	std::atomic<int32> openers;		  // open transactions that may have read parents
	std::atomic<bool> some;			  // `noted` is not empty
	std::atomic<bool> all;			  // the resolver must read all of tq.dependency, as when `noted` was full
	std::atomic<bool> complete;		  // every row of tq.dependency has its bit

	void forget() noexcept; // for a slot with a new database
};

// Delay of work after an error; steady_now.
struct Backoff
{
	std::atomic<Micros> until;
	std::atomic<Micros> length; // 0 after a success
};

// The slot of a database and its extension, by oid. A transaction that drops and creates the extension has two for a
// while.
struct Db
{
	Oid database;  // registry lock
	Oid extension; // registry lock
	bool used;	   // registry lock
	std::atomic<uint32> load_state;
	std::atomic<uint32> loader;	  // procno + 1 of the process that loads or recounts; 0: none
	std::atomic<uint32> timer_loader; // procno + 1 of the process that reads in delayed jobs; 0: none
	std::atomic<bool> reload;	  // a count is requested
	std::atomic<Micros> wall_offset, mono_offset; // of tq_set_now (clock.hpp)
	std::atomic<bool> active;	  // known to be active (database/activation.hpp)
	std::atomic<bool> lent;		  // not active since it got the slot; another database may take it (database/README.md)
	std::atomic<bool> first_use;  // a session asks a worker to record the first use
	std::atomic<bool> new_here;	  // the first use was after the start of the server
	std::atomic<uint32> scheduler; // procno + 1, 0 if none
	// The scheduler's planned wakeup; an earlier event sets its latch.
	std::atomic<Micros> plan_wall;
	std::atomic<Micros> plan_mono;
	std::atomic<bool> refill; // some queue wants a refill
	std::atomic<bool> revocations; // leases of some workers were revoked (Worker::revoked)
	std::atomic<bool> skips; // some segment is `skipped`
	std::atomic<bool> queue_rows; // some queue's row must be written
	std::atomic<bool> keys_clean; // the janitor found tq.unique_key empty, and no row was written since
	std::atomic<Micros> actions_due; // when the janitor may look for old rows of tq.audit; mono_now
	std::atomic<Micros> keys_due; // when the janitor may check tq.unique_key again; mono_now
	std::atomic<bool> changes_clean; // the same for tq.change and tq.change_mark
	std::atomic<Micros> changes_due; // when the janitor may delete old changes; mono_now
	std::atomic<uint32> handler_changes; // number of commits that changed tq.handler
	// Grows before a commit changes the slots of queues. A process that read rows of tq.queue before reads them again.
	std::atomic<uint32> queue_changes;
	std::atomic<uint32> schedule_changes; // number of commits that changed schedules
	Awaited awaited;
	std::atomic<int64> next_id; // drawn with the map lock shared
	std::atomic<int64> id_limit;
	std::atomic<int64> greatest_id; // that the journal had when the segments were mapped
	int32 nsegments;  // map lock; slots 0 .. nsegments - 1 have been in use
	int32 open;		  // map lock; slot that takes jobs
	// Counts of the journal (map lock).
	bool counting;
	CountSnapshot count;   // the count under way
	CountSnapshot counted; // the last finished count
	// Statistics. rows_gone: claimed jobs whose row was deleted by hand; lost_found: jobs that a count found missing in
	// memory; the others: introspection/metrics.cpp.
	std::atomic<int64> loads, refilled, evicted, aborted_claims, claims_logged, rows_gone, lost_found;
	std::atomic<int64> regained; // jobs of segments that were damaged and could be read again
	// The longest time in which a COMMIT of a thousand or more changes published them, with interrupts held.
	std::atomic<Micros> longest_publish;
	std::atomic<int64> read_again; // jobs both evicted and refilled in the last minute
	std::atomic<int64> committing; // jobs that committing transactions have changed, but not yet published
	std::atomic<int64> audits, drifted; // counts after the first load, and their findings
	std::atomic<int64> fires, fires_missed, fires_failed; // of schedules
	std::atomic<int64> schedules_unreadable; // rows that the scheduler skipped when it last read them
	std::atomic<int64> follow_ups_lost; // follow-ups that could not be enqueued when a job ended
	std::atomic<Micros> follow_up_logged_at;
	// Since when (mono_now) jobs wait because all executors are busy, as the scheduler last saw it; 0: none waits.
	std::atomic<Micros> executors_full_since;
	std::atomic<bool> too_small; // the last load lacked memory for jobs that must have an entry
	std::atomic<bool> load_failed; // the last load ended with an error
	std::atomic<int32> load_read;  // segments that the load under way has read
	std::atomic<Micros> load_began; // of the last load
	std::atomic<int64> rows_unknown; // in the last count: unfinished jobs of queues that do not exist
	std::atomic<int64> orphans;		 // in the last count: jobs that wait for parents without a row
	std::atomic<Micros> loaded_at, load_took;
	std::atomic<Micros> counted_at;	 // last recount
	std::atomic<Micros> rested_at;	 // when an audit may next begin because jobs expired on disk (steady_now)
	std::atomic<Micros> warned_at;	 // last log message that no segment can be added
	std::atomic<Micros> cleaned_at;	 // when segment 0 was last cleaned
	std::atomic<Micros> drops_wait_since; // since when drops wait for a snapshot (mono_now); 0: they do not
	Backoff opening; // the janitor's opening of segments
	Backoff tidying; // the janitor's other work

	void set_active() noexcept
	{
		lent.store(false);
		active.store(true);
	}
};

extern Engine engine;			// process-local view
extern uint32 my_proc;			// this backend's number

core::Limits limits();			// by the settings
void request_shmem();			// shmem_request_hook
void init_shmem();				// shmem_startup_hook
bool preloaded() noexcept;
bool server_crashed() noexcept; // before it was started, or it was a standby

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

// Whether is(slot, queue) holds for a queue of the database. Without a lock, so a queue may disappear meanwhile.
template <class Is> bool any_queue(const Db &db, Is &&is)
{
	const uint16_t d = index_of(db);
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		Queue &q = engine.queue(slot);
		if (q.state != core::QueueState::free && q.db == d && is(slot, q))
			return true;
	}
	return false;
}

// The same for the queues that have startable jobs. The cost hardly depends on the number of queues.
template <class Is> bool any_startable_queue(const Db &db, Is &&is)
{
	const uint16_t d = index_of(db);
	return engine.any_startable([d, &is](uint16_t slot) {
		const Queue &q = engine.queue(slot);
		return q.state != core::QueueState::free && q.db == d && is(slot);
	});
}

template <class Visit> void for_queues(const Db &db, Visit &&visit)
{
	static_cast<void>(any_queue(db, [&visit](uint16_t slot, Queue &q) { return visit(slot, q), false; }));
}

// Calls use(entry) under the queue's lock if memory has the job; false if it has not.
template <class Use> bool with_entry(const Db &db, JobId id, Use &&use) noexcept
{
	uint16_t queue = 0;
	const Ref ref = engine.find(index_of(db), id, &queue);
	if (ref == kNil)
		return false;
	lock_queue(queue);
	const bool found = engine.is(engine.queue(queue), ref, id);
	if (found)
		use(engine.entry(ref));
	unlock_queue(queue);
	return found;
}

// A job's weight in its entry's format.
inline uint16_t hundredths(float4 weight) noexcept // 0 for an invalid weight, such as NaN
{
	return weight > 0 ? static_cast<uint16_t>(std::min(weight * 100, 65535.0F)) : 0;
}

// Sleeps for so long, or until this process is woken. Raises what interrupts it.
void nap(long ms);
void wake_proc(uint32 proc) noexcept;
void wake_scheduler(const Db &db) noexcept;
void wake_scheduler_by(const Db &db, Micros wall) noexcept; // now, unless it will wake by that time
void wake_database() noexcept; // all sessions of this database

// The process id of a backend's number; 0 if there is no such number.
inline int32 pid_of(uint32 proc) noexcept
{
	return proc < ProcGlobal->allProcCount ? ProcGlobal->allProcs[proc].pid : 0;
}

// The slot of this backend's last call of database() (database/attach.hpp); null before. For callbacks.
Db *current_db() noexcept;
void set_current_db(Db &db) noexcept;

// The queue slot of a tq.queue id; kNoQueue if unknown.
uint16_t queue_of_id(const Db &db, int32 id) noexcept;

// Wait points: with -DTQ_TEST a test can make a process wait, fail, exit or die at a named place. Use
// TQ_WAIT_POINT_NOFAIL where nothing may fail: in commit, abort and exit callbacks, and right after a commit.
#ifdef TQ_TEST
void wait_point(const char *name);
void wait_point_nofail(const char *name) noexcept;
#define TQ_WAIT_POINT(name) ::tq::wait_point(name)
#define TQ_WAIT_POINT_NOFAIL(name) ::tq::wait_point_nofail(name)
#else
#define TQ_WAIT_POINT(name) static_cast<void>(0)
#define TQ_WAIT_POINT_NOFAIL(name) static_cast<void>(0)
#endif

} // namespace tq
