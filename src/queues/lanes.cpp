#include "queues/lanes.hpp"

#include "guc.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "pg/array.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

// The lanes that the open transaction holds, as a bit for each and as a list.
constexpr uint32 kBits = 64;
uint64 held_bits[(UINT16_MAX + 1) / kBits];
pg::Array<uint16_t> held; // in TopMemoryContext; only grows

uint64 bit_of(uint16_t lane) noexcept { return uint64{1} << lane % kBits; }
bool holds(uint16_t lane) noexcept { return (held_bits[lane / kBits] & bit_of(lane)) != 0; }

// The caller has reserved memory.
void hold(uint16_t lane) noexcept
{
	if (holds(lane))
		return;
	engine.lane(lane).users.fetch_add(1);
	held_bits[lane / kBits] |= bit_of(lane);
	held.push(lane);
}

void let_go(uint16_t lane) noexcept
{
	engine.lane(lane).users.fetch_sub(1);
	held_bits[lane / kBits] &= ~bit_of(lane);
}

// Lanes of kinds that this backend has found.
struct Known
{
	uint32 frees; // Lane::frees when it was found
	uint16_t queue;
	uint16_t lane;
	char kind[core::kNameMax];
};
Known known[1024];

bool is_kind(const Lane &l, uint16_t queue, const char *kind) noexcept
{
	return l.used && l.queue == queue && strcmp(l.kind, kind) == 0;
}

// Holds a lane that was found earlier, if it is still the same. A process that frees a lane sets `closing` before it
// reads `users`.
bool hold_known(const Known &k, uint16_t queue, const char *kind) noexcept
{
	if (k.queue != queue || k.kind[0] == '\0' || strcmp(k.kind, kind) != 0)
		return false;
	if (holds(k.lane))
		return is_kind(engine.lane(k.lane), queue, kind);
	hold(k.lane);
	const Lane &l = engine.lane(k.lane);
	if (!l.closing.load() && l.frees.load() == k.frees && is_kind(l, queue, kind))
		return true;
	let_go(k.lane);
	--held.n;
	return false;
}

// Registry lock held. Frees idle lanes of a queue. A load's transaction holds the lanes that it has found until they
// are counted.
int free_idle_lanes(uint16_t queue) noexcept
{
	Queue &q = engine.queue(queue);
	int n = 0;
	lock_queue(queue);
	if (q.state != core::QueueState::free)
		for (uint16_t l = q.lanes, next = 0; l != core::kNoLane; l = next)
		{
			next = engine.lane(l).next;
			n += engine.free_idle_lane(q, l);
		}
	unlock_queue(queue);
	return n;
}

// Registry lock held. Frees an idle lane of the queue, else of another queue. If the others had none, searches them
// again after at least a second, unless `must`.
bool find_idle_lane(uint16_t queue, bool must) noexcept
{
	constexpr Micros kPause = core::kSecond;
	static Micros searched = -kPause;
	int n = free_idle_lanes(queue);
	const Micros now = steady_now();
	if (n > 0 || (!must && now - searched < kPause))
		return n > 0;
	for (uint32 i = 0; i < engine.limits().queues && n == 0; ++i)
		n += engine.queue(static_cast<uint16_t>(i)).kinds > 0 ? free_idle_lanes(static_cast<uint16_t>(i)) : 0;
	if (n == 0)
		searched = now;
	return n > 0;
}

// The queue with most kinds among those on which the user has rights; kNoQueue if there is none.
uint16_t queue_with_most_kinds(const Db &db)
{
	const Rights &mine = rights(db);
	uint16_t most = kNoQueue;
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		if (mine.may(q, kQueueRights) && q.kinds > (most != kNoQueue ? engine.queue(most).kinds : 0))
			most = slot;
	});
	return most;
}

