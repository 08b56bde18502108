#include "live/workers_table.hpp"

namespace tq::live
{

uint32_t worker_slot(const Db &db, const char *name) noexcept
{
	static uint32_t last = kNil;
	const uint16_t d = index_of(db);
	if (last != kNil)
	{
		const core::Worker &w = engine.worker(last);
		if (w.used && w.db == d && strcmp(w.name, name) == 0)
			return last;
	}
	const uint64 h = core::hash_name(name);
	uint32_t found = kNil, unused = kNil;
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	for (uint32_t i = 0; i < engine.limits().workers && found == kNil; ++i)
	{
		const core::Worker &w = engine.worker(i);
		if (!w.used)
			unused = unused == kNil ? i : unused;
		else if (w.name_hash == h && w.db == d && strcmp(w.name, name) == 0)
			found = i;
	}
	if (found == kNil && unused != kNil)
	{
		core::Worker &w = engine.worker(unused);
		strlcpy(w.name, name, sizeof(w.name));
		w.name_hash = h;
		w.db = d;
		w.draining.store(false);
		w.running.store(0);
		w.claimed.store(0);
		w.seen_at.store(wall_now());
		w.used = true;
		found = unused;
	}
	LWLockRelease(registry_lock());
	return last = found;
}

void forget_workers(const Db &db, Micros before) noexcept
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		core::Worker &w = engine.worker(i);
		if (w.used && w.db == index_of(db) && w.running.load() == 0 && w.seen_at.load() < before && !w.draining.load())
			w.used = false;
	}
	LWLockRelease(registry_lock());
}

} // namespace tq::live
