// The live queue as a library: entries, lanes, timers, leases, waiters over caller-supplied memory. Time, random numbers,
// locks and wake-ups come from the caller (Platform); nothing here allocates, throws or knows PostgreSQL.
// Regime: core; everything is noexcept. Locks: a function that takes a Queue wants that queue's lock held by the caller; the hash
// partitions are locked inside (order: queue, then partition).
#pragma once

#include <algorithm>

#include "core/layout.hpp"

namespace tq::core
{

constexpr uint32_t kPartitions = 64;
constexpr uint32_t kFreeLists = 16;
constexpr uint32_t kWaitersPerProc = 8;

struct Limits
{
	uint32_t entries;
	uint32_t lanes;
	uint32_t queues;
	uint32_t databases;
	uint32_t procs;
	uint32_t workers;
	uint32_t groups;
};

// What the core needs of its surroundings; process-local function pointers.
struct Platform
{
	void (*lock_partition)(uint32_t partition, bool exclusive) noexcept;
	void (*unlock_partition)(uint32_t partition) noexcept;
	void (*wake)(uint32_t proc) noexcept;	 // set a backend's latch
	void (*sooner)(uint32_t db, Micros wall, bool monotonic) noexcept; // a timer now ends before the scheduler meant to wake
	void (*want_refill)(uint32_t db) noexcept; // a lane or a group runs dry while it has jobs on disk
	Micros (*mono)() noexcept;				   // the monotonic clock
	void (*startable)(uint32_t db) noexcept = nullptr; // a queue with `call` has a job that may start, and nobody who waits for it
	void (*end_progress)(uint16_t slot) noexcept = nullptr; // a lease ended whose progress was kept there
	void (*has_news)(uint32_t db) noexcept = nullptr; // the first news of a queue that notifies
};

// What lies in the head of a lock-free stack: the tag differs after every change, so that a slow popper notices.
constexpr uint64_t tagged(uint64_t tag, Ref r) noexcept { return tag << 32 | r; }

// Shared header of the region.
struct Shared
{
	Limits limits;
	std::atomic<uint64_t> free_heads[kFreeLists]; // tag << 32 | entry; lock-free stacks
	std::atomic<int64_t> free_count;
	std::atomic<uint64_t> free_groups; // tag << 32 | group
	std::atomic<uint32_t> used_groups;
};

// Why a verb cannot have an entry.
enum class MarkResult : uint8_t
{
	ok,
	busy,	  // another transaction has marked it
	wrong_state,
};

class Engine
{
  public:
	// --- memory (core/memory.cpp)
	static size_t size(const Limits &limits) noexcept;
	void create(void *memory, const Limits &limits) noexcept; // lays out and initialises
	void attach(void *memory) noexcept;						  // finds what create laid out
	void set_platform(const Platform &platform) noexcept { platform_ = platform; }

	Entry &entry(Ref r) const noexcept { return entries_[r]; }
	Lane &lane(uint16_t l) const noexcept { return lanes_[l]; }
	Queue &queue(uint16_t q) const noexcept { return queues_[q]; }
	DbCore &db(uint16_t d) const noexcept { return dbs_[d]; }
	Worker &worker(uint32_t w) const noexcept { return workers_[w]; }
	Waiter &waiter(Ref w) const noexcept { return waiters_[w]; }
	Group &group(Ref g) const noexcept { return groups_[g]; }
	const Limits &limits() const noexcept { return shared_->limits; }
	int64_t free_entries() const noexcept { return shared_->free_count.load(std::memory_order_relaxed); }
	int64_t reserve() const noexcept { return std::min<int64_t>(64, shared_->limits.entries / 16); } // kept for pins
	uint16_t index_of(const Queue &q) const noexcept { return static_cast<uint16_t>(&q - queues_); }
	uint16_t index_of(const Lane &l) const noexcept { return static_cast<uint16_t>(&l - lanes_); }
	// Whether a slot is of a group of this queue; with the lock of q held that stays so. Without q: of any queue.
	bool owns(const Queue &q, Ref g) const noexcept { return home_of(g) == index_of(q) + 1; }
	bool is_group(Ref g) const noexcept { return home_of(g) != 0; }
	Ref ref_of(const Entry &e) const noexcept { return static_cast<Ref>(&e - entries_); }

