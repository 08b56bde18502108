#include "live/workers_table.hpp"

namespace tq::live
{

namespace
{

// Who has held nothing and asked for nothing for that long is forgotten.
constexpr Micros kForgotten = Micros{3600} * 1000000;
// Workers that have been seen within it are not forgotten, by far.
constexpr Micros kSurelyKept = Micros{1800} * 1000000;

// Registry lock held exclusively.
uint32_t find_slot(uint16_t d, const char *name, bool make) noexcept
{
	const uint64 h = core::hash_name(name);
	uint32_t unused = kNil;
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		if (!w.used && w.running.load() == 0)
			unused = unused == kNil ? i : unused;
		else if (w.used && w.name_hash == h && w.db == d && strcmp(w.name, name) == 0)
			return i;
	}
	if (!make || unused == kNil)
		return kNil;
	core::Worker &w = engine.worker(unused);
	strlcpy(w.name, name, sizeof(w.name));
	w.name_hash = h;
	w.db = d;
	w.draining.store(false);
	w.claimed.store(0);
	w.seen_at.store(wall_now());
	w.seen_mono.store(mono_now());
	w.used = true;
	return unused;
}

} // namespace

uint32_t worker_slot(const Db &db, const char *name) noexcept
{
	static uint32_t last = kNil;
	const uint16_t d = index_of(db);
	const Micros mono = mono_now();
	if (last != kNil)
	{
		const core::Worker &w = engine.worker(last);
		// one that has not been seen for longer may be forgotten while we look
		if (w.used && w.db == d && strcmp(w.name, name) == 0 && mono - w.seen_mono.load() < kSurelyKept)
			return last;
	}
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	const uint32_t found = find_slot(d, name, true);
	worker_seen(found, wall_now(), mono);
	LWLockRelease(registry_lock());
	return last = found;
}

bool set_draining(const Db &db, const char *name, bool on, int32 *holds) noexcept
{
	bool done = false;
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	const uint32_t i = find_slot(index_of(db), name, on);
	if (i != kNil)
	{
		core::Worker &w = engine.worker(i);
		const bool was = w.draining.exchange(on);
		done = on || was;
		if (on)
			w.seen_mono.store(mono_now()); // it is not forgotten for an hour
	}
	LWLockRelease(registry_lock());
	// claims look at the flag with their queue locked: whoever is past it has its jobs in the count once the lock was ours
	for (uint32 slot = 0; i != kNil && slot < engine.limits().queues; ++slot)
	{
		const auto q = static_cast<uint16_t>(slot);
		if (engine.queue(q).state == core::QueueState::free || engine.queue(q).db != index_of(db))
			continue;
		lock_queue(q);
		unlock_queue(q);
	}
	*holds = i != kNil ? engine.worker(i).running.load() : 0;
	return done;
}

bool is_draining(uint32_t worker) noexcept { return worker != kNil && engine.worker(worker).draining.load(); }

void worker_seen(uint32_t worker, Micros wall, Micros mono) noexcept
{
	if (worker == kNil)
		return;
	engine.worker(worker).seen_at.store(wall, std::memory_order_relaxed);
	engine.worker(worker).seen_mono.store(mono, std::memory_order_relaxed);
}

void forget_workers(const Db &db) noexcept
{
	const Micros now = mono_now();
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		core::Worker &w = engine.worker(i);
		if (!w.used || w.db != index_of(db))
			continue;
		if (w.running.load() > 0)
			w.seen_mono.store(now, std::memory_order_relaxed);
		else if (w.seen_mono.load() < now - kForgotten)
			w.used = false;
	}
	LWLockRelease(registry_lock());
}

void forget_worker(uint32_t worker) noexcept
{
	if (worker == kNil)
		return;
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	if (engine.worker(worker).running.load() == 0)
		engine.worker(worker).used = false;
	LWLockRelease(registry_lock());
}

} // namespace tq::live
