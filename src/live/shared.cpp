#include "live/shared.hpp"

#include "guc.hpp"
#include "live/progress.hpp"
#include "live/test_support.hpp"

extern "C"
{
#include "access/twophase.h"
}

namespace tq::live
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
};

Header *header = nullptr;
Db *dbs = nullptr;
SegmentSlot *segments = nullptr;
TransactionId *xips = nullptr;
LWLockPadded *locks = nullptr;

uint32 max_procs()
{
	// background workers and auxiliary processes included: procno indexes ProcGlobal->allProcs
	return static_cast<uint32>(MaxBackends + NUM_AUXILIARY_PROCS);
}

// Of a snapshot, and one's own.
uint32 max_xips()
{
	return max_procs() + static_cast<uint32>(max_prepared_xacts) + 1;
}

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

Size own_size()
{
	const Size n = static_cast<Size>(guc::max_databases);
	Size size = MAXALIGN(sizeof(Header));
	size = add_size(size, MAXALIGN(sizeof(Db) * n));
	size = add_size(size, MAXALIGN(mul_size(sizeof(SegmentSlot) * n, static_cast<Size>(guc::max_segments))));
	size = add_size(size, MAXALIGN(mul_size(sizeof(TransactionId) * 2 * n, max_xips())));
	return size;
}

int lock_count()
{
	return 1 + static_cast<int>(core::kPartitions) + guc::max_databases + guc::max_queues;
}

void lock_partition(uint32_t p, bool exclusive) noexcept
{
	LWLockAcquire(&locks[1 + p].lock, exclusive ? LW_EXCLUSIVE : LW_SHARED);
}
void unlock_partition(uint32_t p) noexcept { LWLockRelease(&locks[1 + p].lock); }

void sooner(uint32_t d, Micros at, bool monotonic) noexcept
{
	const Db &db = dbs[d];
	if (at < (monotonic ? db.plan_mono : db.plan_wall).load())
		wake_scheduler(db);
}

void want_refill(uint32_t d) noexcept
{
	if (!dbs[d].refill.exchange(true))
		wake_scheduler(dbs[d]);
}

void ring(uint32_t d) noexcept { wake_scheduler(dbs[d]); }

} // namespace

void request_shmem()
{
	RequestAddinShmemSpace(add_size(own_size(), Engine::size(limits())));
	RequestAddinShmemSpace(progress_size());
	RequestAddinShmemSpace(clock_size());
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
	header = reinterpret_cast<Header *>(base);
	base += MAXALIGN(sizeof(Header));
	dbs = reinterpret_cast<Db *>(base);
	base += MAXALIGN(sizeof(Db) * static_cast<Size>(guc::max_databases));
	segments = reinterpret_cast<SegmentSlot *>(base);
	base += MAXALIGN(sizeof(SegmentSlot) * static_cast<Size>(guc::max_databases) * static_cast<Size>(guc::max_segments));
	xips = reinterpret_cast<TransactionId *>(base);
	if (!found)
	{
		memset(static_cast<void *>(header), 0, own_size());
		header->databases = static_cast<uint32>(guc::max_databases);
		header->segments = static_cast<uint32>(guc::max_segments);
		header->xips = max_xips();
	}
	void *region = ShmemInitStruct("tq live jobs", Engine::size(limits()), &found);
	if (!found)
		engine.create(region, limits());
	else
		engine.attach(region);
	init_progress();
	init_clock();
	engine.set_platform({lock_partition, unlock_partition, wake_proc, sooner, want_refill, mono_now, ring, end_progress, ring});
	locks = GetNamedLWLockTranche("tq");
#ifdef TQ_TEST
	init_test_shmem();
#endif
	LWLockRelease(AddinShmemInitLock);
}

bool preloaded() noexcept { return header != nullptr; }

Db &db_at(int i) noexcept { return dbs[i]; }
uint16_t index_of(const Db &db) noexcept { return static_cast<uint16_t>(&db - dbs); }
SegmentSlot &segment_at(const Db &db, int slot) noexcept { return segments[index_of(db) * header->segments + static_cast<uint32>(slot)]; }
TransactionId *count_xip(const Db &db) noexcept { return xips + static_cast<size_t>(index_of(db)) * 2 * header->xips; }
TransactionId *counted_xip(const Db &db) noexcept { return count_xip(db) + header->xips; }

LWLock *registry_lock() noexcept { return &locks[0].lock; }
LWLock *map_lock(const Db &db) noexcept { return &locks[1 + core::kPartitions + index_of(db)].lock; }
LWLock *queue_lock(uint16_t q) noexcept { return &locks[1 + core::kPartitions + header->databases + q].lock; }

void wake_proc(uint32 proc) noexcept { SetLatch(&ProcGlobal->allProcs[proc].procLatch); }

void wake_scheduler(const Db &db) noexcept
{
	const uint32 s = db.scheduler.load();
	if (s != 0)
		wake_proc(s - 1);
}

} // namespace tq::live