	// --- queues and lanes
	// Prepares a free slot for a queue.
	void init_queue(Queue &q, uint16_t db, int32_t id, const char *name, QueueState state) noexcept;
	void free_queue(Queue &q) noexcept; // it must have no entries
	// The lane of a kind (null: none); makes one if `make`, by the registry lock and the queue's lock held. kNoLane if there is none, or no room.
	uint16_t find_lane(const Queue &q, const char *kind) const noexcept;
	uint16_t make_lane(Queue &q, const char *kind) noexcept;

	// --- entries
	// Finds the entry of a job; takes and leaves its partition's lock. The caller then locks the queue and checks with `is`; if
	// that fails the job may have got another entry meanwhile: find again.
	Ref find(uint16_t db, JobId id, uint16_t *queue) const noexcept;
	// Whether this is still the job's entry, the lock of `q` held. Without q: of whichever queue the entry was found in.
	bool is(const Queue &q, Ref r, JobId id) const noexcept;
	bool is(Ref r, uint16_t db, JobId id) const noexcept;
	// A new entry in state placeholder or committing; kNil if the job has one (*existing) or there is no room. `reserve`: may use
	// the entries kept for pins. `group`: slot of its group, kNil if it has none.
	Ref insert(Queue &q, uint16_t lane, JobId id, int32_t priority, State state, uint32_t hint, bool reserve,
			   Ref *existing, Ref group = kNil) noexcept;
	// Takes the entry out of everything and frees it.
	void drop(Queue &q, Ref r, uint32_t hint) noexcept;

	// The one transition function (R9): leaves every structure the entry is in, lets `edit` change it, enters those that its
	// new state and mark ask for; counters, timers and wake-ups go with it.
	template <class Edit> void change(Queue &q, Ref r, Edit &&edit) noexcept
	{
		Entry &e = entries_[r];
		const bool full = at_limit(q);
		leave(q, e);
		const auto listed = static_cast<uint16_t>(e.flags & kClaimListed);
		edit(e);
		e.flags = static_cast<uint16_t>((e.flags & ~kClaimListed) | listed);
		enter(q, e);
		after(q, e.group, full);
	}

	// Something has happened that a queue with `notifies` tells the outside: a job became ready, was enqueued, or has ended.
	void note_news(Queue &q) noexcept
	{
		if (!q.settings.notifies || q.has_news.load(std::memory_order_relaxed))
			return;
		q.has_news.store(true);
		if (platform_.has_news != nullptr)
			platform_.has_news(q.db);
	}

