// Slots of queues and of the lanes of their kinds: lookup, initialization, release.
// Regime: core; everything is noexcept. Locks: the registry lock, the queue's or both, by the caller: see engine.hpp.
#include "core/engine.hpp"

#include <algorithm>
#include <cstring>

namespace tq::core
{

// --- queues -------------------------------------------------------------------------------------------------------

void Engine::init_queue(Queue &q, uint16_t db, int32_t id, const char *name, QueueState state) noexcept
{
	std::strncpy(q.name, name, kNameMax - 1);
	q.name[kNameMax - 1] = '\0';
	q.name_hash = hash_name(q.name);
	q.id = id;
	q.db = db;
	q.next_of_name = queue_buckets_[q.name_hash % shared_->limits.queues];
	queue_buckets_[q.name_hash % shared_->limits.queues] = index_of(q);
	// a lockless reader that sees the new generation then reads the new name and database
	std::atomic_thread_fence(std::memory_order_release);
	++q.generation;
	q.lanes = kNoLane;
	init_lane(q, index_of(q), nullptr);
	q.state = state;
	q.persisted = false;
	q.writer = 0;
	q.paused_until = q.asked_at = 0;
	q.asked_by = 0;
	q.sets_groups = false;
	q.settings = QueueSettings{};
	q.startable = q.due = q.leases = q.opening = q.resting = q.expiry = Root{};
	mark_startable(q);
	q.groups_head = q.wanted = q.wanted_tail = kNil;
	q.starts = q.enqueues = Bucket{};
	q.rate_opens_at = kNever;
	q.starts_from = 0;
	q.vclock = q.loose_turn = 0;
	q.running = q.entries = q.pinned = q.kinds = q.progress = q.groups = 0;
	q.paged_lanes = q.paged_groups = q.group_loads = 0;
	q.admitted = 0;
	q.expired_head = kNil;
	q.evictable = INT64_MIN;
	q.claims_head = q.claims_tail = q.waiters_head = q.waiters_tail = kNil;
	q.startable_seq = 0;
	q.turns = 0;
	q.tokens = 0;
	q.call = false;
	q.next_due.store(kNever);
	q.next_lease.store(kNever);
	q.next_claim.store(kNever);
	q.careful.store(false);
	q.next_expiry.store(kNever);
	q.next_open.store(kNever);
	q.next_fire.store(kNever);
	q.want_refill.store(false);
	q.discover.store(false);
	q.discovering.store(false);
	q.has_unsent.store(false);
	q.unsent = NotifyCounts{};
	q.enqueued = q.claimed = q.succeeded = q.failed = q.lost = q.dead = q.released = q.cancelled = q.expired = 0;
	q.waits = q.runs = Histogram{};
}

void Engine::free_queue(Queue &q) noexcept
{
	for (uint16_t i = q.lanes; i != kNoLane;)
	{
		const uint16_t next = lanes_[i].next;
		forget_lane(lanes_[i]);
		i = next;
	}
	while (q.waiters_head != kNil)
	{
		Waiter &w = waiters_[q.waiters_head];
		unlink_waiter(q, w);
		platform_.wake(w.proc);
	}
	wake_watchers(index_of(q), true);
	while (q.groups_head != kNil)
		free_group(q, q.groups_head);
	q.lanes = kNoLane;
	uint16_t *at = &queue_buckets_[q.name_hash % shared_->limits.queues];
	while (*at != index_of(q))
		at = &queues_[*at].next_of_name;
	*at = q.next_of_name;
	shared_->first_free_queue = std::min<uint32_t>(shared_->first_free_queue, index_of(q));
	q.state = QueueState::free;
	std::atomic_thread_fence(std::memory_order_release); // as in init_queue
	++q.generation;
}

uint16_t Engine::find_queue(uint16_t db, const char *name, uint64_t hash) const noexcept
{
	uint16_t i = queue_buckets_[hash % shared_->limits.queues];
	while (i != kNoQueue &&
		   !(queues_[i].name_hash == hash && queues_[i].db == db && std::strcmp(queues_[i].name, name) == 0))
		i = queues_[i].next_of_name;
	return i;
}

uint16_t Engine::free_queue_slot() noexcept
{
	uint32_t &i = shared_->first_free_queue;
	while (i < shared_->limits.queues && queues_[i].state != QueueState::free)
		++i;
	return i < shared_->limits.queues ? static_cast<uint16_t>(i) : kNoQueue;
}

// --- lanes --------------------------------------------------------------------------------------------------------

uint16_t Engine::find_lane(const Queue &q, const char *kind) const noexcept
{
	const uint64_t h = kind != nullptr ? hash_name(kind) : 0;
	for (uint16_t i = q.lanes; i != kNoLane; i = lanes_[i].next)
		if (lanes_[i].kind_hash == h && (kind == nullptr || std::strcmp(lanes_[i].kind, kind) == 0))
			return i;
	return kNoLane;
}

uint16_t Engine::make_lane(Queue &q, const char *kind, bool must) noexcept
{
	if (kind == nullptr)
		return index_of(q);
	const uint32_t n = shared_->limits.lanes;
	if (shared_->used_kinds.load(std::memory_order_relaxed) >= n || (!must && !may_add_kind(q)))
		return kNoLane;
	for (uint32_t i = 0; i < n; ++i)
	{
		const uint32_t at = shared_->next_lane < n ? shared_->next_lane : 0;
		shared_->next_lane = at + 1;
		const auto l = static_cast<uint16_t>(shared_->limits.queues + at);
		if (lanes_[l].used)
			continue;
		init_lane(q, l, kind);
		if (q.kinds++ >= kind_share_.guaranteed)
			shared_->lent_kinds.fetch_add(1);
		dbs_[q.db].kinds.fetch_add(1);
		shared_->used_kinds.fetch_add(1);
		return l;
	}
	return kNoLane;
}

void Engine::init_lane(Queue &q, uint16_t i, const char *kind) noexcept
{
	Lane &l = lanes_[i];
	std::memset(l.kind, 0, sizeof(l.kind));
	l.has_kind = kind != nullptr;
	if (l.has_kind)
		std::strncpy(l.kind, kind, kNameMax - 1);
	l.kind_hash = l.has_kind ? hash_name(l.kind) : 0;
	l.watermark = l.limit = l.resume = l.skipped = kMaxKey;
	l.floor = INT64_MAX;
	l.evictable = kMinKey;
	l.ready = l.heads = Root{};
	l.loader = l.first = kNil;
	l.turn = 0;
	l.startable = Links{};
	l.count = Counted{};
	l.delayed_disk = 0;
	l.delayed_changes = 0;
	l.blocked = l.delta_blocked = 0;
	std::fill_n(l.counts, kStates, 0);
	l.asked_at = l.paused_until = 0;
	l.asked_by = 0;
	l.startable_at = 0;
	l.in_startable = l.tail = l.delayed_counted = false;
	l.queue = index_of(q);
	l.next = q.lanes;
	l.used = true;
	q.lanes = i;
}

void Engine::forget_lane(Lane &l) noexcept
{
	l.frees.fetch_add(1);
	l.used = false;
	l.loader = kNil; // a load under way sees that the lane is no longer its own
	count_paged(queues_[l.queue], &Queue::paged_lanes, l.watermark != kMaxKey, false);
	l.watermark = kMaxKey;
	if (!l.has_kind)
		return;
	Queue &q = queues_[l.queue];
	if (--q.kinds >= kind_share_.guaranteed)
		shared_->lent_kinds.fetch_sub(1);
	dbs_[q.db].kinds.fetch_sub(1);
	shared_->used_kinds.fetch_sub(1);
}

bool Engine::free_idle_lane(Queue &q, uint16_t i) noexcept
{
	Lane &l = lanes_[i];
	const bool has_entries = std::any_of(l.counts, l.counts + kStates, [](uint32_t n) noexcept { return n != 0; });
	if (!l.used || !l.has_kind || l.queue != index_of(q) || has_entries || l.count.live != 0 || l.count.delta != 0 ||
		l.blocked != 0 || l.delta_blocked != 0 || l.delayed_disk != 0 || l.loader != kNil || l.paused_until != 0)
		return false;
	// a session that raises `users` later sees `closing` and retries under the queue's lock
	l.closing.store(true);
	const bool idle = l.users.load() == 0;
	if (idle)
	{
		uint16_t *at = &q.lanes;
		while (*at != i)
			at = &lanes_[*at].next;
		*at = l.next;
		forget_lane(l);
	}
	l.closing.store(false);
	return idle;
}

} // namespace tq::core
