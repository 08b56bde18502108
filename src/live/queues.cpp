// Queues by name, lanes by kind: their slots in shared memory.
#include "live/attach.hpp"

extern "C"
{
#include "commands/sequence.h"
}

#include "guc.hpp"
#include "live/queue_changes.hpp"
#include "live/queue_settings.hpp"
#include "live/rights.hpp"
#include "live/xact.hpp"
#include "pg/errors.hpp"

namespace tq::live
{

namespace
{

bool has_control(const char *name) noexcept
{
	return std::any_of(name, name + strlen(name), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

} // namespace

bool has_high_control(const char *s, size_t n) noexcept
{
	const bool utf8 = GetDatabaseEncoding() == PG_UTF8;
	if (!utf8 && pg_database_encoding_max_length() > 1)
		return false;
	const auto at = [s](size_t i) noexcept { return static_cast<unsigned char>(s[i]); };
	for (size_t i = 0; i < n; ++i)
		if (utf8 ? at(i) == 0xc2 && i + 1 < n && at(i + 1) < 0xa0 : at(i) >= 0x80 && at(i) < 0xa0)
			return true;
	return false;
}

bool is_name(const char *name) noexcept { return name[0] != '\0' && strlen(name) < core::kNameMax && !has_control(name); }

void check_name(const char *what, const char *name)
{
	const size_t n = strlen(name);
	if (n == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s must not be empty", what)));
	if (n >= core::kNameMax)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s is too long", what),
						errdetail("It has %zu bytes; the limit is %zu.", n, core::kNameMax - 1)));
	if (has_control(name))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s must not contain control characters", what)));
}

namespace
{

uint16_t scan_queues(const Db &db, const char *name, uint64 hash) noexcept
{
	const uint16_t d = index_of(db);
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		if (q.state != core::QueueState::free && q.db == d && q.name_hash == hash && strcmp(q.name, name) == 0)
			return static_cast<uint16_t>(i);
	}
	return kNoQueue;
}

struct KnownQueue
{
	uint64 hash;
	uint32 generation;
	uint16_t queue;
};
KnownQueue known_queues[64];

[[noreturn]] void no_such_queue(const char *name)
{
	ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("queue \"%s\" does not exist", name),
					errdetail("It was never made, or it is being dropped."),
					errhint("Queues are made by tq_create_queue, or by the first enqueue if tq.auto_create_queues is on.")));
}

// Registry lock held exclusively: a slot for a new queue.
uint16_t reserve_queue(const Db &db, int32 id, const char *name, core::QueueState state, Oid creator = InvalidOid) noexcept
{
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto q = static_cast<uint16_t>(i);
		if (engine.queue(q).state != core::QueueState::free)
			continue;
		lock_queue(q);
		engine.init_queue(engine.queue(q), index_of(db), id, name, state);
		engine.queue(q).creator = creator;
		unlock_queue(q);
		return q;
	}
	return kNoQueue;
}

[[noreturn]] void too_many_queues()
{
	ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many queues"),
					errhint("Raise tq.max_queues (now %d) and restart the server.", guc::max_queues)));
}

} // namespace

uint16_t find_queue(const Db &db, const char *name)
{
	const uint64 hash = core::hash_name(name);
	KnownQueue &k = known_queues[hash % lengthof(known_queues)];
	if (k.hash == hash && engine.queue(k.queue).generation == k.generation)
	{
		const Queue &q = engine.queue(k.queue);
		if (q.db == index_of(db) && q.state != core::QueueState::free && strcmp(q.name, name) == 0)
			return k.queue;
	}
	LWLockAcquire(registry_lock(), LW_SHARED);
	const uint16_t q = scan_queues(db, name, hash);
	if (q != kNoQueue)
		k = KnownQueue{hash, engine.queue(q).generation, q};
	LWLockRelease(registry_lock());
	return q;
}

uint16_t require_queue(const Db &db, const char *name)
{
	const uint16_t q = find_queue(db, name);
	if (q == kNoQueue)
		no_such_queue(name);
	return q;
}

namespace
{

// Registry lock held exclusively. A restore may bring a queue of a number that was drawn here for another, of which there is no row yet, and so no
// job: that one draws another number when its row is written.
void take_id_from_others(const Db &db, const QueueRow &row) noexcept
{
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		Queue &q = engine.queue(slot);
		if (q.state != core::QueueState::creating || q.db != index_of(db) || q.id != row.id || strcmp(q.name, row.name) == 0)
			continue;
		lock_queue(slot);
		if (q.id == row.id && !q.persisted && q.writer == 0) // whoever writes its row may have drawn another number just now
			q.id = kNoQueueId;
		unlock_queue(slot);
	}
}

} // namespace

bool install_queue(Db &db, const QueueRow &row, uint32 seen)
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	if (db.queue_changes.load() != seen)
	{
		LWLockRelease(registry_lock());
		return false;
	}
	uint16_t slot = scan_queues(db, row.name, core::hash_name(row.name));
	const bool found = slot != kNoQueue;
	take_id_from_others(db, row);
	if (!found)
		slot = reserve_queue(db, row.id, row.name, core::QueueState::active);
	if (slot != kNoQueue)
	{
		lock_queue(slot);
		Queue &q = engine.queue(slot);
		q.id = row.id;
		q.settings = row.settings;
		if (!found)
			engine.forget_starts(q, mono_now());
		q.persisted = true;
		q.state = row.closing ? core::QueueState::closing : core::QueueState::active;
		engine.refresh_groups(q); // by its settings
		engine.set_paused(q, nullptr, row.paused_until);
		unlock_queue(slot);
	}
	LWLockRelease(registry_lock());
	if (slot == kNoQueue)
		too_many_queues();
	for (int i = 0; i < row.nkinds; ++i)
		lane_for(slot, row.kinds[i].kind);
	lock_queue(slot);
	Queue &q = engine.queue(slot);
	const bool still = db.queue_changes.load() == seen;
	for (uint16_t l = still ? q.lanes : core::kNoLane; l != core::kNoLane; l = engine.lane(l).next)
	{
		Lane &lane = engine.lane(l);
		Micros until = 0;
		for (int i = 0; i < row.nkinds; ++i)
			if (lane.has_kind && strcmp(lane.kind, row.kinds[i].kind) == 0)
				until = row.kinds[i].until;
		if (lane.paused_until != until)
			engine.set_paused(q, &lane, until);
	}
	unlock_queue(slot);
	return still;
}