	// --- groups and limits (core/groups.cpp, core/limits.cpp)
	// The slot of a group; made if `make` and a slot is free, else kNil. Takes and leaves its partition's lock.
	Ref group_for(Queue &q, const char *key, bool make) noexcept;
	void sink_group(Queue &q, Ref g, Key key) noexcept;	 // from `key` on, jobs of it may be on disk only
	void sink_groups(Queue &q, Key key) noexcept;		 // of all groups, those without a slot too
	void raise_group(Queue &q, Ref g, Key key) noexcept; // up to the lesser of key and limit, all are in memory
	Key start_group_load(Queue &q, Ref g, uint32_t loader) noexcept; // from where to read, before its snapshot
	void end_group_load(Queue &q, Ref g, bool again) noexcept;		  // false: there was no room, so not again at once
	bool reads_groups(const Queue &q) const noexcept { return q.wanted != kNil || q.group_loads > 0 || unknown_groups(q); }
	// May groups without a slot have jobs on disk?
	static bool unknown_groups(const Queue &q) noexcept { return q.discover.load() || q.discovering.load(); }
	// Sinks what vouches for a job: its lane, its group, or, with a group that has no slot (`key` is given and g is kNil), the queue's
	// knowledge of its groups.
	void sink_job(Queue &q, Lane &l, const char *group_key, Ref g, Key key) noexcept;
	void want_discovery(Queue &q) noexcept;
	bool has_free_group() const noexcept { return static_cast<Ref>(shared_->free_groups.load()) != kNil; }
	// A job that is to wait for its time leaves the last slots to those that may start. Can it have one?
	bool spares_slot(Queue &q, const char *group_key) noexcept
	{
		return shared_->used_groups.load(std::memory_order_relaxed) < shared_->limits.groups - shared_->limits.groups / 4 ||
			   group_for(q, group_key, false) != kNil;
	}
	bool vouches(const Queue &q, const Lane &l, const char *group_key, Ref g, Key key) const noexcept; // must the job be in memory?
	uint32_t group_cap() const noexcept; // how many waiting jobs a group may have in memory
	// Would a newly committed job of a group be kept in memory?
	bool takes(Queue &q, const char *group_key, Key key) noexcept;
	bool has_room(const Group &g) const noexcept { return g.ready.size + (g.head != kNil) < group_cap(); }
	// Is there none of its jobs in memory that may start before those on disk?
	bool offers_nothing(const Group &g) const noexcept
	{
		return g.head == kNil && (g.ready.min == kNil || !(entries_[g.ready.min].key() < g.watermark));
	}
	Ref take_wanted(Queue &q) noexcept;		   // a group to be read in, kNil; not one that nobody can claim from
	void want_groups_again(Queue &q) noexcept; // those that found no room when they were read in
	bool evict_from_group(Queue &q, Ref g, Key above, uint32_t hint) noexcept; // as evict_ready
	// Its head, if that is all that it has in memory and may not start before jobs of its lane that are on disk.
	bool evict_head(Queue &q, Ref g, uint32_t hint) noexcept;
	// Takes a group out of memory, slot and all, if all that it has there are waiting jobs that may go and it remembers no starts; its
	// queue's search finds it again.
	bool evict_group(Queue &q, Ref g, uint32_t hint) noexcept;
	// Sends delayed jobs of groups that have nothing else in memory back to disk, the latest first, until a group has given its slot away.
	bool evict_delayed_group(Queue &q, uint32_t hint, int *evicted) noexcept;
	// Does the lane's watermark hold back the head of a group?
	static bool holds_back(const Queue &q, const Lane &l, Key head) noexcept
	{
		return q.settings.fair ? head.priority > l.watermark.priority : !(head < l.watermark);
	}
	void refresh_groups(Queue &q) noexcept;	   // after settings changed
	int open_due(Queue &q, Micros mono, int max) noexcept; // limits that open by time
	// Counters of limits and groups that are not what the entries say; `scratch` has room for three numbers per group slot.
	int64_t wrong_counts(const Queue &q, uint32_t *scratch) const noexcept;
	// Starts and enqueues before this are not known: rates go on as if they had just used up their bursts.
	void forget_starts(Queue &q, Micros mono) noexcept;
	int64_t live_jobs(const Queue &q) const noexcept; // by the lanes' counters
	// How many more may start now.
	int64_t starts_left(const Queue &q) const noexcept;
	// Whether a waiting group is kept back, and by what.
	enum class Block : uint8_t
	{
		none,
		running, // group_max_running
		held,	 // the job before it waits for its next attempt
		rate,
		disk, // its next job is being read in
	};
	Block blocked(const Queue &q, const Group &g) const noexcept;
	int32_t group_limit(const Queue &q) const noexcept; // group_max_running in force; 0: none

	// --- claims and leases
	struct ClaimTerms
	{
		uint32_t owner;
		uint32_t worker;	 // kNil: none
		uint32_t lease_ms;	 // 0: the job's, else the queue's, else default_lease_ms
		uint32_t default_lease_ms;
		Micros wall;
		Micros mono;
		bool bound;
		const uint64_t *kinds; // hashes of the kinds wanted
		int nkinds;			   // 0: any
		bool except = false;   // any but those kinds
		uint32_t default_timeout_ms = 0; // of an attempt, if the queue says nothing; 0: none
	};
	// The next job that may start: pops it into running, marked by `owner`. kNil if there is none.
	Ref claim(Queue &q, const ClaimTerms &terms) noexcept;
	// What the row of a job just claimed says of its own: the length of the lease (0: as it is) and of the attempt (0: as it is), from `mono`.
	void set_limits(Queue &q, Ref r, uint32_t lease_ms, Micros timeout, Micros mono) noexcept;
	// The least key that a claim with these kinds would get; kMaxKey if none.
	bool claimable(const Queue &q, const uint64_t *kinds, int nkinds, Key *key, bool except = false) const noexcept;
	// Claims that are to be journalled: takes the entry off the queue's list.
	void unlist_claim(Queue &q, Entry &e) noexcept;

