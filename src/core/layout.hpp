// Plain structs in shared memory: entries (live jobs), lanes, queues, waiters, workers. References are indexes.
// Regime: core. Locks: Q = lock of the entry's queue; P = lock of its hash partition; R = registry lock.
#pragma once

#include <atomic>
#include <type_traits>

#include "core/histogram.hpp"
#include "core/token_bucket.hpp"
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
	kOfWorker = 64,		   // the lease belongs to its worker, see Engine::lease_end
	kHardTimeout = 128,	   // hard_deadline counts
	kClaimEnded = 256,	   // the reaper marked it while its claiming transaction was open; that transaction has ended
	kHeld = 512,		   // delayed after an attempt: blocks the later jobs of a strict group
	kOwnRetry = 1024,	   // its row has a retry policy of its own
	kHandedOver = 2048,	   // the lease has gone to another worker, see Engine::catch_up
	kOwnOptions = 4096,	   // its row has options, such as a follow-up job
	kSuperseded = 8192,	   // a newer job has its unique key: it gets no further attempt
	kJournalFirst = 16384, // the open transaction that claimed it waits until the claim is journalled; without a mark:
						   // that transaction was rolled back, and the reaper ends the attempt
	kFlushed = 32768,	   // kJournalFirst: the journal has the claim on disk
};

// A live job. Q protects everything except hash_next (P). `id`, `queue` and `lane` are set before the entry enters the
// hash and change only after it has left it.
struct Entry
{
	JobId id;
	LeaseNo lease;		  // running: number of the live lease; 0 otherwise
	Micros timer;		  // key in the due tree (wall) or the lease tree (monotonic): when collect_lost() looks at it;
						  // kNever until start_lease()
	union
	{
		Micros deadline; // running: when the lease ends (monotonic)
		int64_t turn;	 // ready, with a place: the order of jobs with the same place
	};
	union
	{
		Micros hard_deadline; // running: when the attempt must end (monotonic)
		JobId place;		  // ready: its place in the lane, see Engine::line_up; 0: that of its id
	};
	Micros claimed_at;	  // running: wall
	Micros expires_at;	  // wall; kNever
	Links main;			  // ready, due or lease tree
	Links
		aux; // running: claim list (left = previous, right = next); ready, delayed: expiry tree, or the list of expired
	Ref hash_next;		  // P; in the free list: next free
	uint32_t block;		  // heap block of the row
	uint16_t offset;	  // line pointer of the row
	uint16_t segment;	  // slot in the database's segment map
	int32_t priority;	  // effective
	int32_t step;		  // next step of its journal
	uint32_t lease_ms;	  // running: length of the current lease
	uint32_t owner;		  // backend whose open transaction marked it; meaningless without mark
	uint32_t group;		  // slot of its group, kNil if none
	uint16_t worker_slot; // running: index in the table of workers, see worker()
	uint16_t weight;	  // in hundredths, 0: 1
	uint16_t after_claim; // steps after the last claim's own; kept after the attempt
	uint16_t progress;	  // running: progress slot + 1, 0 if none
	uint16_t attempt;	  // attempts used in this life
	uint16_t max_attempts; // 0: the queue's
	uint16_t queue;
	uint16_t lane;
	State state;
	State pending; // with mark: the state after the owner's commit
	Verb mark;
	uint8_t aborts; // consecutive claims whose transaction rolled back
	uint16_t flags;
	uint16_t
		home; // queue + 1 while a job has this entry, else 0. Atomic: `is` reads it under any queue's lock

	Key row_key() const noexcept { return Key{priority, id}; } // on disk, unless it has an override
	Key ready_key() const noexcept { return place == 0 ? row_key() : Key{priority, place, turn}; }
	Key key() const noexcept { return state == State::ready ? ready_key() : row_key(); }
	uint32_t worker() const noexcept { return worker_slot != UINT16_MAX ? worker_slot : kNil; }
	void set_worker(uint32_t w) noexcept { worker_slot = w < UINT16_MAX ? static_cast<uint16_t>(w) : UINT16_MAX; }
	bool has(EntryFlag f) const noexcept { return (flags & f) != 0; }
	Binding binding() const noexcept
	{
		return has(kBound) ? Binding::session : has(kOfWorker) ? Binding::worker : Binding::none;
	}
};
static_assert(sizeof(Entry) <= 136);
static_assert(std::is_trivially_copyable_v<Entry>);

