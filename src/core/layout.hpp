// What lies in shared memory: entries (live jobs), lanes, queues, waiters, workers. Plain structs that live at the same
// place for every process but refer to each other by index.
// Regime: core. Lock words: Q = the lock of the entry's queue; P = the lock of its hash partition; R = the registry lock.
#pragma once

#include <atomic>
#include <type_traits>

#include "core/histogram.hpp"
#include "core/limits.hpp"
#include "core/retry.hpp"
#include "core/treap.hpp"
#include "core/types.hpp"

namespace tq::core
{

// Flags of an entry (Q).
enum EntryFlag : uint16_t
{
	kOverride = 1,		   // its key is not its row's index key: never evicted
	kHasCheckpoint = 2,	   // the claim must look for the last checkpoint
	kBound = 4,			   // the lease ends with its session
	kLogged = 8,		   // the open claim is journalled
	kCancelAsked = 16,	   // a heartbeat answers `cancel`
	kClaimListed = 32,	   // is in the queue's list of claims to be journalled
	kHardTimeout = 128,	   // hard_deadline counts
	kClaimEnded = 256,	   // marked by the reaper while its claiming transaction was open, which has ended since
	kHeld = 512,		   // delayed after an attempt: in a strict group those behind it wait
	kOwnRetry = 1024,	   // its row has a retry policy of its own
	kUnique = 2048,		   // its row has a unique key
	kOwnOptions = 4096,	   // its row has options, one of which may say what follows it
};

// A live job. Everything by Q, except hash_next (P); `id`, `queue` and `lane` are set before the entry is
// published in the hash and change only after it left it.
struct Entry
{
	JobId id;
	LeaseNo lease;		  // running: number of the live lease; 0 otherwise
	Micros timer;		  // key in the due tree (wall) or the lease tree (monotonic, never later than deadline)
	Micros deadline;	  // running: when the lease ends (monotonic)
	Micros hard_deadline; // running: when the attempt must end (monotonic)
	Micros claimed_at;	  // running: wall
	Micros expires_at;	  // wall; kNever
	Links main;			  // ready, due or lease tree
	Links aux;			  // running: claim list (left = previous, right = next); ready, delayed: expiry tree, or the list of expired
	Ref hash_next;		  // P; in the free list: next free
	uint32_t block;		  // where the row is: heap block,
	uint16_t offset;	  // line pointer,
	uint16_t segment;	  // slot in the database's segment map
	int32_t priority;	  // effective
	int32_t step;		  // next step of its journal
	uint32_t lease_ms;	  // running: length of the current lease
	uint32_t owner;		  // backend whose open transaction marked it; meaningless without mark
	uint32_t group;		  // slot of its group, kNil if none
	uint16_t worker_slot; // running: in the table of workers, see worker()
	uint16_t weight;	  // in hundredths, 0: 1
	uint16_t after_claim; // running: steps taken since the claim took its own
	uint16_t progress;	  // running: slot + 1 of what a heartbeat reported, 0 if none
	uint16_t attempt;	  // attempts used in this life
	uint16_t max_attempts; // 0: the queue's
	uint16_t queue;
	uint16_t lane;
	State state;
	State pending; // with mark: the state after the owner's commit
	Verb mark;
	uint8_t aborts; // claims in a row whose transaction rolled back
	uint16_t flags;
	uint16_t home; // queue + 1 while the job has this entry, 0 when it is free. Written under Q, but read by `is` whatever
				   // queue is locked, so always atomically

