// The slots of queues in shared memory: found by name, named, and filled from rows of tq.queue.
#include "queues/queue_names.hpp"

#include "queues/lanes.hpp"

extern "C"
{
#include "commands/sequence.h"
}

#include "queues/near_queues.hpp"
#include "queues/used_queues.hpp"
#include "guc.hpp"
#include "shmem/guarantees.hpp"
#include "shmem/waiting.hpp"
#include "transaction/queue_changes.hpp"
#include "queues/queue_rows.hpp"
#include "queues/rights.hpp"
#include "transaction/pending.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

bool has_control(const char *s, size_t n) noexcept
{
	return std::any_of(s, s + n, [](char c) noexcept { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
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

bool is_name(const char *name) noexcept
{
	const size_t n = strlen(name);
	return n > 0 && n < core::kNameMax && !has_control(name, n);
}

void check_bytes(const char *what, const char *s, size_t n, size_t max, HighControl high)
{
	if (n == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s must not be empty", what)));
	if (n > max)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s is too long", what),
						errdetail("It has %zu bytes; the limit is %zu.", n, max)));
	const bool utf8 = GetDatabaseEncoding() == PG_UTF8;
	const bool low = has_control(s, n);
	const bool test_high = high == HighControl::refused || (high == HighControl::refused_in_utf8 && utf8);
	if (low || (test_high && has_high_control(s, n)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s must not contain control characters", what),
				 low || utf8 ? 0 : errdetail("In this encoding, these are also the bytes from 0x80 to 0x9f.")));
}

void check_name(const char *what, const char *name)
{
	check_bytes(what, name, strlen(name), core::kNameMax - 1, HighControl::allowed);
}

void check_group_key(const char *key)
{
	check_bytes("group_key", key, strlen(key), core::kGroupMax - 1, HighControl::allowed);
}

namespace
{

// Slots that this process has found, by hash. A slot that is used for another queue gets another generation.
struct KnownQueue
{
	uint64 hash;
	uint32 generation;
	uint16_t queue;
};
KnownQueue known_queues[64];

void check_queue_name(const char *name)
{
	check_name("queue", name);
	if (strcmp(name, "*") == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a queue cannot be called \"*\""),
						errdetail("In tq_grant and tq_revoke it stands for all queues.")));
}

// Registry lock held exclusively. Allocates a slot for a new queue.
uint16_t allocate_queue(const Db &db, int32 id, const char *name, core::QueueState state,
						Oid creator = InvalidOid) noexcept
{
	const uint16_t q = engine.free_queue_slot();
	if (q == kNoQueue)
		return q;
	lock_queue(q);
	engine.init_queue(engine.queue(q), index_of(db), id, name, state);
	engine.queue(q).creator = creator;
	unlock_queue(q);
	return q;
}

// Numbers of slots in use.
struct QueueCounts
{
	uint32 all, of_database, own;
	uint32 databases; // that have queues

	// Whether one more queue may have a slot. Each database is guaranteed one, and may have four fifths of the slots
	// that are not guaranteed (core/share.hpp). A role that is not `privileged` may have half of all slots.
	bool allow(bool privileged) const noexcept
	{
		const auto total = static_cast<uint32>(guc::max_queues);
		const core::Share share{1, total - static_cast<uint32>(guaranteed_databases()), 4};
		return share.left(of_database, all - databases) > 0 &&
			   (privileged || core::Share{0, total, 1}.left(own, all) > 0);
	}
};

// Registry lock held.
QueueCounts count_queues(const Db &db, const Rights &mine) noexcept
{
	QueueCounts n{};
	static uint32 counted[guc::kMaxDatabases]; // number of the last count that saw a queue of it, so nothing is cleared
	static uint32 count;
	++count;
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		if (q.state == core::QueueState::free)
			continue;
		++n.all;
		n.databases += counted[q.db] != count;
		counted[q.db] = count;
		n.of_database += q.db == index_of(db);
		n.own += q.creator == mine.user;
	}
	return n;
}

[[noreturn]] void too_many_queues(const QueueCounts *n)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many queues"),
			 n == nullptr ? 0
						  : errdetail("The server has %u queues, this database %u, and role \"%s\" has created %u.",
									  n->all, n->of_database, GetUserNameFromId(GetUserId(), false), n->own),
			 errhint("Drop queues with tq_drop_queue, or raise tq.max_queues (now %d) and restart the server.",
					 guc::max_queues)));
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
	const uint16_t q = engine.find_queue(index_of(db), name, hash);
	if (q != kNoQueue)
		k = KnownQueue{hash, engine.queue(q).generation, q};
	LWLockRelease(registry_lock());
	return q;
}