// Counters that a recount checks. Each transaction that publishes or ends jobs changes `live`. During a recount,
// `delta` counts what its snapshot does not see (src/transaction/README.md). Locks: as in Lane
struct Counted
{
	int64_t live;
	int64_t delta;
};

// One (queue, kind): the unit of paging. By Q. A count of the journal writes the counters of live, blocked and delayed
// jobs under the exclusive map lock instead; commit callbacks hold that lock shared.
struct Lane
{
	char kind[kNameMax];
	uint64_t kind_hash; // 0 for no kind
	Key watermark;		// all earlier ready jobs are in memory; kMaxKey: all jobs are
	Key limit;			// while a loader runs: the least key it may have missed
	Key skipped; // a load skipped a locked segment from this key on: its jobs are on disk below the watermark
	Key resume;			// from the watermark to this key, only ids from `floor` on may be on disk; >= watermark
	JobId floor;
	Root ready;			// jobs without a group, by key
	Root heads;			// the next job of each group that may start one, by priority, turn, id
	Ref first;			// in_startable: the next job to start
	double turn;		// turn of `first` when the lane entered the tree
	Key evictable;		// no ready entry with a greater key may be evicted
	Links startable;	// in the queue's tree of lanes that can serve a claim
	Counted count;
	int64_t delayed_disk;	 // delayed jobs that have no entry, due at or after the timers' watermark
	uint32_t delayed_changes; // number of changes of delayed_disk
	std::atomic<uint32_t>
		frees; // how often the slot was freed (R and Q): a count compares it to detect another lane
	std::atomic<uint32_t> users; // open transactions that refer to it: incremented before `closing` is read
	int32_t blocked;		 // jobs that wait for their parents, a part of `count`
	int32_t delta_blocked;
	uint32_t counts[kStates]; // entries by state
	Micros asked_at;		 // last claim that named its kind (wall); 0: none
	uint64_t asked_by;		 // Worker::name_hash of that claim or, later, of a draining worker; 0: without a name
	Micros paused_until;	 // 0: not paused; kNever: until resumed
	uint64_t startable_at;	 // the queue's startable_seq when a job of this lane last became startable
	uint32_t loader;		 // backend that refills it, kNil
	uint16_t queue;
	uint16_t next; // next lane of the queue, kNoLane
	bool used;
	bool has_kind;
	bool in_startable;
	std::atomic<bool> closing; // it is about to be freed; written by R and Q
	bool tail; // the loader is near the end: newly committed jobs get entries
	bool delayed_counted; // delayed_disk includes the last count of the journal (map lock)

	void count_delayed(int64_t n) noexcept
	{
		delayed_disk += n;
		++delayed_changes;
	}
};
constexpr uint16_t kNoLane = UINT16_MAX;
constexpr uint16_t kNoQueue = UINT16_MAX;

enum class QueueState : uint8_t
{
	free,
	creating, // named, but its row is not written
	active,
	closing, // tq_drop_queue committed: no enqueue
	reserved, // named by an open tq_create_queue
};

// The jobs of a queue with the same group_key. Ready jobs wait here; the lane offers the next one to claims while the
// group may start one. Q, except hash_next (P). A slot stays while an entry refers to it, its jobs may be on disk only,
// a load reads it, it has settings or holds, or it remembers use of its rate or a turn.
constexpr size_t kGroupMax = 128; // bytes of a group_key with the final zero
constexpr int32_t kUnset = INT32_MIN;
// What a group has of its own (tq_pause and tq_limit_group with its key).
struct GroupSettings
{
	Micros paused_until = 0;	  // 0: not paused; kNever: until resumed
	int32_t max_running = kUnset; // 0: no limit; unset: the queue's group_max_running
	Rate rate;					  // none: the queue's group_rate
	bool any() const noexcept { return paused_until != 0 || max_running != kUnset || rate.limits(); }
};
struct Group
{
	char key[kGroupMax];
	JobId floor;	  // only jobs with ids from this one may be on disk
	Key watermark;	  // all earlier ready jobs are in memory; kMaxKey: all jobs are
	Key limit;		  // while a loader runs: the least key it may have missed
	Root ready;		  // by key, without the head
	Bucket bucket;	  // of its rate
	Links timer;	  // in the queue's tree `opening` or `resting`
	Micros opens_at;  // key in `opening` (monotonic)
	GroupSettings own; // a group that has any keeps its slot
	double turn;	  // fair: the virtual time at which its next job is due
	Ref head;		  // in its lane's `heads`, kNil
	Ref hash_next;	  // P; in the free list: next free
	Ref wanted_next;  // in the queue's list of groups to be read in
	Ref next, prev;	  // in the queue's list of all its groups
	uint32_t entries; // entries that refer to the slot
	uint32_t running;
	uint32_t held;	  // jobs that do not run but block later jobs
	uint32_t loader;  // backend that reads it in, kNil
	uint32_t holds;	  // open transactions that are about to give it settings
	uint16_t queue;
	uint16_t home; // queue + 1 while used, 0 when free: as Entry::home, see Engine::owns
	bool wanted;   // in the queue's list `wanted`
	bool opening;  // in the tree `opening`
	bool resting;  // in the tree `resting`
};