namespace
{

// The slot of a queue that the current user has this right on; named now if it is new, which takes the right to create queues.
uint16_t find_or_name(Db &db, const char *name, uint8 any_of)
{
	uint16_t slot = find_queue(db, name);
	if (slot == kNoQueue)
	{
		check_name("queue", name);
		// its row may exist though memory has not read it: before the first load, and after a restore
		if (read_queues(db, name) > 0)
			slot = find_queue(db, name);
	}
	if (slot != kNoQueue)
	{
		require_right(db, slot, name, any_of);
		return slot;
	}
	require_right_to_make(db, name, any_of);
	if (!guc::auto_create_queues)
		no_such_queue(name);
	bool made = false;
	slot = name_queue(db, name, core::QueueState::creating, &made);
	if (!made)
		require_right(db, slot, name, any_of);
	return slot;
}

} // namespace

int32 draw_queue_id()
{
	return static_cast<int32>(nextval_internal(get_relname_relid("queue_id_seq", get_namespace_oid("tq", false)), false));
}

uint16_t name_queue(Db &db, const char *name, core::QueueState state, bool *made)
{
	if (strcmp(name, "*") == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a queue cannot be called \"*\""),
						errdetail("In tq_grant and tq_revoke it stands for all queues.")));
	const Rights &mine = rights(db);
	const Oid creator = (mine.everywhere & kQueueRights) != kQueueRights ? mine.user : InvalidOid;
	const int32 id = draw_queue_id();
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	uint16_t slot = scan_queues(db, name, core::hash_name(name));
	*made = slot == kNoQueue;
	if (*made)
		slot = reserve_queue(db, id, name, state, creator);
	LWLockRelease(registry_lock());
	if (slot == kNoQueue)
		too_many_queues();
	return slot;
}

uint16_t queue_for_enqueue(Db &db, const char *name)
{
	const uint16_t slot = find_or_name(db, name, kProduce);
	ensure_queue_row(db, slot);
	// from here on its place is not given to another, which may have happened before
	const Queue &q = engine.queue(slot);
	if (!use_queue(slot) || q.db != index_of(db) || strcmp(q.name, name) != 0)
		no_such_queue(name);
	return slot;
}

uint16_t queue_for_claim(Db &db, const char *name)
{
	const uint16_t slot = find_or_name(db, name, kConsume);
	// a claim is no first use: where a restore may be about to bring queues it takes no row from them
	if (!engine.queue(slot).persisted && !db.dormant.load())
	{
		db.queue_rows.store(true);
		wake_scheduler(db);
	}
	return slot;
}

void check_still_there(uint16_t queue, uint32 generation, const char *name)
{
	if (engine.queue(queue).generation != generation)
		ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("queue \"%s\" does not exist", name),
						errdetail("It was dropped while this session waited for it.")));
}

uint32 generation_of(const Db &db, uint16_t queue, const char *name)
{
	const Queue &q = engine.queue(queue);
	const uint32 generation = q.generation;
	std::atomic_thread_fence(std::memory_order_acquire);
	if (q.state == core::QueueState::free || q.db != index_of(db) || strcmp(q.name, name) != 0)
		no_such_queue(name);
	return generation;
}

uint16_t lane_for(uint16_t queue, const char *kind)
{
	struct Known
	{
		uint32 generation;
		uint16_t queue;
		uint16_t lane;
		char kind[core::kNameMax];
	};
	static Known known[64];
	const uint64 h = kind != nullptr ? core::hash_name(kind) : 0;
	Known &k = known[(h + queue) % lengthof(known)];
	const Queue &peek = engine.queue(queue);
	if (k.generation == peek.generation && k.queue == queue && strcmp(k.kind, kind != nullptr ? kind : "") == 0 &&
		k.generation != 0)
		return k.lane;
	const uint32 generation = peek.generation;
	if (kind != nullptr)
		check_name("kind", kind);
	lock_queue(queue);
	uint16_t lane = engine.find_lane(engine.queue(queue), kind);
	unlock_queue(queue);
	if (lane == core::kNoLane)
	{
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		lock_queue(queue);
		const bool gone = peek.generation != generation || peek.state == core::QueueState::free;
		lane = engine.find_lane(engine.queue(queue), kind);
		if (lane == core::kNoLane && !gone)
			lane = engine.make_lane(engine.queue(queue), kind);
		unlock_queue(queue);
		LWLockRelease(registry_lock());
		if (gone)
			ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("the queue was dropped meanwhile")));
	}
	if (lane == core::kNoLane)
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many kinds of jobs"),
						errdetail("Each kind of a queue takes a slot in shared memory."),
						errhint("Raise tq.max_lanes (now %d) and restart the server.", guc::max_lanes)));
	k.generation = generation;
	k.queue = queue;
	k.lane = lane;
	strlcpy(k.kind, kind != nullptr ? kind : "", sizeof(k.kind));
	return lane;
}

} // namespace tq::live