uint16_t require_queue(const Db &db, const char *name)
{
	const uint16_t q = find_queue(db, name);
	if (q == kNoQueue)
		no_such_queue(db, name);
	return q;
}

namespace
{

// Registry lock held exclusively. A restore may bring a queue with a number that a new queue has drawn here. The new
// queue has no row and so no job: it draws another number when its row is written.
void take_id_from_others(const Db &db, const QueueRow &row) noexcept
{
	for_queues(db, [&row](uint16_t slot, Queue &q) {
		if (q.state != core::QueueState::creating || q.id != row.id || strcmp(q.name, row.name) == 0)
			return;
		lock_queue(slot);
		// A process that writes the queue's row may have drawn another number just now.
		if (q.id == row.id && !q.persisted && q.writer == 0)
			q.id = kNoQueueId;
		unlock_queue(slot);
	});
}

// Queue lock held. Pauses the lanes of the row's paused kinds, and resumes the others.
void pause_lanes(Queue &q, const QueueRow &row) noexcept
{
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
	{
		Lane &lane = engine.lane(l);
		Micros until = 0;
		for (int i = 0; i < row.nkinds; ++i)
			if (lane.has_kind && strcmp(lane.kind, row.kinds[i].kind) == 0)
				until = row.kinds[i].until;
		if (lane.paused_until != until)
			engine.set_paused(q, &lane, until);
	}
}

bool has_group(const QueueRow &row, const char *key) noexcept
{
	const GroupRow *end = row.groups + row.ngroups;
	const auto before = [](const GroupRow &r, const char *k) noexcept { return strcmp(r.key, k) < 0; };
	const GroupRow *at = std::lower_bound<const GroupRow *>(row.groups, end, key, before);
	return at != end && strcmp(at->key, key) == 0;
}

// Queue lock held. Gives groups the settings of the row, and resets the other groups. `loaded`: as for
// Engine::set_group. Returns false if a group gets no slot.
bool set_groups(Queue &q, const QueueRow &row, bool loaded) noexcept
{
	for (Ref g = q.sets_groups ? q.groups_head : kNil, next = kNil; g != kNil; g = next)
	{
		next = engine.group(g).next; // the slot may be freed
		if (engine.group(g).own.any() && !has_group(row, engine.group(g).key))
			engine.set_group(q, g, core::GroupSettings{});
	}
	bool all = true;
	for (int i = 0; i < row.ngroups; ++i)
	{
		const Ref g = engine.group_for(q, row.groups[i].key, true);
		if (g != kNil)
			engine.set_group(q, g, row.groups[i].own, loaded);
		all = all && g != kNil;
	}
	return all;
}

} // namespace

bool any_new_queue(const Db &db) noexcept
{
	LWLockAcquire(registry_lock(), LW_SHARED);
	const bool any =
		any_queue(db, [](uint16_t, const Queue &q) noexcept { return q.state == core::QueueState::creating; });
	LWLockRelease(registry_lock());
	return any;
}

bool install_queue(Db &db, const QueueRow &row, uint32 seen, bool any_new)
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	if (db.queue_changes.load() != seen)
	{
		LWLockRelease(registry_lock());
		return false;
	}
	uint16_t slot = engine.find_queue(index_of(db), row.name, core::hash_name(row.name));
	const bool found = slot != kNoQueue;
	if (any_new)
		take_id_from_others(db, row);
	if (!found)
		slot = allocate_queue(db, row.id, row.name, core::QueueState::active);
	if (slot != kNoQueue)
	{
		lock_queue(slot);
		Queue &q = engine.queue(slot);
		q.id = row.id;
		q.settings = row.settings;
		if (row.creator != InvalidOid)
			q.creator = row.creator;
		if (!found)
			engine.forget_starts(q, mono_now()); // its rates begin with empty buckets
		q.persisted = true;
		q.state = row.closing ? core::QueueState::closing : core::QueueState::active;
		engine.refresh_groups(q); // they depend on the queue's settings
		engine.set_paused(q, nullptr, row.paused_until);
		unlock_queue(slot);
	}
	LWLockRelease(registry_lock());
	if (slot == kNoQueue)
		too_many_queues(nullptr);
	if (!found)
		wake_for_name(db, row.name);
	for (int i = 0; i < row.nkinds; ++i)
		if (lane_for(slot, row.kinds[i].kind, Make::attempt) == core::kNoLane)
			ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
							  errmsg("kind \"%s\" of queue \"%s\" is not paused: there are too many kinds",
									 row.kinds[i].kind, row.name),
							  errhint("Raise tq.max_lanes (now %d) and restart the server.", guc::max_lanes)));
	// A commit may have changed the queue since the locks were released.
	lock_queue(slot);
	const bool current = db.queue_changes.load() == seen;
	if (current)
		pause_lanes(engine.queue(slot), row);
	const bool all_groups = !current || set_groups(engine.queue(slot), row, !found);
	unlock_queue(slot);
	if (!all_groups)
		ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						  errmsg("groups of queue \"%s\" are not paused or limited: there are too many groups",
								 row.name),
						  errhint("Raise tq.max_groups (now %d) and restart the server.", guc::max_groups)));
	return current;
}

