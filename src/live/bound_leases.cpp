// Leases that end with the session that holds them.
//
// Regime: PG; the callback at the end of the session cannot fail. Locks: queue locks, one at a time.
#include "live/bound_leases.hpp"

#include "live/attach.hpp"

namespace tq::live
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
Bound *bounds = nullptr; // TopMemoryContext
int nbounds = 0;
int bounds_room = 0;

bool still_bound(const Bound &b) noexcept
{
	const Entry &e = engine.entry(b.ref);
	return engine.is(engine.queue(b.queue), b.ref, b.id) && e.state == State::running && e.lease == b.lease;
}

// The session ends: its transaction first (this callback runs before ShutdownPostgres, H30), then its leases.
void at_exit(int, Datum)
{
	AbortOutOfAnyTransaction();
	Db *db = current_db();
	if (db == nullptr)
		return;
	TQ_WAIT_POINT_NOFAIL("exit-before-release");
	for (int i = 0; i < nbounds; ++i)
	{
		const uint16_t q = bounds[i].queue;
		lock_queue(q);
		if (still_bound(bounds[i]))
			engine.change(engine.queue(q), bounds[i].ref, [](Entry &e) noexcept {
				e.deadline = 0; // the reaper journals the loss, then offers the job again
				e.timer = kLongOver;
			});
		unlock_queue(q);
	}
	nbounds = 0;
	wake_scheduler(*db);
}

} // namespace

void note_bound(uint16_t queue, Ref ref, JobId id, LeaseNo lease)
{
	if (bounds == nullptr)
	{
		before_shmem_exit(at_exit, static_cast<Datum>(0));
		bounds_room = 32;
		bounds = static_cast<Bound *>(MemoryContextAlloc(TopMemoryContext, sizeof(Bound) * 32));
	}
	if (nbounds == bounds_room)
	{
		int kept = 0;
		for (int i = 0; i < nbounds; ++i)
		{
			lock_queue(bounds[i].queue);
			const bool keep = still_bound(bounds[i]);
			unlock_queue(bounds[i].queue);
			if (keep)
				bounds[kept++] = bounds[i];
		}
		nbounds = kept;
		if (nbounds > bounds_room / 2)
		{
			bounds_room *= 2;
			bounds = static_cast<Bound *>(repalloc(bounds, sizeof(Bound) * static_cast<Size>(bounds_room)));
		}
	}
	bounds[nbounds++] = Bound{queue, ref, id, lease};
}

} // namespace tq::live
