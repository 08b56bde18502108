// The shared memory region: its header, its arrays, and the trees over their elements. Engine has the operations.
// Regime: core; everything is noexcept. Locks: as in layout.hpp.
#pragma once

#include "core/layout.hpp"

namespace tq::core
{

constexpr uint32_t kPartitions = 64;
constexpr uint32_t kFreeLists = 16;
constexpr uint32_t kWaitersPerProc = 8;
constexpr uint32_t kJobRows = 1024; // buckets of jobs whose end is waited for

struct Limits
{
	uint32_t entries;
	uint32_t lanes; // for kinds; each queue has one more, for jobs without a kind
	uint32_t queues;
	uint32_t databases;
	uint32_t procs;
	uint32_t workers;
	uint32_t groups;
};

// The head of a lock-free stack. The tag changes with every update, which prevents the ABA problem.
constexpr uint64_t tagged(uint64_t tag, Ref r) noexcept { return tag << 32 | r; }

// A lock-free stack of free entries. Each has a cache line of its own, which avoids false sharing between backends.
struct alignas(kCacheLine) FreeList
{
	std::atomic<uint64_t> head; // tag << 32 | entry
};

// Shared header of the region. Fields that lookups read, enqueues write and groups write are in different cache lines.
struct Shared
{
	Limits limits; // constant
	FreeList free_lists[kFreeLists];
	alignas(kCacheLine) std::atomic<int64_t> free_count;
	alignas(kCacheLine) std::atomic<uint64_t> free_groups; // tag << 32 | group
	std::atomic<uint32_t> used_groups;
	// used slots of each pool, see Share
	std::atomic<uint32_t> lent_entries;
	std::atomic<uint32_t> lent_groups;
	std::atomic<uint32_t> lent_kinds; // by the registry lock
	std::atomic<uint32_t> used_kinds; // by the registry lock
	std::atomic<uint32_t> paged_queues; // queues with lanes or groups that may have jobs on disk only
	uint32_t next_lane;				  // where the search for a free lane starts (registry lock)
	uint32_t first_free_queue;		  // all queue slots before this one are used (registry lock)
};

// --- orders of the trees -------------------------------------------------------------------------------------------

struct EntryByKey
{
	Entry *e;
	Links &links(Ref r) const noexcept { return e[r].main; }
	bool less(Ref a, Ref b) const noexcept { return e[a].ready_key() < e[b].ready_key(); }
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
		return l[a].turn != l[b].turn ? l[a].turn < l[b].turn : x.ready_key() < y.ready_key();
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
	bool less(Ref a, Ref b) const noexcept
	{
		return g[a].opens_at != g[b].opens_at ? g[a].opens_at < g[b].opens_at : a < b;
	}
	uint32_t rank(Ref r) const noexcept { return mix32(r + 1); }
};
struct GroupByTurn : GroupByOpening
{
	bool less(Ref a, Ref b) const noexcept { return g[a].turn != g[b].turn ? g[a].turn < g[b].turn : a < b; }
};

// --- the arrays ----------------------------------------------------------------------------------------------------

// The region as one process sees it.
class Region
{
  public:
	static size_t size(const Limits &limits) noexcept; // in bytes

	Entry &entry(Ref r) const noexcept { return entries_[r]; }
	Lane &lane(uint16_t l) const noexcept { return lanes_[l]; }
	Queue &queue(uint16_t q) const noexcept { return queues_[q]; }
	DbCore &db(uint16_t d) const noexcept { return dbs_[d]; }
	Worker &worker(uint32_t w) const noexcept { return workers_[w]; }
	Waiter &waiter(Ref w) const noexcept { return waiters_[w]; }
	Group &group(Ref g) const noexcept { return groups_[g]; }
	const Limits &limits() const noexcept { return shared_->limits; }
	int64_t free_entries() const noexcept { return shared_->free_count.load(std::memory_order_relaxed); }
	// Lanes by index: first one per queue, for jobs without a kind, then those of kinds.
	uint32_t lane_slots() const noexcept { return shared_->limits.queues + shared_->limits.lanes; }
	uint16_t index_of(const Queue &q) const noexcept { return static_cast<uint16_t>(&q - queues_); }
	uint16_t index_of(const Lane &l) const noexcept { return static_cast<uint16_t>(&l - lanes_); }
	// The queue of the job that has the entry + 1, or 0.
	static uint16_t home_of(const Entry &e) noexcept
	{
		return std::atomic_ref<uint16_t>(const_cast<Entry &>(e).home).load(std::memory_order_acquire);
	}
	// The queue of a group's slot + 1, or 0.
	uint16_t home_of(Ref g) const noexcept
	{
		return std::atomic_ref<uint16_t>(groups_[g].home).load(std::memory_order_acquire);
	}
	// Whether the slot holds a group of this queue (is_group: of any queue). Stable under the lock of q.
	bool owns(const Queue &q, Ref g) const noexcept { return home_of(g) == index_of(q) + 1; }
	bool is_group(Ref g) const noexcept { return home_of(g) != 0; }
	Ref ref_of(const Entry &e) const noexcept { return static_cast<Ref>(&e - entries_); }

  protected:
	void find_arrays(void *memory) noexcept; // in memory with a header

	Treap<EntryByKey> by_key() const noexcept { return {{entries_}}; }
	Treap<EntryByTimer> by_timer() const noexcept { return {{{entries_}}}; }
	Treap<EntryByExpiry> by_expiry() const noexcept { return {{entries_}}; }
	Treap<LaneByHead> by_head() const noexcept { return {{lanes_, entries_}}; }
	Treap<EntryByTurn> by_turn() const noexcept { return {{{entries_}, groups_}}; }
	Treap<GroupByOpening> by_opening() const noexcept { return {{groups_}}; }
	Treap<GroupByTurn> by_resting() const noexcept { return {{{groups_}}}; }

	Shared *shared_ = nullptr;
	Entry *entries_ = nullptr;
	Ref *buckets_ = nullptr; // by the partition's lock; bucket b is in partition b % kPartitions
	Lane *lanes_ = nullptr;
	Queue *queues_ = nullptr;
	DbCore *dbs_ = nullptr;
	Worker *workers_ = nullptr;
	Waiter *waiters_ = nullptr;
	Watcher *watchers_ = nullptr; // by process
	std::atomic<uint64_t> *watch_bits_ = nullptr;
	std::atomic<uint64_t> *startable_bits_ = nullptr; // by queue, each bit by Q: see Engine::any_startable
	Group *groups_ = nullptr;
	Ref *group_buckets_ = nullptr; // as buckets_
	uint16_t *queue_buckets_ = nullptr; // by the registry lock
};

} // namespace tq::core
