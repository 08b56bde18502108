// The live queue as a library: entries, lanes, timers, leases and waiters. The caller supplies memory, time, random
// numbers, locks and wakeups (Platform). Nothing here allocates, throws or depends on PostgreSQL.
// Regime: core; everything is noexcept, except any_startable(), because its argument may raise an error. Locks: the
// caller of a function that takes a Queue holds that queue's lock. Where a comment names the registry lock, the caller
// holds that one, too, or instead if the comment says so. The functions lock the hash partitions themselves (order:
// queue, then partition). Comments call these locks Q, R and P, as layout.hpp does. A `hint` selects one of the free
// lists; any number will do, so callers pass the number of their process.
#pragma once

#include <algorithm>
#include <bit>

#include "core/parameters.hpp"
#include "core/region.hpp"
#include "core/share.hpp"

namespace tq::core
{

class Engine : public Region
{
  public:

	// --- memory (core/region.cpp)
	void create(void *memory, const Limits &limits) noexcept; // lays out and initialises
	void attach(void *memory) noexcept;						  // finds what create() laid out
	void set_platform(const Platform &platform) noexcept { platform_ = platform; }

	// --- shares (core/shares.cpp): a queue's part of the memory, independent of its settings
	// Pinned entries cannot be evicted: running jobs, jobs being changed, and jobs whose time or priority differs from
	// their row. At most three quarters of all entries are pinned, and another eighth by places_to_start().
	const Share &entry_share() const noexcept { return entry_share_; }
	const Share &group_share() const noexcept { return group_share_; }
	const Share &kind_share() const noexcept { return kind_share_; }
	int64_t reserve() const noexcept { return std::min<int64_t>(64, shared_->limits.entries / 16); } // kept for pins
	// How many slots the queues are guaranteed together. With more queues than that, the last ones get none.
	static Guarantees guarantees(const Limits &limits) noexcept;
	// How many more entries the queue may pin. Q; a hint without it.
	uint32_t pins_left(const Queue &q) const noexcept
	{
		return entry_share().left(q.pinned, shared_->lent_entries.load(std::memory_order_relaxed));
	}
	// The same for jobs that do not run: an eighth of the pool is a reserve for claims.
	uint32_t waiting_left(const Queue &q) const noexcept
	{
		Share share = entry_share();
		share.pool -= share.pool / 8;
		return share.left(q.pinned, shared_->lent_entries.load(std::memory_order_relaxed));
	}
	// How many more entries of the pool a database may pin by changes of jobs in its queues. Its running jobs count.
	uint32_t changes_left(uint16_t d) const noexcept
	{
		const Share share{0, entry_share().pool, 4};
		return share.left(dbs_[d].lent_entries.load(std::memory_order_relaxed),
						  shared_->lent_entries.load(std::memory_order_relaxed));
	}
	// How many more entries the queue may pin by changes of jobs. They may stay pinned for as long as the jobs wait.
	uint32_t changes_left(const Queue &q) const noexcept
	{
		const uint32_t guaranteed = entry_share().guaranteed;
		return std::min(waiting_left(q), (guaranteed > q.pinned ? guaranteed - q.pinned : 0) + changes_left(q.db));
	}
	// How many more jobs of the queue may start. Its guaranteed number may always run, even if its share is used up.
	uint32_t places_to_start(const Queue &q) const noexcept
	{
		const Share &share = entry_share();
		const uint32_t own = share.guaranteed > q.running ? share.guaranteed - q.running : 0;
		return std::max(own, share.left(q.pinned, shared_->lent_entries.load(std::memory_order_relaxed)));
	}
	// Whether the job's position in the lane is not that of its id (line_up).
	static bool has_place(const Entry &e) noexcept { return e.state == State::ready && e.place != 0; }
	static bool is_pinned(const Entry &e) noexcept
	{
		const bool waits = (e.state == State::ready || e.state == State::delayed) && e.mark == Verb::none;
		return !waits || !is_evictable(e);
	}
	uint32_t group_slots_left(const Queue &q) const noexcept
	{
		return group_share().left(q.groups, shared_->lent_groups.load(std::memory_order_relaxed));
	}
	Holder held_by_creator(const Queue &q) const noexcept;
	bool may_add_kind(const Queue &q) const noexcept; // registry lock
	// A lane with fewer ready jobs than this is refilled if it has more on disk. Q; a hint without it.
	uint32_t low_mark(const Queue &q) const noexcept;
	uint32_t used_kinds() const noexcept { return shared_->used_kinds.load(std::memory_order_relaxed); }