// Sums for the limits of a queue: running jobs, pinned jobs, and a checksum of its groups' counters. The sums over
// entries and over counters are equal, unless a counter is wrong or a change is under way.
struct LimitSums
{
	uint32_t running;
	uint32_t pinned;
	uint64_t groups;
	bool operator==(const LimitSums &) const = default;
};

// The settings of a queue; zero or kUnset means the server's default. Q
enum class OnLost : uint8_t // what happens to a job whose lease was lost
{
	unset,
	retry,
	bury,
	dead,
};
enum class Flag : uint8_t // a boolean with a server default
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
	int64_t change_retention_ms = 0; // how long changes are kept for tq_changes; 0: none are recorded
	int64_t cancel_grace_ms = kUnset; // from the cancel request to the loss of the lease
	int64_t max_depth = kUnset;		// live jobs; 0: no limit
	int32_t max_running = kUnset;	// 0: no limit
	int32_t executors = kUnset;		// executors running its handlers at once; unset: no limit
	int32_t group_max_running = kUnset; // 0: no limit; unset: 1, with `fair` no limit
	Rate rate;						// of starts
	Rate group_rate;
	Rate enqueue_rate;
	float weight = 1;				// in tq_claim_any
	OnLost on_lost = OnLost::unset;
	Flag strict_timeout = Flag::unset;
	bool loose_groups = false; // group_order: a job that waits to be retried does not block its group
	bool fair = false;		   // groups take turns
	bool by_readiness = false; // order: jobs that became ready again start after older ready jobs
	bool has_retry = false;
	bool notifies = false; // the row has the channel's name
	uint8_t followed = 0;  // ends that enqueue a follow-up, by bit (end_bit); the row names the follow-up
	RetryPolicy retry;
};

// Events in a queue with `notify` since its last notification. Q
struct NotifyCounts
{
	uint32_t enqueued, finished, dead;
};

