// The region of memory of the queue: how it is laid out, how it begins, how a process finds its parts.
#include "core/engine.hpp"

#include <new>

namespace tq::core
{

namespace
{

constexpr size_t kAlign = 128;
constexpr size_t aligned(size_t n) noexcept { return (n + kAlign - 1) / kAlign * kAlign; }

struct Offsets
{
	size_t entries, buckets, lanes, queues, dbs, workers, waiters, groups, group_buckets, end;
};

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
	o.lanes = take(sizeof(Lane) * l.lanes);
	o.queues = take(sizeof(Queue) * l.queues);
	o.dbs = take(sizeof(DbCore) * l.databases);
	o.workers = take(sizeof(Worker) * l.workers);
	o.waiters = take(sizeof(Waiter) * l.procs * kWaitersPerProc);
	o.groups = take(sizeof(Group) * l.groups);
	o.group_buckets = take(sizeof(Ref) * l.groups);
	o.end = at;
	return o;
}

} // namespace

size_t Engine::size(const Limits &limits) noexcept { return offsets(limits).end; }

void Engine::create(void *memory, const Limits &limits) noexcept
{
	auto *shared = new (memory) Shared{};
	shared->limits = limits;
	attach(memory);
	for (auto &head : shared->free_heads)
		head.store(tagged(0, kNil));
	for (uint32_t i = 0; i < limits.entries; ++i)
	{
		entries_[i] = Entry{};
		buckets_[i] = kNil;
	}
	// in reverse, so that the first entries are handed out first
	for (uint32_t i = limits.entries; i-- > 0;)
		push_free(i, static_cast<uint32_t>(uint64_t{i} * kFreeLists / limits.entries));
	shared->free_groups.store(tagged(0, limits.groups > 0 ? 0 : kNil));
	for (uint32_t i = 0; i < limits.groups; ++i)
	{
		new (&groups_[i]) Group{};
		groups_[i].hash_next = i + 1 < limits.groups ? i + 1 : kNil;
		group_buckets_[i] = kNil;
	}
	for (uint32_t i = 0; i < limits.lanes; ++i)
		new (&lanes_[i]) Lane{};
	for (uint32_t i = 0; i < limits.queues; ++i)
		new (&queues_[i]) Queue{};
	for (uint32_t i = 0; i < limits.databases; ++i)
	{
		auto *d = new (&dbs_[i]) DbCore{};
		d->timer_watermark.store(kNever);
		d->timer_limit.store(kNever);
		d->lease_limit.store(INT64_MAX);
	}
	for (uint32_t i = 0; i < limits.workers; ++i)
		new (&workers_[i]) Worker{};
	for (uint32_t i = 0; i < limits.procs * kWaitersPerProc; ++i)
		new (&waiters_[i]) Waiter{};
}

void Engine::attach(void *memory) noexcept
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
	groups_ = reinterpret_cast<Group *>(base + o.groups);
	group_buckets_ = reinterpret_cast<Ref *>(base + o.group_buckets);
}

} // namespace tq::core
