#include "shmem/shared.hpp"

#include "guc.hpp"
#include "shmem/asked_kinds.hpp"
#include "shmem/grant_changes.hpp"
#include "shmem/guarantees.hpp"
#include "shmem/progress.hpp"
#include "shmem/test_support.hpp"
#include "pg/wal.hpp"

extern "C"
{
#include "access/twophase.h"
}

namespace tq
{

Engine engine;
uint32 my_proc = kNil;

namespace
{

struct Header
{
	uint32 databases;
	uint32 segments;
	uint32 xips;
	bool crashed;
};

// This process's pointers into shared memory.
struct Attached
{
	Header *header = nullptr;
	Db *dbs = nullptr;
	SegmentSlot *segments = nullptr;
	TransactionId *xips = nullptr;
	LWLockPadded *locks = nullptr;
	Db *current = nullptr; // this session's database
	// Slots of queues that queue_of_id() has found, by id, and the last one. There are more places than queues
	// (tq.max_queues), so that ids drawn one after the other do not share places.
	uint16_t known_queues[65536] = {};
	uint16_t last_queue = 0;
};
Attached own;

uint32 max_procs()
{
	// Includes background workers and auxiliary processes: procno indexes ProcGlobal->allProcs.
	return static_cast<uint32>(MaxBackends + NUM_AUXILIARY_PROCS);
}

// The transactions of a snapshot, and the process's own.
uint32 max_xips() { return max_procs() + static_cast<uint32>(max_prepared_xacts) + 1; }

// SegmentSlot begins a cache line.
static_assert(PG_CACHE_LINE_SIZE % core::kCacheLine == 0);

Size own_size()
{
	const Size n = static_cast<Size>(guc::max_databases);
	Size size = CACHELINEALIGN(sizeof(Header));
	size = add_size(size, CACHELINEALIGN(sizeof(Db) * n));
	size = add_size(size, MAXALIGN(mul_size(sizeof(SegmentSlot) * n, static_cast<Size>(guc::max_segments))));
	size = add_size(size, MAXALIGN(mul_size(sizeof(TransactionId) * 2 * n, max_xips())));
	return size;
}

int lock_count() { return 1 + static_cast<int>(core::kPartitions) + guc::max_databases + guc::max_queues; }

void lock_partition(uint32_t p, bool exclusive) noexcept
{
	LWLockAcquire(&own.locks[1 + p].lock, exclusive ? LW_EXCLUSIVE : LW_SHARED);
}
void unlock_partition(uint32_t p) noexcept { LWLockRelease(&own.locks[1 + p].lock); }

void sooner(uint32_t d, Micros at, bool monotonic) noexcept
{
	const Db &db = own.dbs[d];
	if (at < (monotonic ? db.plan_mono : db.plan_wall).load())
		wake_scheduler(db);
}

void want_refill(uint32_t d) noexcept
{
	if (!own.dbs[d].refill.exchange(true))
		wake_scheduler(own.dbs[d]);
}

void wake(uint32_t d) noexcept { wake_scheduler(own.dbs[d]); }

// Draws may raise Db::next_id beyond the block.
JobId next_id(uint32_t d) noexcept
{
	return std::min(own.dbs[d].next_id.load(std::memory_order_relaxed), own.dbs[d].id_limit.load());
}

} // namespace

core::Limits limits()
{
	return core::Limits{static_cast<uint32>(guc::max_live_jobs),
						static_cast<uint32>(guc::max_lanes),
						static_cast<uint32>(guc::max_queues),
						static_cast<uint32>(guc::max_databases),
						max_procs(),
						static_cast<uint32>(guc::max_workers),
						static_cast<uint32>(guc::max_groups)};
}

void request_shmem()
{
	RequestAddinShmemSpace(add_size(own_size(), Engine::size(limits())));
	RequestAddinShmemSpace(progress_size());
	RequestAddinShmemSpace(asked_kinds_size(max_procs()));
	RequestAddinShmemSpace(clock_size());
	RequestAddinShmemSpace(grants_size());
#ifdef TQ_TEST
	RequestAddinShmemSpace(test_shmem_size());
#endif
	RequestNamedLWLockTranche("tq", lock_count());
}

void init_shmem()
{
	bool found = false;
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	char *base = static_cast<char *>(ShmemInitStruct("tq databases", own_size(), &found));
	own.header = reinterpret_cast<Header *>(base);
	base += CACHELINEALIGN(sizeof(Header));
	own.dbs = reinterpret_cast<Db *>(base);
	base += CACHELINEALIGN(sizeof(Db) * static_cast<Size>(guc::max_databases));
	own.segments = reinterpret_cast<SegmentSlot *>(base);
	base +=
		MAXALIGN(sizeof(SegmentSlot) * static_cast<Size>(guc::max_databases) * static_cast<Size>(guc::max_segments));
	own.xips = reinterpret_cast<TransactionId *>(base);
	if (!found)
	{
		memset(static_cast<void *>(own.header), 0, own_size());
		own.header->databases = static_cast<uint32>(guc::max_databases);
		own.header->segments = static_cast<uint32>(guc::max_segments);
		own.header->xips = max_xips();
		own.header->crashed = !pg::was_shut_down();
	}
	void *region = ShmemInitStruct("tq live jobs", Engine::size(limits()), &found);
	const bool created = !found;
	if (created)
		engine.create(region, limits());
	else
		engine.attach(region);
	init_progress();
	init_asked_kinds(max_procs());
	init_clock();
	init_grants();
	engine.set_platform({lock_partition, unlock_partition, wake_proc, sooner, want_refill, mono_now, wake, end_progress,
						 wake, next_id});
	own.locks = GetNamedLWLockTranche("tq");
#ifdef TQ_TEST
	init_test_shmem();
#endif
	LWLockRelease(AddinShmemInitLock);
	if (created)
		warn_of_sizes();
}

void Awaited::forget() noexcept
{
	for (std::atomic<uint64> &word : filter)
		word.store(0);
	for (std::atomic<int64> &slot : noted)
		slot.store(0);
	bits.store(0);
	emptied.store(0);
	openers.store(0);
	some.store(true);
	all.store(true);
	complete.store(false);
}

bool preloaded() noexcept { return own.header != nullptr; }
bool server_crashed() noexcept { return own.header->crashed; }
Db *current_db() noexcept { return own.current; }
void set_current_db(Db &db) noexcept { own.current = &db; }

Db &db_at(int i) noexcept { return own.dbs[i]; }
uint16_t index_of(const Db &db) noexcept { return static_cast<uint16_t>(&db - own.dbs); }
SegmentSlot &segment_at(const Db &db, int slot) noexcept
{
	return own.segments[index_of(db) * own.header->segments + static_cast<uint32>(slot)];
}
TransactionId *count_xip(const Db &db) noexcept { return own.xips + size_t{index_of(db)} * 2 * own.header->xips; }
TransactionId *counted_xip(const Db &db) noexcept { return count_xip(db) + own.header->xips; }

LWLock *registry_lock() noexcept { return &own.locks[0].lock; }
LWLock *map_lock(const Db &db) noexcept { return &own.locks[1 + core::kPartitions + index_of(db)].lock; }
LWLock *queue_lock(uint16_t q) noexcept { return &own.locks[1 + core::kPartitions + own.header->databases + q].lock; }

void nap(long ms)
{
	static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

void wake_proc(uint32 proc) noexcept { SetLatch(&ProcGlobal->allProcs[proc].procLatch); }

void wake_database() noexcept
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; ++i)
		if (ProcGlobal->allProcs[i].databaseId == MyDatabaseId)
			wake_proc(i);
}

void wake_scheduler(const Db &db) noexcept
{
	const uint32 s = db.scheduler.load();
	if (s != 0)
		wake_proc(s - 1);
}

void wake_scheduler_by(const Db &db, Micros wall) noexcept { sooner(index_of(db), wall, false); }

uint16_t queue_of_id(const Db &db, int32 id) noexcept
{
	const uint16_t d = index_of(db);
	const uint32 n = engine.limits().queues;
	const auto is = [d, id](uint32 i) noexcept {
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		return q.state != core::QueueState::free && q.db == d && q.id == id;
	};
	uint16_t &at = own.known_queues[static_cast<uint32>(id) % lengthof(own.known_queues)];
	if (at < n && is(at))
		return at;
	// A pass over the journal mostly reads queues in slot order.
	for (uint32 tried = 0, i = own.last_queue; tried < n; ++tried, i = i + 1 < n ? i + 1 : 0)
		if (is(i))
			return at = own.last_queue = static_cast<uint16_t>(i);
	return kNoQueue;
}

} // namespace tq
