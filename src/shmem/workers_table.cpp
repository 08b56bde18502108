#include "shmem/workers_table.hpp"

#include "shmem/waiting.hpp"

namespace tq
{

namespace
{

// A worker without jobs or requests for this long is forgotten.
constexpr Micros kForgotten = 3600 * core::kSecond;
// The same if its slot is needed.
constexpr Micros kIdle = 120 * core::kSecond;
// A worker seen within this time is certainly kept.
constexpr Micros kSurelyKept = 60 * core::kSecond;

// The result of a search for a name.
struct Found
{
	uint32_t slot = kNil;		  // of the name
	uint32_t unused = kNil;
	uint32_t idle_of_role = kNil; // the role's slot that has been idle longest
	uint32_t idle = kNil;		  // any role's slot that has been idle longest
	uint32_t used = 0;			  // slots in use
	uint32_t used_by_role = 0;
};

// By the clock of the worker's database.
Micros idle_for(const core::Worker &w) noexcept { return mono_now_in(db_at(w.db)) - w.seen_mono.load(); }

bool idle_longer(const core::Worker &w, uint32_t than) noexcept
{
	return than == kNil || idle_for(w) > idle_for(engine.worker(than));
}

// Registry lock held.
Found find_name(uint16_t d, const char *name, Oid role) noexcept
{
	Found f;
	const uint64 h = core::hash_name(name);
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		const bool busy = w.running.load() > 0;
		if (!w.used)
		{
			// a claim that found the slot before it was freed may count its job there
			f.unused = f.unused == kNil && !busy ? i : f.unused;
			continue;
		}
		if (w.name_hash == h && w.db == d && strcmp(w.name, name) == 0)
		{
			f.slot = i;
			return f;
		}
		++f.used;
		f.used_by_role += w.role == role;
		if (busy || w.draining.load() || idle_for(w) < kIdle)
			continue;
		if (w.role == role && idle_longer(w, f.idle_of_role))
			f.idle_of_role = i;
		if (idle_longer(w, f.idle))
			f.idle = i;
	}
	return f;
}

// Registry lock held exclusively. Takes an unused slot if the role's share allows it, or else replaces an idle worker
// of the role. `take`: ignores the share, and may replace an idle worker of another role.
uint32_t make_name(const Found &f, uint16_t d, const char *name, Oid role, bool take) noexcept
{
	constexpr uint32_t kFactor = 4; // one role can have four of five slots (core/share.hpp)
	const core::Share share{0, engine.limits().workers, kFactor};
	uint32_t slot = role == InvalidOid || take || share.left(f.used_by_role, f.used) > 0 ? f.unused : kNil;
	if (slot == kNil)
		slot = f.idle_of_role != kNil || !take ? f.idle_of_role : f.idle;
	if (slot == kNil)
		return kNil;
	core::Worker &w = engine.worker(slot);
	strlcpy(w.name, name, sizeof(w.name));
	w.name_hash = core::hash_name(name);
	w.role = role;
	w.db = d;
	w.draining.store(false);
	w.claimed.store(0);
	w.beat.store(core::kLongAgo);
	w.until.store(core::kNever);
	w.revoked.store(0);
	w.ended.store(0);
	w.nrestored = 0;
	w.seen_at.store(wall_now());
	w.seen_mono.store(mono_now());
	w.used = true;
	return slot;
}

// Registry lock held exclusively.
uint32_t find_or_make(uint16_t d, const char *name, Oid role, bool take) noexcept
{
	const Found f = find_name(d, name, role);
	return f.slot != kNil ? f.slot : make_name(f, d, name, role, take);
}

// For a worker without a role: whether a load has found leases of it in the journal. Then its owner is unknown until
// adopt_worker(). Registry lock held.
bool has_restored(const core::Worker &w) noexcept { return w.nrestored > 0 || w.leases.load() > 0; }

} // namespace