	Key key() const noexcept { return Key{priority, id}; }
	uint32_t worker() const noexcept { return worker_slot != UINT16_MAX ? worker_slot : kNil; }
	void set_worker(uint32_t w) noexcept { worker_slot = w < UINT16_MAX ? static_cast<uint16_t>(w) : UINT16_MAX; }
	bool has(EntryFlag f) const noexcept { return (flags & f) != 0; }
};
static_assert(sizeof(Entry) <= 136);
static_assert(std::is_trivially_copyable_v<Entry>);

// Counters that a recount can check: `live` moves with every transaction that publishes or ends jobs; while a recount is under way
// `delta` takes what its snapshot does not see (docs/architecture.md). Q
struct Counted
{
	int64_t live;
	int64_t delta;
};

// One (queue, kind): the unit of paging. All by Q.
struct Lane
{
	char kind[kNameMax];
	uint64_t kind_hash; // 0 for no kind
	Key watermark;		// ready jobs below are in memory; kMaxKey: all are
	Key limit;			// while a loader is at work: the least key it may have missed
	Root ready;			// jobs without a group, by key
	Root heads;			// the next job of each group that may start one, by priority, turn, id
	Ref first;			// in_startable: the job that starts next,
	double turn;		// and its turn when the lane took its place
	Key evictable;		// no ready entry with a greater key may be evicted
	Links startable;	// in the queue's tree of lanes that can serve a claim
	Counted count;
	int64_t delayed_disk;	 // delayed jobs that have no entry, due at or after the timers' watermark
	uint32_t delayed_changes; // how often that has changed
	uint32_t frees;			  // how often its place was freed (registry lock and Q): what a count met before was another lane's
	int32_t blocked;		 // jobs that wait for their parents: as `count`, of which they are a part
	int32_t delta_blocked;
	uint32_t counts[kStates]; // entries by state
	Micros asked_at;		 // last claim that named its kind (wall); 0: none
	Micros paused_until;	 // 0: not paused; kNever: until resumed
	uint64_t startable_at;	 // the queue's startable_seq when a job of this lane last became startable
	uint32_t loader;		 // backend that refills it, kNil
	uint16_t queue;
	uint16_t next; // next lane of the queue, kNoLane
	bool used;
	bool has_kind;
	bool in_startable;
	bool tail; // the loader is near the end: newly committed jobs get entries again
	bool delayed_counted; // delayed_disk has what the last count of the journal has seen (map lock)

