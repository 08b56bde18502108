// Leases that end with the session that claimed them, and workers that must show life after the
// session's end.
//
// Regime: PG; the callback at the end of the session cannot fail. Locks: queue locks, one at a time.
#include "residency/bound_leases.hpp"

#include "guc.hpp"
#include "shmem/workers_table.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

struct Bound
{
	uint16_t queue;
	Ref ref;
	JobId id;
	LeaseNo lease;
};
pg::Array<Bound> bounds; // in TopMemoryContext
uint64 *workers = nullptr; // by slot: the hash of the worker's name, if this session claimed for it; else 0

void at_exit(int, Datum);

void register_exit()
{
	static bool registered = false;
	if (!registered)
		before_shmem_exit(at_exit, static_cast<Datum>(0));
	registered = true;
}

bool still_bound(const Bound &b) noexcept
{
	const Entry &e = engine.entry(b.ref);
	return engine.is(engine.queue(b.queue), b.ref, b.id) && e.state == State::running && e.lease == b.lease;
}

// At the end of the session, ends its transaction first, because this callback runs before ShutdownPostgres (H30). Then
// ends its leases.
void at_exit(int, Datum)
{
	AbortOutOfAnyTransaction();
	Db *db = current_db();
	if (db == nullptr)
		return;
	TQ_WAIT_POINT_NOFAIL("exit-before-release");
	for (const Bound &b : bounds)
	{
		const uint16_t q = b.queue;
		lock_queue(q);
		if (still_bound(b))
			engine.change(engine.queue(q), b.ref, [](Entry &e) noexcept { core::revoke(e); });
		unlock_queue(q);
	}
	bounds.n = 0;
	for (uint32_t i = 0; workers != nullptr && i < engine.limits().workers; ++i)
		if (workers[i] != 0)
			worker_left(*db, i, workers[i], mono_now() + guc::worker_grace * Micros{1000});
	wake_scheduler(*db);
}

} // namespace

void note_bound(uint16_t queue, Ref ref, JobId id, LeaseNo lease)
{
	register_exit();
	if (bounds.n == bounds.capacity)
	{
		int64 kept = 0;
		for (const Bound &b : bounds)
		{
			lock_queue(b.queue);
			const bool keep = still_bound(b);
			unlock_queue(b.queue);
			if (keep)
				bounds[kept++] = b;
		}
		bounds.n = kept;
		bounds.reserve(TopMemoryContext, kept); // space for as many again, so that few calls search all of it
	}
	bounds.append(TopMemoryContext, Bound{queue, ref, id, lease});
}

void note_worker(uint32_t worker)
{
	register_exit();
	if (workers == nullptr)
		workers = static_cast<uint64 *>(
			MemoryContextAllocZero(TopMemoryContext, sizeof(uint64) * engine.limits().workers));
	workers[worker] = engine.worker(worker).name_hash;
}

} // namespace tq