uint32_t worker_slot(const Db &db, const char *name, Oid role, bool own) noexcept
{
	static uint32_t known[64]; // slot + 1, by name
	uint32_t &last = known[core::hash_name(name) % lengthof(known)];
	const uint16_t d = index_of(db);
	const Micros mono = mono_now();
	if (last != 0)
	{
		// Without the lock. A worker that was seen lately keeps its slot, so its name is stable: check the time first.
		const core::Worker &w = engine.worker(last - 1);
		if (w.used && mono - w.seen_mono.load() < kSurelyKept && w.db == d && strcmp(w.name, name) == 0)
			return last - 1;
	}
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	const uint32_t found = find_or_make(d, name, role, false);
	if (found != kNil && engine.worker(found).role == InvalidOid && !has_restored(engine.worker(found)))
		engine.worker(found).role = role; // the name came from the journal
	if (found != kNil && (!own || engine.worker(found).role == role))
		worker_seen(found, wall_now(), mono);
	LWLockRelease(registry_lock());
	last = found + 1; // 0 if there is none
	return found;
}

bool set_draining(const Db &db, const char *name, Oid role, bool on, int32 *holds) noexcept
{
	bool done = false;
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	const uint32_t i = on ? find_or_make(index_of(db), name, role, true) : find_name(index_of(db), name, role).slot;
	if (i != kNil)
	{
		core::Worker &w = engine.worker(i);
		const bool was = w.draining.exchange(on);
		done = on || was;
		if (on)
			w.seen_mono.store(mono_now()); // keeps it for an hour
	}
	LWLockRelease(registry_lock());
	if (i != kNil && on)
	{
		// Claims read the flag under their queue's lock. Once this process has had the lock, all jobs of a claim that
		// missed the flag are counted. Claims that wait are woken, and return.
		for_queues(db, [bit = core::worker_bit(core::hash_name(name))](uint16_t slot, const Queue &q) {
			lock_queue(slot);
			engine.wake_worker(q, bit);
			unlock_queue(slot);
		});
		wake_for_name(db, name);
	}
	*holds = i != kNil ? engine.worker(i).running.load() : 0;
	return done;
}

bool has_named(const Db &db, const char *name, Oid role) noexcept
{
	LWLockAcquire(registry_lock(), LW_SHARED);
	const uint32_t i = find_name(index_of(db), name, role).slot;
	const bool own = i != kNil && engine.worker(i).role == role;
	LWLockRelease(registry_lock());
	return own;
}

void copy_worker_name(const Db &db, uint32_t slot, char (&name)[core::kNameMax]) noexcept
{
	LWLockAcquire(registry_lock(), LW_SHARED);
	const core::Worker &w = engine.worker(slot);
	strlcpy(name, w.used && w.db == index_of(db) ? w.name : "", sizeof(name));
	LWLockRelease(registry_lock());
}

// For an error message, so a quadratic search will do.
Oid role_with_most_workers(const Db &db, int *slots) noexcept
{
	Oid most = InvalidOid;
	*slots = 0;
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		int n = 0;
		for (uint32_t k = i; w.used && w.db == index_of(db) && w.role != most && k < engine.limits().workers; ++k)
			n += engine.worker(k).used && engine.worker(k).db == w.db && engine.worker(k).role == w.role;
		if (n > *slots)
		{
			*slots = n;
			most = w.role;
		}
	}
	LWLockRelease(registry_lock());
	return most;
}

bool is_draining(uint32_t worker) noexcept { return worker != kNil && engine.worker(worker).draining.load(); }

void name_if_draining(const Db &db, uint64 name_hash, char (&name)[core::kNameMax]) noexcept
{
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		if (w.used && w.db == index_of(db) && w.name_hash == name_hash && w.draining.load())
			strlcpy(name, w.name, sizeof(name));
	}
	LWLockRelease(registry_lock());
}

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
		if (w.leases.load() == 0)
			w.nrestored = 0;
		if (w.running.load() > 0)
			w.seen_mono.store(now, std::memory_order_relaxed);
		else if (w.seen_mono.load() < now - kForgotten)
			w.used = false;
	}
	LWLockRelease(registry_lock());
}