// Q, except that name, id, db, state and generation change only under both Q and R.
struct Queue
{
	char name[kNameMax];
	uint64_t name_hash;
	uint16_t next_of_name; // in its bucket of Engine::find_queue, kNoQueue; by R
	uint32_t generation; // grows when the slot is used for another queue
	int32_t id;			 // tq.queue.id
	uint16_t db;		 // database slot
	uint16_t lanes;		 // first lane, kNoLane
	QueueState state;
	bool persisted; // its row is committed
	bool sets_groups; // some of its groups may have settings of their own; Q
	bool call;		// call Platform::startable once when a job becomes startable and no waiter waits for it
	// Role that created the queue by the privilege create, and got its first rights; 0: the queue was created otherwise
	uint32_t creator;
	uint32_t writer; // backend + 1 whose open transaction writes the row instead of a scheduler; 0: none
	// No attempt has ended since the server crashed: claims are journalled before their jobs are handed out.
	std::atomic<bool> careful;
	QueueSettings settings;
	std::atomic<Micros>
		next_fire; // when its next schedule is due (wall), kNever if it has none; written by the scheduler alone
	// The fields above are mostly read; each enqueue and claim writes those below.
	alignas(kCacheLine)
		std::atomic<uint32_t> users; // open transactions that enqueued here (H12); raised before `state` is read,
									 // so a closing queue without users gets none
	Micros paused_until;
	Micros asked_at; // last claim of jobs of any kind (wall); 0: none
	uint64_t asked_by; // as in Lane
	Root startable; // lanes by their first key
	Root due;		// delayed entries by wall time
	Micros evictable; // no due entry with a later time may be evicted
	Root leases;	// running entries by monotonic time
	Root expiry;	// entries that no claim has started, by expires_at
	Ref expired_head; // expired entries that a claim set aside for the scheduler, not marked `expire` yet
	Ref claims_head; // running entries with an unjournalled claim, in the order of their commits
	Ref claims_tail;
	Ref waiters_head;
	Ref waiters_tail;
	Root opening;			// groups by opens_at
	Root resting;			// fair: groups without jobs whose turn is in the future, by turn
	Ref groups_head;		// all groups that have a slot; kNil
	Ref wanted;				// groups to be read in, the longest waiting first; kNil
	Ref wanted_tail;
	Bucket starts;			// of rate
	Bucket enqueues;		// of enqueue_rate
	Micros rate_opens_at;	// when open_due() wakes the waiters: the rate allows a start, or slots of the pool may be
							// free (monotonic); kNever
	Micros starts_from;		// earlier starts are unknown (monotonic)
	double vclock;			// fair: the turn of the job claimed last
	double loose_turn;		// fair: the turn of the jobs without a group
	uint32_t running;		// entries in state running
	uint32_t entries;		// entries of the queue's jobs; a hint without Q
	uint32_t pinned;		// entries that cannot be evicted; a hint without Q
	uint32_t kinds;			// lanes of kinds; written by R and Q, a hint without
	uint32_t progress;		// entries with progress
	uint32_t groups;		// groups with a slot; a hint without Q
	uint32_t paged_lanes;	// lanes that may have jobs on disk only
	uint32_t paged_groups;	// groups that may have jobs on disk only, see Engine::count_paged
	uint32_t group_loads;	// groups being read in
	int64_t admitted;		// jobs enqueued by open transactions, counted for max_depth
	uint64_t startable_seq; // grows whenever a job becomes startable
	int64_t turns;			// given to jobs that became ready again
	uint32_t tokens;		// granted to waiters that are still registered
	std::atomic<Micros> next_due;	// read without Q by the scheduler: the least of `due`
	std::atomic<Micros> next_lease; // ... of `leases`
	std::atomic<Micros> next_claim; // claimed_at of the first of the list of claims
	std::atomic<Micros> next_expiry; // the least of `expiry`; 0 while there are expired ones
	std::atomic<Micros> next_open;	// ... of `opening` and rate_opens_at
	std::atomic<bool> want_refill;	// a lane or a group has few jobs in memory and more on disk
	std::atomic<bool> discover;		// groups without a slot may have jobs on disk
	std::atomic<bool> discovering;	// a search for such groups is under way
	std::atomic<bool> has_unsent;	// unsent notifications for the scheduler; written by Q
	NotifyCounts unsent;
	// totals since start
	uint64_t enqueued, claimed, succeeded, failed, lost, dead, released, cancelled, expired;
	Histogram waits; // until the first claim, of jobs whose time was not changed
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
	uint32_t generation; // generation of the queue at entry
	uint64_t since;		 // startable_seq of the queue at entry: the waiter has seen all earlier startable jobs
	uint8_t nkinds; // 0: any
	uint64_t kinds[kWaiterKinds];
	uint64_t workers; // bits of the workers it claims for, see worker_bit; 0: none
};

// The bit of a worker's name in Waiter::workers. Names may share one.
inline uint64_t worker_bit(uint64_t name_hash) noexcept { return uint64_t{1} << (name_hash % 64); }

// A process that waits for many queues (core/watchers.cpp). Its queues are bits in Region::watch_bits_. It has one
// token at a time. No lock, except where noted.
constexpr uint32_t kWatcherPairs = 256;
struct Watcher
{
	// The low word tells whether it waits, and the queue of its token. The high word counts registrations.
	std::atomic<uint64_t> state;
	std::atomic<uint32_t> npairs; // 0: every kind of all its queues
	uint32_t generation;		  // of the token's queue; by the lock of that queue
	std::atomic<uint64_t> pairs[kWatcherPairs]; // sorted: watched_pair of its kinds, and of kSomeKinds for their queues
};
constexpr uint64_t kSomeKinds = 0x5bd1e9955bd1e995ULL; // marks a queue whose kinds are listed
uint64_t watched_pair(uint16_t queue, uint64_t kind) noexcept;