	// --- marks
	// Marks an entry for a verb of an open transaction. `pending` is the state it will have after commit.
	MarkResult mark(Queue &q, Ref r, uint32_t owner, Verb verb, State pending) noexcept;

	// --- paging
	void sink(Queue &q, Lane &l, Key key) noexcept;				 // from `key` on, jobs may be on disk only
	void raise(Queue &q, Lane &l, Key key) noexcept;			 // up to the lesser of key and limit, all are in memory
	void sink_timer(uint16_t db, Micros due) noexcept;			 // jobs due at `due` or later may be on disk only
	Micros start_timer_load(uint16_t db) noexcept;				 // the one timer loader: from where to read, before its snapshot
	bool raise_timer(uint16_t db, Micros from, Micros due) noexcept; // ... it has read up to `due`; false: sunk below `from` meanwhile
	// Takes the entry with the greatest key of the lane (not an override) out of memory; false if there is none above `above`.
	bool evict_ready(Queue &q, Lane &l, Key above, uint32_t hint) noexcept;
	bool evict_delayed(Queue &q, uint32_t hint) noexcept; // the one due last
	void set_paused(Queue &q, Lane *l, Micros until) noexcept; // null lane: the whole queue
	void refresh(Queue &q) noexcept;						   // after pause or limits changed: lanes and waiters
	// Whether the lane wants to be refilled from disk.
	bool runs_dry(const Queue &q, const Lane &l) const noexcept;

	// --- timers
	// Delayed entries that are due become ready, at most `max` of them; returns how many it looked at. Entries whose claims were
	// rolled back `doom` times in a row, or that were asked to cancel while they ran, are marked `kill` by `owner` instead and put into
	// out[*nout]; with doom 0 none are, and those that were asked to cancel stay delayed for a second more. Without `out` it stops at
	// the first one to be marked, and counts that in *nout.
	int fire_due(Queue &q, Micros wall, int max, int doom, uint32_t owner, Ref *out, int *nout) noexcept;
	// Marks running entries whose lease or attempt has ended `lose` by `owner`, at most `max`; returns how many are in out. Entries
	// whose deadline was moved by a heartbeat are put where they belong now. prev[] receives their marks.
	struct PrevMark
	{
		Verb mark;
		uint32_t owner;
	};
	int collect_lost(Queue &q, Micros mono, Micros grace, int max, uint32_t owner, Ref *out, PrevMark *prev) noexcept;

	// --- expiry: jobs that nobody has started by their expires_at (expiry.cpp)
	// Takes those whose time is over out of the claims' way, at most `max`; returns how many. They wait for collect_expired, which is
	// the scheduler's. Call it before claim().
	int set_aside(Queue &q, Micros wall, int max) noexcept
	{
		return q.expiry.min == kNil || entries_[q.expiry.min].expires_at > wall ? 0 : set_aside_now(q, wall, max);
	}
	// Marks expired entries `expire` by `owner`, at most `max`; returns how many are in out.
	int collect_expired(Queue &q, Micros wall, int max, uint32_t owner, Ref *out) noexcept;

	// --- waiting
	void wait_enter(Queue &q, Ref w, uint32_t proc, const uint64_t *kinds, int nkinds) noexcept;
	// Leaves the queue of waiters, after it claimed or gave up. Its token, if it had one, is passed on while more jobs are startable
	// than there are tokens (used or not: the job it claimed need not be the one the token was for). True if it had one.
	// `pass` false: it is going to claim in a moment (tq_wait); should it not, the scheduler's sweep wakes another.
	bool wait_leave(Queue &q, Ref w, bool pass = true) noexcept;
	void call_when_startable(Queue &q) noexcept; // Platform::startable, once
	void wake_for_startable(Queue &q) noexcept;	 // grants tokens while there are startable jobs without one and waiters for them