namespace
{

// Registry lock held, perhaps shared: two sessions may be here at once. `ended` comes first: it stays when the walk has
// cleared `revoked`.
void revoke(core::Worker &w, LeaseNo below) noexcept
{
	core::raise_to(w.ended, below);
	core::raise_to(w.revoked, below);
}

// Registry lock held.
void give_sign(core::DbCore &db, core::Worker &w, Sign sign) noexcept
{
	const Micros now = mono_now();
	if (sign == Sign::life)
	{
		w.beat.store(now);
		w.until.store(core::kNever);
		w.seen_mono.store(now);
		w.seen_at.store(wall_now());
	}
	else if (sign == Sign::end && w.leases.load() > 0)
	{
		// Later claims get greater numbers. A job whose finish is under way is not in the lease tree. If the finish is
		// rolled back, Engine::catch_up ends the lease.
		revoke(w, db.next_lease.load());
		w.until.store(now);
	}
}

} // namespace

Owner sign_for_worker(const Db &db, const char *name, Oid role, Sign sign, WorkerLeases *out) noexcept
{
	Owner owner = Owner::none;
	LWLockAcquire(registry_lock(), LW_SHARED);
	out->slot = find_name(index_of(db), name, role).slot;
	if (out->slot != kNil)
	{
		core::Worker &w = engine.worker(out->slot);
		out->leases = w.leases.load();
		out->draining = w.draining.load();
		out->nrestored = w.nrestored;
		memcpy(out->restored, w.restored, sizeof(out->restored));
		owner = w.role != InvalidOid ? (w.role == role ? Owner::role : Owner::other)
				: has_restored(w)	 ? Owner::unknown
									 : Owner::none;
		// A load has found a lease, but not noted its queue yet. So the role needs rights on all queues.
		if (owner == Owner::unknown && w.nrestored == 0)
			out->nrestored = core::kRestoredQueues + 1;
		if (owner == Owner::role || role == InvalidOid)
			give_sign(engine.db(index_of(db)), w, sign);
		out->asked = w.asked.load();
	}
	LWLockRelease(registry_lock());
	return owner;
}

void adopt_worker(const Db &db, const char *name, Oid role) noexcept
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	const uint32_t i = find_name(index_of(db), name, role).slot;
	if (i != kNil && engine.worker(i).role == InvalidOid)
	{
		engine.worker(i).role = role;
		engine.worker(i).nrestored = 0;
	}
	LWLockRelease(registry_lock());
}

void note_restored(uint32_t worker, uint16_t queue) noexcept
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	core::Worker &w = engine.worker(worker);
	const int known = std::min(w.nrestored, core::kRestoredQueues);
	if (std::find(w.restored, w.restored + known, queue) == w.restored + known)
	{
		if (known < core::kRestoredQueues)
			w.restored[known] = queue;
		w.nrestored = known + 1;
	}
	LWLockRelease(registry_lock());
}

void worker_left(const Db &db, uint32_t worker, uint64 name_hash, Micros until) noexcept
{
	LWLockAcquire(registry_lock(), LW_SHARED);
	core::Worker &w = engine.worker(worker);
	Micros none = core::kNever;
	if (w.used && w.db == index_of(db) && w.name_hash == name_hash)
		w.until.compare_exchange_strong(none, until);
	LWLockRelease(registry_lock());
}

void revoke_absent(Db &db) noexcept
{
	// Read first: a claim that shows life from here on gets a later number.
	const core::LeaseNo next = engine.db(index_of(db)).next_lease.load();
	const Micros now = mono_now();
	bool any = false;
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		core::Worker &w = engine.worker(i);
		if (!w.used || w.db != index_of(db) || w.leases.load() == 0 || w.until.load() > now)
			continue;
		revoke(w, next);
		any = true;
	}
	LWLockRelease(registry_lock());
	if (any)
		db.revocations.store(true);
}

int collect_revocations(Db &db, Revocation *out, int max) noexcept
{
	int n = 0;
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (uint32_t i = 0; i < engine.limits().workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		const core::LeaseNo below = w.revoked.load();
		if (!w.used || w.db != index_of(db) || below == 0)
			continue;
		if (n == max)
		{
			db.revocations.store(true);
			break;
		}
		out[n++] = Revocation{i, below};
	}
	LWLockRelease(registry_lock());
	return n;
}

void end_revocations(const Revocation *list, int n) noexcept
{
	for (int i = 0; i < n; ++i)
	{
		core::LeaseNo below = list[i].below;
		engine.worker(list[i].worker).revoked.compare_exchange_strong(below, 0);
	}
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

} // namespace tq