// How many queues and kinds the queue's creator has; empty if the creator has no limit.
const char *kinds_of_role(const Queue &q)
{
	if (q.creator == InvalidOid)
		return "";
	LWLockAcquire(registry_lock(), LW_SHARED);
	const core::Holder h = engine.held_by_creator(q);
	LWLockRelease(registry_lock());
	const char *role = GetUserNameFromId(q.creator, true);
	const core::Share &share = engine.kind_share();
	return psprintf(" Role \"%s\" has created %u queues with %u kinds. Beyond %u for each queue, a role can have at "
					"most %u.",
					role != nullptr ? role : psprintf("%u", q.creator), h.queues, h.kinds, share.guaranteed,
					share.most() - share.guaranteed);
}

[[noreturn]] void too_many_kinds(uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	const Db &db = db_at(q.db);
	const uint32 own = q.kinds;
	const uint16_t most = queue_with_most_kinds(db);
	const char *largest = most != kNoQueue ? psprintf(" Queue \"%s\" has the most, %u.", engine.queue(most).name,
													  engine.queue(most).kinds)
										   : "";
	ereport(
		ERROR,
		(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many kinds of jobs in queue \"%s\"", q.name),
		 errdetail("The queue has %u kinds with jobs, this database %u, and the server has places for %d.%s%s", own,
				   engine.db(q.db).kinds.load(), guc::max_lanes, largest, kinds_of_role(q)),
		 errhint("A kind is a type of job: put values into the payload. Otherwise raise tq.max_lanes and restart the "
				 "server.")));
}

} // namespace

uint16_t lane_for(uint16_t queue, const char *kind, Make make)
{
	if (kind == nullptr)
		return queue; // the lane of jobs without a kind (Engine::lane_slots)
	Known &k = known[(core::hash_name(kind) + queue) % lengthof(known)];
	held.reserve(TopMemoryContext, 1);
	if (hold_known(k, queue, kind))
		return k.lane;
	check_name("kind", kind);
	Queue &q = engine.queue(queue);
	const uint32 generation = q.generation;
	lock_queue(queue);
	uint16_t lane = engine.find_lane(q, kind);
	if (lane != core::kNoLane)
		hold(lane);
	unlock_queue(queue);
	bool gone = false;
	if (lane == core::kNoLane && make == Make::never)
		return core::kNoLane;
	if (lane == core::kNoLane)
	{
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		for (bool again = true; again && lane == core::kNoLane;)
		{
			lock_queue(queue);
			gone = q.generation != generation || q.state == core::QueueState::free;
			lane = engine.find_lane(q, kind);
			if (lane == core::kNoLane && !gone)
				lane = engine.make_lane(q, kind, make == Make::must);
			if (lane != core::kNoLane)
				hold(lane);
			unlock_queue(queue);
			again = lane == core::kNoLane && !gone && find_idle_lane(queue, make == Make::must);
		}
		LWLockRelease(registry_lock());
	}
	if (gone)
		ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("the queue was dropped meanwhile")));
	if (lane == core::kNoLane && make == Make::attempt)
		return core::kNoLane;
	if (lane == core::kNoLane)
		too_many_kinds(queue);
	k.frees = engine.lane(lane).frees.load();
	k.queue = queue;
	k.lane = lane;
	strlcpy(k.kind, kind, sizeof(k.kind));
	return lane;
}

void leave_lanes(bool aborted) noexcept
{
	while (held.n > 0)
	{
		const uint16_t lane = held[--held.n];
		let_go(lane);
		const Lane &l = engine.lane(lane);
		const uint16_t queue = l.queue;
		if (!aborted || !l.used || l.count.live != 0)
			continue;
		// The slot may have a new lane by now, but only an idle lane is freed.
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		lock_queue(queue);
		Queue &q = engine.queue(queue);
		if (q.state != core::QueueState::free)
			static_cast<void>(engine.free_idle_lane(q, lane));
		unlock_queue(queue);
		LWLockRelease(registry_lock());
	}
}

} // namespace tq