	void count_delayed(int64_t n) noexcept
	{
		delayed_disk += n;
		++delayed_changes;
	}
};
constexpr uint16_t kNoLane = UINT16_MAX;

enum class QueueState : uint8_t
{
	free,
	creating, // named, its row not yet written
	active,
	closing, // tq_drop_queue committed: no enqueue
	reserved, // named by an open tq_create_queue
};

// The jobs of a queue that have the same group_key. Those that are ready wait here; the next one is offered to claims through its lane
// while the group may start one. By Q, but hash_next (P). A slot is kept as long as an entry refers to it, jobs of it may be on disk only,
// or it remembers something: what it used of its rate, or that it had its turn.
constexpr size_t kGroupMax = 128; // bytes of a group_key with the final zero
struct Group
{
	char key[kGroupMax];
	uint64_t hash;
	Key watermark;	  // its ready jobs below are in memory; kMaxKey: all are
	Key limit;		  // while a loader is at work: the least key it may have missed
	Root ready;		  // by key, without the head
	Bucket bucket;	  // of group_rate
	Links timer;	  // in the queue's tree of groups that may not start yet, or of those that rest
	Micros opens_at;  // its key in the former (monotonic)
	double turn;	  // fair: the virtual time at which its next job is due
	Ref head;		  // in its lane's `heads`, kNil
	Ref hash_next;	  // P; in the free list: next free
	Ref wanted_next;  // in the queue's list of groups to be read in
	uint32_t entries; // that refer to it
	uint32_t running;
	uint32_t held;	  // jobs that those behind them wait for although they do not run
	uint32_t loader;  // backend that reads it in, kNil
	uint16_t queue;
	uint16_t home; // queue + 1 while it is used, 0 when it is free: as Entry::home, see Engine::owns
	bool wanted;   // is in the queue's list
	bool opening;  // is in the tree
	bool resting;  // is in the other tree
};

// What a queue's settings come to; a zero or kUnset means: the server's default. Q
constexpr int32_t kUnset = INT32_MIN;
enum class OnLost : uint8_t // what becomes of a job whose lease was lost
{
	unset,
	retry,
	bury,
	dead,
};
enum class Flag : uint8_t // a boolean that may be left to the server's default
{
	unset,
	off,
	on,
};
struct QueueSettings
{
	int32_t priority = kUnset;
	int32_t max_attempts = kUnset;
	int64_t lease_ms = kUnset;
	int64_t lease_grace_ms = kUnset;
	int64_t retention_ms = kUnset;
	int64_t dead_retention_ms = kUnset;
	int64_t timeout_ms = kUnset;	// of an attempt; 0: none
	int64_t expires_in_ms = kUnset; // from enqueue to the latest start; 0: never
	int64_t unique_for_ms = kUnset; // 0: while live only
	int64_t cancel_grace_ms = kUnset; // from the request to a running job until its lease is taken
	int64_t max_depth = kUnset;		// live jobs; 0: no limit
	int32_t max_running = kUnset;	// 0: no limit
	int32_t executors = kUnset;		// at work for its handlers at the same time; unset: no limit
	int32_t group_max_running = kUnset; // 0: no limit; unset: 1, with `fair` no limit
	Rate rate;						// of starts
	Rate group_rate;
	Rate enqueue_rate;
	float weight = 1;				// in tq_claim_any
	OnLost on_lost = OnLost::unset;
	Flag strict_timeout = Flag::unset;
	bool loose_groups = false; // group_order: a job that waits for its next attempt does not hold up its group
	bool fair = false;		   // groups take turns
	bool has_retry = false;
	bool notifies = false; // the name of the channel is in its row
	uint8_t followed = 0;  // ends after which another job is enqueued, by bit (live::end_bit); which one is in its row
	RetryPolicy retry;
	bool limited() const noexcept { return max_running > 0 || rate.limits(); }
};

// What has happened in a queue that notifies since it was last told of. Q
struct News
{
	uint32_t enqueued, finished, dead;
};

// All by Q but: name, id, db, state, generation change only under Q and R both.
struct Queue
{
	char name[kNameMax];
	uint64_t name_hash;
	uint32_t generation; // grows when the slot is used for another queue
	int32_t id;			 // tq.queue.id
	uint16_t db;		 // database slot
	uint16_t lanes;		 // first lane, kNoLane
	QueueState state;
	bool persisted; // its row is committed
	bool call;		// tell Platform::startable when a job becomes startable that nobody waits for, once
	uint32_t creator; // role that named it and gets the first rights on it; 0: nobody needs any
	uint32_t writer; // backend + 1 whose open transaction writes its row, because no scheduler was there; 0 if none
	std::atomic<uint32_t> users; // open transactions that enqueued here (H12): raised before `state` is read, so a queue that
								 // is closing and has none gets no more
	Micros paused_until;
	Micros asked_at; // last claim of jobs of whatever kind (wall); 0: none
	QueueSettings settings;
	Root startable; // lanes by their first key
	Root due;		// delayed entries by wall time
	Micros evictable; // none of them with a later time may be evicted
	Root leases;	// running entries by monotonic time
	Root expiry;	// entries that nobody has started, by expires_at
	Ref expired_head; // of them, those a claim has found too late, for the scheduler: marked `expire` by nobody
	Ref claims_head; // running entries whose claim is not journalled yet, oldest first
	Ref claims_tail;
	Ref waiters_head;
	Ref waiters_tail;
	Root opening;			// groups by opens_at
	Root resting;			// fair: groups without jobs whose turn is still to come, by turn
	Ref wanted;				// groups to be read in, the one that has waited longest first; kNil
	Ref wanted_tail;
	Bucket starts;			// of rate
	Bucket enqueues;		// of enqueue_rate
	Micros rate_opens_at;	// jobs wait for `rate` until then (monotonic), kNever if none do
	Micros starts_from;		// what started before is not known (monotonic)
	double vclock;			// fair: the turn of the job claimed last
	double loose_turn;		// fair: the turn of the jobs without a group
	uint32_t running;		// entries in state running
	uint32_t groups;		// that have a slot; a hint without Q
	uint32_t sunk_groups;	// groups that may have jobs on disk only
	uint32_t group_loads;	// of them: being read in
	int64_t admitted;		// jobs enqueued by open transactions, counted for max_depth
	uint64_t startable_seq; // grows whenever a job becomes startable
	uint32_t tokens;		// granted to waiters that have not left yet
	std::atomic<Micros> next_due;	// read without Q by the scheduler: the least of `due`
	std::atomic<Micros> next_lease; // ... of `leases`
	std::atomic<Micros> next_claim; // claimed_at of the oldest unlogged claim
	std::atomic<Micros> next_expiry; // the least of `expiry`; 0 while there are expired ones
	std::atomic<Micros> next_open;	// ... of `opening` and rate_opens_at
	std::atomic<bool> want_refill;	// a lane or a group runs dry with jobs on disk
	std::atomic<bool> discover;		// groups without a slot may have jobs on disk,
	std::atomic<bool> discovering;	// and are being looked for
	std::atomic<bool> has_news;		// for the scheduler to tell; written by Q
	News news;
	// totals since start
	uint64_t enqueued, claimed, succeeded, failed, lost, dead, released, cancelled, expired;
	Histogram waits; // until their first claim, of jobs whose time nobody has changed
	Histogram runs;	 // of attempts, from claim to end
};

// A backend waiting for a job of one queue. Q of that queue.
constexpr int kWaiterKinds = 8;
struct Waiter
{
	Ref prev, next;
	uint32_t proc;
	uint16_t queue;
	bool linked;
	bool granted; // a token: some job became startable for it
	uint32_t generation; // the queue's when it entered
	uint64_t since;		 // the queue's startable_seq when it entered: what was startable then it has seen itself
	uint8_t nkinds; // 0: any
	uint64_t kinds[kWaiterKinds];
};

// A worker as named in tq_claim. R for name and use; counters atomic.
struct Worker
{
	char name[kNameMax];
	uint64_t name_hash;
	uint16_t db;
	bool used;
	std::atomic<bool> draining;
	std::atomic<int32_t> running;
	std::atomic<Micros> seen_at;   // wall: last claim or heartbeat, for people
	std::atomic<Micros> seen_mono; // monotonic: it has asked or held a job until then at least; what forgets it goes by this
	std::atomic<int64_t> claimed;
};

// Part of a database's state that the core works on.
struct DbCore
{
	// Delayed jobs due before it are in memory; those at or after it may be on disk only. Without a lock: see
	// Engine::sink_timer.
	std::atomic<Micros> timer_watermark;
	std::atomic<Micros> timer_limit;
	std::atomic<LeaseNo> next_lease;
	std::atomic<LeaseNo> lease_limit; // numbers from here on are not reserved: nobody claims
};

// A running entry's attempt ends at `at` (monotonic) whatever its heartbeats say. Its place in the lease tree is the caller's affair.
inline void set_hard_deadline(Entry &e, Micros at) noexcept
{
	e.hard_deadline = at;
	e.flags |= kHardTimeout;
	e.timer = at < e.deadline ? at : e.deadline;
}

inline void lower(std::atomic<Micros> &a, Micros to) noexcept
{
	Micros now = a.load();
	while (to < now && !a.compare_exchange_weak(now, to))
	{
	}
}

inline void raise_to(std::atomic<LeaseNo> &a, LeaseNo to) noexcept
{
	LeaseNo now = a.load();
	while (now < to && !a.compare_exchange_weak(now, to))
	{
	}
}

} // namespace tq::core