	// --- queues and lanes (core/queue_slots.cpp)
	// Finds a queue of a database by name; kNoQueue if there is none. `hash` is hash_name() of the name. Registry lock.
	uint16_t find_queue(uint16_t db, const char *name, uint64_t hash) const noexcept;
	// A free slot for a queue, or kNoQueue. The caller holds the registry lock exclusively.
	uint16_t free_queue_slot() noexcept;
	// Initializes a free slot for a queue. The caller of this and of free_queue holds the registry lock and the
	// queue's.
	void init_queue(Queue &q, uint16_t db, int32_t id, const char *name, QueueState state) noexcept;
	void free_queue(Queue &q) noexcept; // it must have no entries
	// The lane of a kind (null: no kind); kNoLane if there is none.
	uint16_t find_lane(const Queue &q, const char *kind) const noexcept;
	// Creates the lane of a kind that has none. Returns kNoLane if all lanes are used or, without `must`, if the queue,
	// its creator or its database has used up its share. The caller holds the registry lock and the queue's.
	uint16_t make_lane(Queue &q, const char *kind, bool must = false) noexcept;
	// Frees the lane of a kind without jobs and users. The caller holds the registry lock and the queue's.
	bool free_idle_lane(Queue &q, uint16_t lane) noexcept;

	// --- entries (core/engine.cpp)
	// Finds the entry of a job; locks and unlocks its partition. The caller then locks the queue and checks with `is`.
	// If that fails, the job may have another entry: find it again.
	Ref find(uint16_t db, JobId id, uint16_t *queue) const noexcept;
	// Whether this is still the job's entry. The caller holds the lock of q; in the second form, of the queue that
	// find() returned.
	bool is(const Queue &q, Ref r, JobId id) const noexcept;
	bool is(Ref r, uint16_t db, JobId id) const noexcept;
	// Returns kNil if the job has an entry (*existing) or memory is full.
	Ref insert(Queue &q, const NewEntry &job, uint32_t hint, Ref *existing) noexcept;
	// Removes the entry from all structures and frees it.
	void drop(Queue &q, Ref r, uint32_t hint) noexcept;

	// The one transition function (R9): removes the entry from its structures, calls `edit`, and adds the entry to the
	// structures of its new state and mark. Updates counters, timers and wakeups.
	template <class Edit> void change(Queue &q, Ref r, Edit &&edit) noexcept
	{
		Entry &e = entries_[r];
		const bool full = at_limit(q), pinned = is_pinned(e);
		const State before = e.state;
		const bool read = before == State::placeholder && e.mark == Verb::none; // a loader found it on disk
		leave(q, e);
		const auto listed = static_cast<uint16_t>(e.flags & kClaimListed); // enter() updates list and flag
		edit(e);
		e.flags = static_cast<uint16_t>((e.flags & ~kClaimListed) | listed);
		if (e.state == State::ready && before != State::ready)
			line_up(q, e, !read && (before == State::delayed || e.step > 1));
		count_pin(q, pinned, is_pinned(e));
		enter(q, e);
		after_change(q, e.group, full);
	}

	// Records an event of a queue with `notifies`: a job became ready, was enqueued, or ended.
	void mark_notify(Queue &q) noexcept
	{
		if (!q.settings.notifies || q.has_unsent.load(std::memory_order_relaxed))
			return;
		q.has_unsent.store(true);
		if (platform_.has_unsent != nullptr)
			platform_.has_unsent(q.db);
	}

