// The shared memory region: layout, initialization, attaching.
#include "core/engine.hpp"

#include <new>

namespace tq::core
{

namespace
{

constexpr size_t kAlign = 128;
static_assert(kAlign % kCacheLine == 0);

// Separates fields that all processes read from fields that enqueues and claims write, by cache line.
#define LINE(type, field) (offsetof(type, field) / kCacheLine)
static_assert(LINE(Shared, limits) != LINE(Shared, free_lists) && sizeof(FreeList) == kCacheLine);
static_assert(LINE(Shared, free_count) != LINE(Shared, free_lists[kFreeLists - 1]) &&
			  LINE(Shared, free_count) != LINE(Shared, free_groups));
static_assert(LINE(Queue, generation) < LINE(Queue, users) && LINE(Queue, state) < LINE(Queue, users) &&
			  LINE(Queue, settings) + sizeof(QueueSettings) / kCacheLine < LINE(Queue, users));
static_assert(sizeof(Queue) % kCacheLine == 0);
#undef LINE

constexpr size_t aligned(size_t n) noexcept { return (n + kAlign - 1) / kAlign * kAlign; }

struct Offsets
{
	size_t entries, buckets, lanes, queues, dbs, workers, waiters, watchers, watch_bits, startable_bits, groups,
		group_buckets, queue_buckets, end;
};

size_t watch_bits(const Limits &l) noexcept
{
	return (size_t{l.queues} + l.databases + kJobRows) * (1 + (l.procs + 63) / 64);
}

Offsets offsets(const Limits &l) noexcept
{
	Offsets o{};
	size_t at = aligned(sizeof(Shared));
	auto take = [&at](size_t n) {
		const size_t here = at;
		at += aligned(n);
		return here;
	};
	o.entries = take(sizeof(Entry) * l.entries);
	o.buckets = take(sizeof(Ref) * l.entries);
	o.lanes = take(sizeof(Lane) * (size_t{l.lanes} + l.queues));
	o.queues = take(sizeof(Queue) * l.queues);
	o.dbs = take(sizeof(DbCore) * l.databases);
	o.workers = take(sizeof(Worker) * l.workers);
	o.waiters = take(sizeof(Waiter) * l.procs * kWaitersPerProc);
	o.watchers = take(sizeof(Watcher) * l.procs);
	o.watch_bits = take(sizeof(uint64_t) * watch_bits(l));
	o.startable_bits = take(sizeof(uint64_t) * ((l.queues + 63) / 64));
	o.groups = take(sizeof(Group) * l.groups);
	o.group_buckets = take(sizeof(Ref) * l.groups);
	o.queue_buckets = take(sizeof(uint16_t) * l.queues);
	o.end = at;
	return o;
}

} // namespace

size_t Region::size(const Limits &limits) noexcept { return offsets(limits).end; }

void Engine::create(void *memory, const Limits &limits) noexcept
{
	auto *shared = new (memory) Shared{};
	shared->limits = limits;
	attach(memory);
	for (FreeList &list : shared->free_lists)
		list.head.store(tagged(0, kNil));
	for (uint32_t i = 0; i < limits.entries; ++i)
	{
		entries_[i] = Entry{};
		buckets_[i] = kNil;
	}
	// in reverse, so that the first entries are used first
	for (uint32_t i = limits.entries; i-- > 0;)
		push_free(i, static_cast<uint32_t>(uint64_t{i} * kFreeLists / limits.entries));
	shared->free_groups.store(tagged(0, limits.groups > 0 ? 0 : kNil));
	for (uint32_t i = 0; i < limits.groups; ++i)
	{
		new (&groups_[i]) Group{};
		groups_[i].hash_next = i + 1 < limits.groups ? i + 1 : kNil;
		group_buckets_[i] = kNil;
	}
	for (uint32_t i = 0; i < lane_slots(); ++i)
		new (&lanes_[i]) Lane{};
	for (uint32_t i = 0; i < limits.queues; ++i)
	{
		new (&queues_[i]) Queue{};
		queue_buckets_[i] = kNoQueue;
	}
	for (uint32_t i = 0; i < limits.databases; ++i)
	{
		auto *d = new (&dbs_[i]) DbCore{};
		d->timer_watermark.store(kNever);
		d->timer_limit.store(kNever);
		d->timer_skipped.store(kNever);
		d->disk_expiry.store(kNever);
		d->lease_limit.store(INT64_MAX);
	}
	for (uint32_t i = 0; i < limits.workers; ++i)
		new (&workers_[i]) Worker{};
	for (uint32_t i = 0; i < limits.procs * kWaitersPerProc; ++i)
		new (&waiters_[i]) Waiter{};
	for (uint32_t i = 0; i < limits.procs; ++i)
		new (&watchers_[i]) Watcher{};
	for (size_t i = 0; i < watch_bits(limits); ++i)
		new (&watch_bits_[i]) std::atomic<uint64_t>{0};
	for (uint32_t i = 0; i < (limits.queues + 63) / 64; ++i)
		new (&startable_bits_[i]) std::atomic<uint64_t>{0};
}

void Region::find_arrays(void *memory) noexcept
{
	auto *base = static_cast<char *>(memory);
	shared_ = reinterpret_cast<Shared *>(base);
	const Offsets o = offsets(shared_->limits);
	entries_ = reinterpret_cast<Entry *>(base + o.entries);
	buckets_ = reinterpret_cast<Ref *>(base + o.buckets);
	lanes_ = reinterpret_cast<Lane *>(base + o.lanes);
	queues_ = reinterpret_cast<Queue *>(base + o.queues);
	dbs_ = reinterpret_cast<DbCore *>(base + o.dbs);
	workers_ = reinterpret_cast<Worker *>(base + o.workers);
	waiters_ = reinterpret_cast<Waiter *>(base + o.waiters);
	watchers_ = reinterpret_cast<Watcher *>(base + o.watchers);
	watch_bits_ = reinterpret_cast<std::atomic<uint64_t> *>(base + o.watch_bits);
	startable_bits_ = reinterpret_cast<std::atomic<uint64_t> *>(base + o.startable_bits);
	groups_ = reinterpret_cast<Group *>(base + o.groups);
	group_buckets_ = reinterpret_cast<Ref *>(base + o.group_buckets);
	queue_buckets_ = reinterpret_cast<uint16_t *>(base + o.queue_buckets);
}

void Engine::attach(void *memory) noexcept
{
	find_arrays(memory);
	set_shares();
}

} // namespace tq::core