// A worker as named in tq_claim. R for name, role, use and `restored`; the rest atomic.
constexpr Micros kLongAgo = INT64_MIN;
constexpr int kRestoredQueues = 8;
struct Worker
{
	char name[kNameMax];
	uint64_t name_hash;
	uint32_t role; // role that gave the name; 0: the journal
	uint16_t db;
	bool used;
	std::atomic<bool> draining;
	std::atomic<int32_t> running;
	int nrestored; // of `restored`
	std::atomic<Micros> seen_at;   // wall: last claim or heartbeat, for display
	std::atomic<Micros> seen_mono; // monotonic: its last claim or held job; eviction uses this
	std::atomic<int64_t> claimed;
	// Its own leases (kOfWorker), see Engine::lease_end.
	std::atomic<Micros> beat{kLongAgo}; // monotonic: its last heartbeat
	std::atomic<Micros> until{kNever};  // monotonic: without a heartbeat by then they end
	std::atomic<LeaseNo> revoked;		// those with lower numbers have ended; 0: none, or their walk is over
	std::atomic<LeaseNo> ended;			// the last number that `revoked` had, see Engine::catch_up
	std::atomic<int32_t> leases;		// that have not ended
	std::atomic<int32_t> asked;			// of these, those asked to stop
	// Queues of the leases that a load found, while `role` is unknown. More than the array holds: kRestoredQueues + 1.
	uint16_t restored[kRestoredQueues];
};

// The part of a database's state that the core uses.
struct DbCore
{
	// Delayed jobs due before it are in memory; later ones may be on disk only. No lock: see lower_timer_watermark.
	std::atomic<Micros> timer_watermark;
	std::atomic<Micros> timer_limit;
	std::atomic<Micros> timer_skipped; // a load skipped a locked segment from this time on
	// No waiting job that is on disk only expires before it; an audit reads in those that have expired. No lock.
	std::atomic<Micros> disk_expiry;
	std::atomic<LeaseNo> next_lease;
	std::atomic<LeaseNo> lease_limit; // numbers from this one are not reserved: no claims
	std::atomic<uint32_t> kinds; // sum of Queue::kinds; written by R
	std::atomic<uint32_t> lent_entries; // pinned entries of its queues beyond their guaranteed ones
};

// Whether the job shares its transaction with no other job, after two claims in a row that were rolled back: if it
// always fails, it then takes no other along.
inline bool wants_to_be_alone(const Entry &e) noexcept { return e.aborts > 1; }

// Whether another transaction than that of `owner` has marked the entry.
inline bool marked_by_other(const Entry &e, uint32_t owner) noexcept
{
	return e.mark != Verb::none && e.owner != owner;
}

// Whether the job ends unless it starts by its expires_at.
inline bool may_expire(const Entry &e) noexcept
{
	return e.expires_at != kNever && e.attempt == 0 && (e.state == State::ready || e.state == State::delayed) &&
		   !e.has(kCancelAsked);
}

// Whether a job that does not run blocks later jobs of its group (Group::held): between attempts, or being moved.
inline bool blocks_group(const Entry &e) noexcept
{
	return (e.state == State::delayed && e.has(kHeld)) ||
		   (e.mark == Verb::move && (e.state == State::delayed || e.state == State::ready));
}

// A pause that grows with each claim that rolls back in a row; the first two cause none (H15).
inline Micros abort_pause(int aborts) noexcept
{
	if (aborts <= 2)
		return 0;
	return std::min<Micros>(kSecond << std::min(aborts - 3, 9), 300 * kSecond);
}

// A running entry's attempt ends at `at` (monotonic) regardless of heartbeats. The caller updates the lease tree.
inline void set_hard_deadline(Entry &e, Micros at) noexcept
{
	e.hard_deadline = at;
	e.flags |= kHardTimeout;
	e.timer = at < e.timer ? at : e.timer;
}

// Ends a running entry's lease now. The caller updates the lease tree, and the reaper journals the end. The timer is
// over even with lease_grace (at most an hour) added, although the monotonic clock may have run for less.
inline void revoke(Entry &e) noexcept
{
	e.deadline = 0;
	e.timer = -7200 * kSecond;
}

// Makes a job that no longer runs due at once, for the scheduler to cancel (Engine::fire_due): it was asked to stop, or
// superseded.
inline void to_be_cancelled(Entry &e, Micros wall) noexcept
{
	e.state = State::delayed;
	e.timer = wall;
	e.flags |= kCancelAsked | kOverride;
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