	// --- groups and limits (core/groups.cpp, core/group_paging.cpp, core/limits.cpp)
	// Returns the slot of a group, or kNil. `make` creates it if a slot is free and the queue is within its share;
	// `must` ignores the share. Locks and unlocks the group's partition.
	Ref group_for(Queue &q, const char *key, bool make, bool must = false) noexcept;
	// Jobs of the group at or after `key`, with ids from `least`, may be on disk only.
	void lower_group_watermark(Queue &q, Ref g, Key key, JobId least = 0) noexcept;
	void lower_group_watermarks(Queue &q, Key key, JobId least = 0) noexcept; // the same for all groups of the queue
	void raise_group(Queue &q, Ref g, Key key) noexcept; // up to min(key, limit), all are in memory
	Key start_group_load(Queue &q, Ref g, uint32_t loader) noexcept; // start of the read; call it before the snapshot
	void end_group_load(Queue &q, Ref g, bool again) noexcept;		  // `again` false: memory was full, retry later
	bool reads_groups(const Queue &q) const noexcept
	{
		return q.wanted != kNil || q.group_loads > 0 || unknown_groups(q);
	}
	// Whether groups without a slot may have jobs on disk.
	static bool unknown_groups(const Queue &q) noexcept { return q.discover.load() || q.discovering.load(); }
	// Lowers the watermark of a job's lane or group. For a group without a slot (`group_key` set, g kNil) it requests a
	// search for groups. For several jobs, `key` is their least key and `least` their least id.
	void lower_job_watermark(Queue &q, Lane &l, const char *group_key, Ref g, Key key, JobId least) noexcept;
	void lower_job_watermark(Queue &q, Lane &l, const char *group_key, Ref g, Key key) noexcept
	{
		lower_job_watermark(q, l, group_key, g, key, key.id);
	}
	void want_discovery(Queue &q) noexcept;
	bool has_free_group() const noexcept { return static_cast<Ref>(shared_->free_groups.load()) != kNil; }
	bool has_free_group(const Queue &q) const noexcept { return has_free_group() && group_slots_left(q) > 0; }
	// Whether a delayed job may have a slot for its group. The last quarter of the slots is for startable jobs.
	bool spares_slot(Queue &q, const char *group_key) noexcept
	{
		return shared_->used_groups.load(std::memory_order_relaxed) <
				   shared_->limits.groups - shared_->limits.groups / 4 ||
			   group_for(q, group_key, false) != kNil;
	}
	// Whether the job must be in memory.
	bool covered_by_watermark(const Queue &q, const Lane &l, const char *group_key, Ref g, Key key) const noexcept;
	uint32_t group_cap() const noexcept; // the most waiting jobs of a group in memory
	// Whether a newly committed job of a group would stay in memory.
	bool takes(Queue &q, const char *group_key, Key key) noexcept;
	// Whether another waiting job of the group may have an entry. Jobs that are about to be published count.
	bool has_capacity(const Group &g) const noexcept { return g.entries - g.running < group_cap(); }
	// Whether the group's jobs on disk must start before all its ready jobs in memory.
	bool offers_nothing(const Group &g) const noexcept
	{
		return g.head == kNil && (g.ready.min == kNil || !(entries_[g.ready.min].key() < g.watermark));
	}
	Ref take_wanted(Queue &q) noexcept; // the next group to read in, or kNil; skips groups that cannot be claimed from
	void want_groups_again(Queue &q) noexcept; // groups whose load found memory full
	bool evict_from_group(Queue &q, Ref g, Key above, uint32_t hint) noexcept; // as evict_ready
	// Evicts the group's head if it is the group's only job in memory and the lane's jobs on disk come first.
	bool evict_head(Queue &q, Ref g, uint32_t hint) noexcept;
	// Evicts a group and frees its slot if its jobs in memory are all evictable and it remembers no starts. The queue's
	// search finds the group again.
	bool evict_group(Queue &q, Ref g, uint32_t hint) noexcept;
	// Evicts delayed jobs of groups with no other jobs in memory, the latest first, until one slot is free.
	bool evict_delayed_group(Queue &q, uint32_t hint, int *evicted) noexcept;
	// Whether the lane's watermark blocks the head of a group.
	static bool holds_back(const Queue &q, const Lane &l, Key head) noexcept
	{
		return q.settings.fair ? head.priority > l.watermark.priority : !(head < l.watermark);
	}
	void hold_group(Queue &q, Ref g, int by) noexcept; // adds to Group::holds, which keeps the slot for set_group
	// `loaded`: starts before this are unknown, so its rate begins as if its burst were used up.
	void set_group(Queue &q, Ref g, const GroupSettings &own, bool loaded = false) noexcept;
	void refresh_groups(Queue &q) noexcept;	   // after settings changed
	int open_due(Queue &q, Micros mono, int max) noexcept; // opens limits that open by time
	// Compares the counters of limits and groups with the entries; returns how many differ. `scratch` holds three
	// numbers per group slot. Reads all entries and groups, so compare count_entry() and count_kept() first.
	int64_t wrong_counts(const Queue &q, uint32_t *scratch) const noexcept;
	// Adds an entry of the queue to its sums. A copy needs no lock.
	static void count_entry(const Entry &e, LimitSums *sums) noexcept;
	// Adds the queue's own counters; those of a group are added separately.
	static void count_kept(const Queue &q, LimitSums *sums) noexcept;
	static void count_kept(Ref g, const Group &group, LimitSums *sums) noexcept;
	// Starts and enqueues before this time are unknown: rates continue with empty buckets.
	void forget_starts(Queue &q, Micros mono) noexcept;
	int64_t live_jobs(const Queue &q) const noexcept; // by the lanes' counters
	// How many more jobs may start now.
	int64_t starts_left(const Queue &q) const noexcept;
	Block blocked(const Queue &q, const Group &g) const noexcept;
	// Limits of a group, or of a group without settings of its own. 0: none
	int32_t group_limit(const Queue &q, const GroupSettings &own = {}) const noexcept;
	const Rate &group_rate(const Queue &q, const Group &g) const noexcept
	{
		return g.own.rate.limits() ? g.own.rate : q.settings.group_rate;
	}