	// --- walking (Q)
	Ref next_in_tree(Ref r) const noexcept; // ready, due or lease tree in order
	// The first of a lane's ready jobs without a group whose priority is this number or a greater one; kNil if there is none.
	Ref ready_from(const Lane &l, int32_t priority) const noexcept;

  private:
	struct EntryByKey
	{
		Entry *e;
		Links &links(Ref r) const noexcept { return e[r].main; }
		bool less(Ref a, Ref b) const noexcept { return e[a].key() < e[b].key(); }
		uint32_t rank(Ref r) const noexcept { return mix32(static_cast<uint64_t>(e[r].id)); }
	};
	struct EntryByTimer : EntryByKey
	{
		bool less(Ref a, Ref b) const noexcept
		{
			return e[a].timer != e[b].timer ? e[a].timer < e[b].timer : e[a].id < e[b].id;
		}
	};
	struct EntryByExpiry
	{
		Entry *e;
		Links &links(Ref r) const noexcept { return e[r].aux; }
		bool less(Ref a, Ref b) const noexcept
		{
			return e[a].expires_at != e[b].expires_at ? e[a].expires_at < e[b].expires_at : e[a].id < e[b].id;
		}
		uint32_t rank(Ref r) const noexcept { return mix32(static_cast<uint64_t>(e[r].id)); }
	};
	struct LaneByHead
	{
		Lane *l;
		Entry *e;
		Links &links(Ref r) const noexcept { return l[r].startable; }
		bool less(Ref a, Ref b) const noexcept
		{
			const Entry &x = e[l[a].first], &y = e[l[b].first];
			if (x.priority != y.priority)
				return x.priority < y.priority;
			return l[a].turn != l[b].turn ? l[a].turn < l[b].turn : x.id < y.id;
		}
		uint32_t rank(Ref r) const noexcept { return mix32(r + 1); }
	};
	struct EntryByTurn : EntryByKey
	{
		Group *g;
		bool less(Ref a, Ref b) const noexcept
		{
			const Entry &x = e[a], &y = e[b];
			if (x.priority != y.priority)
				return x.priority < y.priority;
			const double t = g[x.group].turn, u = g[y.group].turn;
			return t != u ? t < u : x.id < y.id;
		}
	};
	struct GroupByOpening
	{
		Group *g;
		Links &links(Ref r) const noexcept { return g[r].timer; }
		bool less(Ref a, Ref b) const noexcept { return g[a].opens_at != g[b].opens_at ? g[a].opens_at < g[b].opens_at : a < b; }
		uint32_t rank(Ref r) const noexcept { return mix32(r + 1); }
	};
	struct GroupByTurn : GroupByOpening
	{
		bool less(Ref a, Ref b) const noexcept { return g[a].turn != g[b].turn ? g[a].turn < g[b].turn : a < b; }
	};
	Treap<EntryByKey> by_key() const noexcept { return {{entries_}}; }
	Treap<EntryByTimer> by_timer() const noexcept { return {{{entries_}}}; }
	Treap<EntryByExpiry> by_expiry() const noexcept { return {{entries_}}; }
	Treap<LaneByHead> by_head() const noexcept { return {{lanes_, entries_}}; }
	Treap<EntryByTurn> by_turn() const noexcept { return {{{entries_}, groups_}}; }
	Treap<GroupByOpening> by_opening() const noexcept { return {{groups_}}; }
	Treap<GroupByTurn> by_rest() const noexcept { return {{{groups_}}}; }
	uint16_t home_of(Ref g) const noexcept { return std::atomic_ref<uint16_t>(groups_[g].home).load(std::memory_order_acquire); }