uint16_t find_or_read(Db &db, const char *name)
{
	const uint16_t slot = find_queue(db, name);
	return slot == kNoQueue && read_queues(db, name) > 0 ? find_queue(db, name) : slot;
}

namespace
{

// The slot of a queue to which the current user may produce. A missing queue gets a slot in state creating, if the user
// has the privilege create.
uint16_t find_or_name(Db &db, const char *name)
{
	uint16_t slot = find_or_read(db, name);
	if (slot != kNoQueue)
	{
		require_right_or_create(db, slot, name, kProduce);
		return slot;
	}
	check_queue_name(name);
	require_right_to_make(db, name, kProduce);
	if (!guc::auto_create_queues)
		no_such_queue(db, name);
	const char *perhaps = message_level_is_interesting(NOTICE) ? perhaps_queue(db, name) : "";
	bool made = false;
	slot = name_queue(db, name, core::QueueState::creating, &made);
	if (!made)
	{
		require_right_or_create(db, slot, name, kProduce);
		return slot;
	}
	wake_for_name(db, name);
	ereport(NOTICE, (errmsg("queue \"%s\" is created on first use", name),
					 errhint("%sWith tq.auto_create_queues off, an unknown name is an error.", perhaps)));
	return slot;
}

} // namespace

int32 draw_queue_id()
{
	return static_cast<int32>(
		nextval_internal(get_relname_relid("queue_id_seq", get_namespace_oid("tq", false)), false));
}

uint16_t name_queue(Db &db, const char *name, core::QueueState state, bool *made)
{
	check_queue_name(name);
	const Rights &mine = rights(db);
	const bool privileged = (mine.everywhere & kQueueRights) == kQueueRights;
	const Oid creator = privileged ? InvalidOid : mine.user;
	const int32 id = draw_queue_id();
	QueueCounts n{};
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	uint16_t slot = engine.find_queue(index_of(db), name, core::hash_name(name));
	*made = slot == kNoQueue;
	if (*made)
		n = count_queues(db, mine);
	if (*made && n.allow(privileged))
		slot = allocate_queue(db, id, name, state, creator);
	LWLockRelease(registry_lock());
	if (slot == kNoQueue)
		too_many_queues(&n);
	return slot;
}

uint16_t queue_for_enqueue(Db &db, const char *name)
{
	const uint16_t slot = find_or_name(db, name);
	const Queue &q = engine.queue(slot);
	const uint32 generation = q.generation;
	ensure_queue_row(db, slot); // may wait
	// From use_queue on, the slot stays with its queue. Before, it may have been given to another queue.
	if (!use_queue(slot) || q.db != index_of(db) || strcmp(q.name, name) != 0)
		no_such_queue(db, name);
	if (q.generation != generation) // another queue of that name
		require_right_or_create(db, slot, name, kProduce);
	return slot;
}

// `slot`: a queue's, or kNoQueue. Until tq_create_queue commits, the queue exists for its own transaction only.
static bool exists(uint16_t slot) noexcept
{
	return slot != kNoQueue && (engine.queue(slot).state != core::QueueState::reserved || queue_reserved_here(slot));
}

bool queue_exists(const Db &db, const char *name) { return exists(find_queue(db, name)); }

uint16_t queue_for_claim(Db &db, const char *name)
{
	const uint16_t slot = find_or_read(db, name);
	if (exists(slot))
	{
		require_right(db, slot, name, kConsume);
		return slot;
	}
	check_queue_name(name);
	require_right_to_await(db, name, kConsume);
	if (!guc::auto_create_queues)
		no_such_queue(db, name);
	return kNoQueue;
}

void check_still_there(uint16_t queue, uint32 generation, const char *name, bool may)
{
	const Queue &q = engine.queue(queue);
	if (q.generation != generation || (!may && q.state == core::QueueState::closing))
		ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("queue \"%s\" does not exist", name),
						errdetail("It was dropped while this session waited for it.")));
}

uint32 generation_of(const Db &db, uint16_t queue, const char *name)
{
	const Queue &q = engine.queue(queue);
	const uint32 generation = q.generation;
	std::atomic_thread_fence(std::memory_order_acquire);
	if (q.state == core::QueueState::free || q.db != index_of(db) || strcmp(q.name, name) != 0)
		no_such_queue(db, name);
	return generation;
}

} // namespace tq