	// --- claims and leases (core/claims.cpp)
	// The next job that may start: moves it into running, marked by `owner`. kNil if there is none. With `held_back`
	// the caller has claimed others: a job that wants to be alone is not started, but *held_back is set.
	Ref claim(Queue &q, const ClaimTerms &terms, bool *held_back = nullptr) noexcept;
	// The same for a committing entry of the owner's transaction, whatever precedes it. Its lease does not run before
	// start_lease(), at the commit. False if the queue, its kind or group is paused or at a limit.
	bool claim_own(Queue &q, Ref r, const ClaimTerms &terms) noexcept;
	// Begins the lease of an own job. An attempt's time limit counts from the claim.
	void start_lease(Entry &e) const noexcept
	{
		if (e.state != State::running || e.timer != kNever)
			return;
		if (e.deadline != 0) // 0: revoked
			e.deadline = std::max(e.deadline, platform_.mono() + static_cast<Micros>(e.lease_ms) * 1000);
		e.timer = e.has(kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline;
	}
	// Applies the row's own lease and attempt lengths (0: unchanged) to a job just claimed, counted from `mono`.
	void set_limits(Queue &q, Ref r, uint32_t lease_ms, Micros timeout, Micros mono) noexcept;
	// Whether a claim with these kinds (`except`: with all others) gets a job now. *key: that of the next job, even if
	// a limit of the queue blocks it; kMaxKey if there is none.
	bool claimable(const Queue &q, const uint64_t *kinds, int nkinds, Key *key, bool except = false) const noexcept;
	// Removes the entry from the queue's list of claims to be journalled.
	void unlist_claim(Queue &q, Entry &e) noexcept;

	// --- marks (core/claims.cpp)
	// Marks an entry for a verb of an open transaction. `pending` is its state after commit. Tests and models call it;
	// src/jobs/verbs.cpp makes more checks, and shares marked_by_other() with it.
	MarkResult mark(Queue &q, Ref r, uint32_t owner, Verb verb, State pending) noexcept;
	// The same without a check.
	void set_mark(Queue &q, Ref r, uint32_t owner, Verb verb, State pending) noexcept
	{
		change(q, r, [=](Entry &e) noexcept {
			e.mark = verb;
			e.owner = owner;
			e.pending = pending;
		});
	}

	// --- paging: eviction to disk and loads from it (core/lanes.cpp, core/timers.cpp)
	// Jobs from `key` on may be on disk only; `least`: the least of their ids, if known.
	void lower_watermark(Queue &q, Lane &l, Key key, JobId least = INT64_MIN) noexcept;
	void skip(Lane &l, Key from) noexcept;						 // before a raise: a locked segment's jobs stay on disk
	void read_skipped(Queue &q, Lane &l) noexcept;				 // after the segment was unlocked
	void raise_watermark(Queue &q, Lane &l, Key key) noexcept;			 // up to min(key, limit), all are in memory
	void lower_timer_watermark(uint16_t db, Micros due) noexcept; // jobs due at `due` or later may be on disk only
	// Starts the only timer loader; returns where it reads from. Call it before taking the snapshot.
	Micros start_timer_load(uint16_t db) noexcept;
	bool raise_timer_watermark(uint16_t db, Micros from, Micros due) noexcept; // false: lowered below `from` meanwhile
	// Evicts the evictable entry with the greatest key of the lane; false if there is none above `above`.
	bool evict_ready(Queue &q, Lane &l, Key above, uint32_t hint) noexcept;
	bool evict_delayed(Queue &q, uint32_t hint) noexcept; // evicts the one due last
	// Evicts a delayed entry. An entry that only pauses after rolled-back claims is ready on disk.
	void evict_timer(Queue &q, Ref r, uint32_t hint) noexcept;
	void set_paused(Queue &q, Lane *l, Micros until) noexcept; // null lane: the whole queue
	void refresh(Queue &q) noexcept;						   // after pause or limits changed: lanes and waiters
	// Whether the lane should be refilled from disk.
	bool runs_dry(const Queue &q, const Lane &l) const noexcept;
	// Whether a lane or a group has entries in memory that jobs on disk must precede.
	template <class Paged> bool has_later(const Paged &p) const noexcept
	{
		return p.ready.max != kNil && !(entries_[p.ready.max].key() < p.watermark);
	}

	// --- timers (core/timers.cpp)
	// Makes at most `max` due delayed entries ready; returns how many it examined. Without `doom` it marks none, and
	// delays entries with a cancel request for one more second.
	int fire_due(Queue &q, Micros wall, int max, Doom *doom = nullptr) noexcept;
	// Marks `lose` by `owner` at most `max` running entries whose lease or attempt ended at `until` or before; returns
	// how many are in `out`. Moves entries in the tree if a heartbeat moved their deadline. prev[] receives the old
	// marks. `strict`: see lease_end.
	int collect_lost(Queue &q, const LossTerms &terms, Ref *out, PrevMark *prev) noexcept;

	// --- leases of workers (core/worker_leases.cpp)
	// When the lease of a running entry ends (monotonic), unless its attempt ends before; 0: it has ended. A heartbeat
	// of the worker is one for each of its own leases (kOfWorker), unless heartbeats do not extend them (`strict`).
	Micros lease_end(const Entry &e, bool strict) const noexcept;
	bool is_revoked(const Entry &e) const noexcept
	{
		return e.deadline == 0 || (e.has(kOfWorker) && e.lease < workers_[e.worker()].revoked.load());
	}
	// Ends the lease of an entry that returns to the lease tree, as when its end is rolled back, if the lease was
	// revoked since it left the tree. The walk has not found it there. The caller updates the tree. A lease that came
	// from another worker stays: the revocations of this worker do not concern it.
	void catch_up(Entry &e) const noexcept
	{
		if (e.has(kOfWorker) && !e.has(kHandedOver) && e.lease < workers_[e.worker()].ended.load())
			revoke(e);
	}
	// Ends the leases below Worker::revoked among the next `max` entries of the lease tree. The walk begins behind
	// `from`, and moves it; false at the end. Entries whose timer is lowered meanwhile may be missed.
	static constexpr int kMostWalked = 4096;
	bool revoke_leases(Queue &q, LeasePosition *from, int max = kMostWalked) noexcept;

	// --- expiry: jobs not started by their expires_at (core/expiry.cpp)
	// Moves at most `max` expired entries to the list for collect_expired() (scheduler); returns how many. Call it
	// before claim(). Entries beyond the list's limit stay, so a claim then takes nothing while has_overdue() is true.
	int set_aside(Queue &q, Micros wall, int max) noexcept
	{
		return has_overdue(q, wall) ? set_aside_now(q, wall, max) : 0;
	}
	// A waiting job is about to lose its entry, or to be published without one: see DbCore::disk_expiry.
	void note_on_disk(uint16_t d, Micros expires_at) const noexcept { lower(dbs_[d].disk_expiry, expires_at); }
	void note_on_disk(const Queue &q, const Entry &e) const noexcept
	{
		if (may_expire(e))
			note_on_disk(q.db, e.expires_at);
	}
	bool has_overdue(const Queue &q, Micros wall) const noexcept
	{
		return q.expiry.min != kNil && entries_[q.expiry.min].expires_at <= wall;
	}
	// Marks `expire` by `owner` at most `max` expired entries; returns how many are in `out`. Entries in locked
	// segments stay; examines at most kMostSkipped of them.
	static constexpr int kMostSkipped = 4096;
	int collect_expired(Queue &q, Micros wall, int max, uint32_t owner, Ref *out,
						LockedSegments *locked = nullptr) noexcept;

	// --- waiting (core/lanes.cpp, core/limits.cpp)
	void wait_enter(Queue &q, Ref w, uint32_t proc, const uint64_t *kinds, int nkinds, uint64_t workers = 0) noexcept;
	// Removes the waiter after it claimed or gave up; returns whether it had a token. Passes the token to another
	// waiter while startable jobs outnumber tokens. `pass` false: the process claims next (tq_wait); if it does not,
	// the scheduler's sweep wakes another waiter.
	bool wait_leave(Queue &q, Ref w, bool pass = true) noexcept;
	// How many of the `max` requested jobs a claim takes: its fair share of startable jobs while other waiters are
	// awake. `granted`: the claim's own waiter has a token.
	int claim_share(const Queue &q, int max, bool granted) const noexcept;
	void call_when_startable(Queue &q) noexcept; // calls Platform::startable once
	void wake_for_startable(Queue &q) noexcept;	 // grants tokens to waiters while startable jobs have none

	void wake_worker(const Queue &q, uint64_t worker) noexcept; // wakes the waiters that claim for this worker (a bit)

	// --- waiting for many queues and for jobs (core/watchers.cpp)
	// The rows of a queue, of all queues of a database, and of the jobs (or missing queues) with the same hash.
	uint32_t all_row(uint16_t db) const noexcept { return shared_->limits.queues + db; }
	uint32_t job_row(uint16_t db, JobId id) const noexcept;
	// Sets or clears the bit of a process in a row. No lock. A process that sets bits then registers, then looks.
	void watch(uint32_t row, uint32_t proc) noexcept;
	void unwatch(uint32_t row, uint32_t proc) noexcept;
	// Wakes the processes of a row, whether registered or not; `clear`: clears their bits.
	void wake_watchers(uint32_t row, bool clear) noexcept;
	bool has_bit(uint32_t row, uint32_t proc) const noexcept
	{
		return (bits(row)[1 + proc / 64].load() >> (proc % 64) & 1) != 0;
	}
	bool is_watched(uint32_t row) const noexcept { return bits(row)->load() > 0; }
	// Calls is(slot) for the queues with startable jobs, of all databases, until it returns true; returns whether it
	// did. Limits may keep these jobs from starting. No lock: the cost hardly depends on the number of queues. A
	// process calls it after watch_begin(), so it finds each job that became startable before wakers saw the process.
	template <class Is> bool any_startable(Is &&is) const
	{
		for (uint32_t word = 0; word < (shared_->limits.queues + 63) / 64; ++word)
			for (uint64_t left = startable_bits_[word].load(); left != 0; left &= left - 1)
				if (is(static_cast<uint16_t>(word * 64 + static_cast<uint32_t>(std::countr_zero(left)))))
					return true;
		return false;
	}
	// The same for one queue: whether it has startable jobs.
	bool may_start(uint16_t queue) const noexcept
	{
		return (startable_bits_[queue / 64].load() >> (queue % 64) & 1) != 0;
	}
	// From here on the process can get a token of a queue that it watches. `pairs`: see Watcher.
	void watch_begin(uint32_t proc, const uint64_t *pairs, uint32_t npairs) noexcept;
	// The process gets no token any more. Returns the queue of the token that it has, or kNoQueue. The caller locks
	// that queue and calls return_token.
	uint16_t watch_end(uint32_t proc) noexcept;
	void return_token(Queue &q, uint32_t proc, bool pass) noexcept; // `pass`: see wait_leave
	uint16_t token_of_watcher(uint32_t proc) const noexcept;
	uint32_t generation_of_token(uint32_t proc) const noexcept { return watchers_[proc].generation; }
	// Whether the process waits for jobs of this queue and kind, among others. A hint without Q.
	bool watches(uint32_t proc, const Queue &q, uint64_t kind) const noexcept;
	// Calls visit(proc) for each watcher that waits for jobs of the queue, or of one of its kinds.
	template <class Visit> void for_watchers(const Queue &q, Visit &&visit) const noexcept
	{
		for (uint32_t word = 0; has_watchers(q) && word < watch_words(); ++word)
			for (uint64_t left = bits(index_of(q))[1 + word].load() | bits(all_row(q.db))[1 + word].load(); left != 0;
				 left &= left - 1)
			{
				const uint32_t proc = word * 64 + static_cast<uint32_t>(std::countr_zero(left));
				if (watches(proc, q, kSomeKinds))
					visit(proc);
			}
	}
	uint32_t watchers_of(const Queue &q) const noexcept;

	// --- walking (Q)
	Ref next_in_tree(Ref r) const noexcept; // next in a ready, due or lease tree
	// The lane's first ready job without a group and with at least this priority number; kNil if there is none.
	Ref ready_from(const Lane &l, int32_t priority) const noexcept;

  private:
	// The tree that holds an entry by its `main` links. Most marked entries are in none.
	enum class Tree : uint8_t
	{
		none,
		ready,
		due,
		leases,
	};
	static Tree tree_of(const Entry &e) noexcept;
	// Not evictable: an override and a job with a place, because its key differs from its row's; an uncommitted cancel
	// request, because the journal may never get its step; a delayed job that blocks its group. A pause after
	// rolled-back claims does not count as delayed: on disk the job is ready and blocks its group there.
	static bool is_evictable(const Entry &e) noexcept
	{
		const bool undone = e.aborts > 0;
		return !e.has(kOverride) && !has_place(e) && !(undone && e.after_claim != 0) &&
			   !(!undone && e.group != kNil && e.has(kHeld) && e.state == State::delayed);
	}
	void count_pin(Queue &q, bool was, bool is) noexcept;
	// Counts a lane (Queue::paged_lanes) or a group (paged_groups) when its watermark changes from or to kMaxKey.
	void count_paged(Queue &q, uint32_t Queue::*counter, bool was, bool is) noexcept;
	void init_lane(Queue &q, uint16_t l, const char *kind) noexcept;
	void forget_lane(Lane &l) noexcept;
	// Whether startable jobs wait for a time limit or for slots of the pool.
	bool is_throttled(const Queue &q) const noexcept { return q.settings.rate.limits() || places_to_start(q) == 0; }
	// Take an entry out of the structures of its state and mark; put it into them.
	void leave(Queue &q, Entry &e) noexcept;
	void enter(Queue &q, Entry &e) noexcept;
	// Gives a job that has become ready its place in the lane: that of its id or, if it is ready `again` in a queue
	// that orders by readiness, after all jobs that are ready now. The latter stays in memory, so it needs half of the
	// queue's pins to be free. Jobs of groups start in order. Jobs read from disk must be startable, because their lane
	// may have memory for a few only.
	void line_up(Queue &q, Entry &e, bool again) noexcept;
	void end_progress(Entry &e) noexcept;
	void count_worker(const Entry &e, int by) noexcept;
	// Around each change of a lane's first job: take the lane out of the queue's tree `startable`, put it back in if
	// it has a job to start.
	void lane_out(Queue &q, Lane &l) noexcept;
	void lane_in(Queue &q, Lane &l) noexcept;
	void mark_startable(const Queue &q) noexcept;
	void offer(Queue &q, Ref r) noexcept;	  // makes a job available to claims of its lane
	void withdraw(Queue &q, Ref r) noexcept;
	void withdraw_head(Queue &q, Group &g) noexcept; // back among the group's other ready jobs
	bool start(Queue &q, Ref r, const ClaimTerms &terms) noexcept;
	uint16_t next_lane(const Queue &q, const uint64_t *kinds, int nkinds,
					   bool except) const noexcept; // kNoLane if none is startable
	Ref first_of(const Queue &q, const Lane &l, double *turn) const noexcept;
	bool at_limit(const Queue &q) const noexcept
	{
		return (q.settings.max_running > 0 && q.running >= static_cast<uint32_t>(q.settings.max_running)) ||
			   places_to_start(q) == 0;
	}
	// Every change of an entry ends here. `was_full`: the queue was at a limit before.
	void after_change(Queue &q, Ref g, bool was_full) noexcept;
	void update_group(Queue &q, Ref g, bool ask = true) noexcept; // `ask`: request a refill if it runs dry
	void reopen(Queue &q) noexcept;
	void request_refill(Queue &q) noexcept
	{
		if (!q.want_refill.exchange(true))
			platform_.want_refill(q.db);
	}
	void free_group(Queue &q, Ref g) noexcept;
	void want_group(Queue &q, Ref g) noexcept;
	bool group_dry(const Queue &q, const Group &g) const noexcept;
	void set_opening(Queue &q, Ref g, Micros at) noexcept; // into the tree `opening`; kNever: out of it
	void set_resting(Queue &q, Ref g, bool on) noexcept;   // into the tree `resting`, or out of it
	void advance(Queue &q, double turn) noexcept; // the virtual time
	void publish_opening(Queue &q) noexcept;
	void charge(Queue &q, Entry &e) noexcept; // counts a start
	uint32_t group_bucket(const Queue &q, const char *key) const noexcept;
	void set_shares() noexcept;
	uint32_t lent_kinds(const Queue &q) const noexcept;
	bool grant(Queue &q, const Lane &l) noexcept;
	bool grant_watcher(Queue &q, const Lane &l) noexcept;
	bool has_watchers(const Queue &q) const noexcept { return is_watched(index_of(q)) || is_watched(all_row(q.db)); }
	bool has_waiters(const Queue &q) const noexcept { return q.waiters_head != kNil || has_watchers(q); }
	// A row of the watchers' bits: the number of bits set, then the bits, by process.
	uint32_t watch_words() const noexcept { return (shared_->limits.procs + 63) / 64; }
	std::atomic<uint64_t> *bits(uint32_t row) const noexcept { return watch_bits_ + size_t{row} * (1 + watch_words()); }
	void call(Queue &q) noexcept;
	void publish_timers(Queue &q) noexcept;
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
	Share entry_share_{}, group_share_{}, kind_share_{}; // of the limits, which are constant
};

} // namespace tq::core