	enum class Place : uint8_t
	{
		nowhere,
		ready,
		due,
		leases,
	};
	static Place place(const Entry &e) noexcept;
	// Overrides cannot be found again by their row's key; what its rolled back claims cost a job is known to its entry only.
	// One that its group waits for must be there.
	static bool is_evictable(const Entry &e) noexcept
	{
		return !e.has(kOverride) && e.aborts == 0 && !(e.group != kNil && e.has(kHeld));
	}
	void leave(Queue &q, Entry &e) noexcept;
	void enter(Queue &q, Entry &e) noexcept;
	void end_progress(Entry &e) noexcept;
	void lane_out(Queue &q, Lane &l) noexcept;
	void lane_in(Queue &q, Lane &l) noexcept;
	void offer(Queue &q, Ref r) noexcept;	  // puts a job before the claims, in its lane
	void withdraw(Queue &q, Ref r) noexcept;
	uint16_t next_lane(const Queue &q, const uint64_t *kinds, int nkinds, bool except) const noexcept; // kNoLane if none is startable
	Ref first_of(const Queue &q, const Lane &l, double *turn) const noexcept;
	static bool at_limit(const Queue &q) noexcept
	{
		return q.settings.max_running > 0 && q.running >= static_cast<uint32_t>(q.settings.max_running);
	}
	static bool holds(const Entry &e) noexcept
	{
		return (e.state == State::delayed && e.has(kHeld)) ||
			   (e.mark == Verb::move && (e.state == State::delayed || e.state == State::ready));
	}
	void after(Queue &q, Ref g, bool was_full) noexcept;
	void settle(Queue &q, Ref g, bool ask = true) noexcept; // `ask`: for more from disk, if it is dry
	void reopen(Queue &q) noexcept;
	void free_group(Queue &q, Ref g) noexcept;
	void want_group(Queue &q, Ref g) noexcept;
	bool group_dry(const Queue &q, const Group &g) const noexcept;
	void opens_at(Queue &q, Ref g, Micros at) noexcept;
	void rests(Queue &q, Ref g, bool on) noexcept;
	void advance(Queue &q, double turn) noexcept; // of the virtual time
	void publish_opening(Queue &q) noexcept;
	void charge(Queue &q, Entry &e) noexcept; // a start
	uint32_t group_bucket(uint64_t hash) const noexcept { return static_cast<uint32_t>(hash % shared_->limits.groups); }
	bool grant(Queue &q, const Lane &l) noexcept;
	void call(Queue &q) noexcept;
	void publish_timers(Queue &q) noexcept;
	static bool may_expire(const Entry &e) noexcept
	{
		return e.expires_at != kNever && e.attempt == 0 && (e.state == State::ready || e.state == State::delayed) &&
			   !e.has(kCancelAsked);
	}
	void leave_expiry(Queue &q, Entry &e) noexcept;
	void enter_expiry(Queue &q, Entry &e) noexcept;
	void publish_expiry(Queue &q) noexcept;
	int set_aside_now(Queue &q, Micros wall, int max) noexcept;
	void list_claim(Queue &q, Entry &e) noexcept;
	void unlink_waiter(Queue &q, Waiter &w) noexcept;

	Ref pop_free(uint32_t hint, bool for_pin) noexcept;
	void push_free(Ref r, uint32_t hint) noexcept;
	uint32_t bucket_of(uint16_t db, JobId id) const noexcept;

	Platform platform_{};
	Shared *shared_ = nullptr;
	Entry *entries_ = nullptr;
	Ref *buckets_ = nullptr; // by the partition's lock; bucket b is in partition b % kPartitions
	Lane *lanes_ = nullptr;
	Queue *queues_ = nullptr;
	DbCore *dbs_ = nullptr;
	Worker *workers_ = nullptr;
	Waiter *waiters_ = nullptr;
	Group *groups_ = nullptr;
	Ref *group_buckets_ = nullptr; // as buckets_
};

inline uint64_t hash_name(const char *s) noexcept // FNV-1a, 64 bits; never 0
{
	uint64_t h = 0xcbf29ce484222325ULL;
	for (; *s != '\0'; ++s)
		h = (h ^ static_cast<unsigned char>(*s)) * 0x100000001b3ULL;
	return h != 0 ? h : 1;
}

} // namespace tq::core
