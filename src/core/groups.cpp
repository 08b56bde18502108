// Jobs with a group_key: which may start next. Each group has a tree of ready jobs and offers the first to claims while
// it may start one, so a blocked group costs claims nothing.
#include "core/engine.hpp"

#include <cstring>

namespace tq::core
{

// --- slots -------------------------------------------------------------------------------------------------------

uint32_t Engine::group_bucket(const Queue &q, const char *key) const noexcept
{
	const uint64_t hash = hash_name(key) ^ (static_cast<uint64_t>(index_of(q)) * 0x9e3779b97f4a7c15ULL);
	return static_cast<uint32_t>(hash % shared_->limits.groups);
}

Ref Engine::group_for(Queue &q, const char *key, bool make, bool must) noexcept
{
	const uint32_t b = group_bucket(q, key);
	const uint32_t partition = b % kPartitions;
	platform_.lock_partition(partition, false);
	Ref g = group_buckets_[b];
	while (g != kNil && !(groups_[g].queue == index_of(q) && std::strcmp(groups_[g].key, key) == 0))
		g = groups_[g].hash_next;
	platform_.unlock_partition(partition);
	if (g != kNil || !make)
		return g;

	if (!must && group_slots_left(q) == 0)
	{
		if (q.resting.min == kNil)
			return kNil;
		free_group(q, q.resting.min);
	}
	uint64_t now = shared_->free_groups.load(std::memory_order_acquire);
	do
	{
		g = static_cast<Ref>(now);
		if (g == kNil)
		{
			if (q.resting.min == kNil)
				return kNil;
			free_group(q, q.resting.min); // losing a turn is better than evicting a job
			now = shared_->free_groups.load(std::memory_order_acquire);
			g = static_cast<Ref>(now);
			if (g == kNil)
				return kNil;
		}
	} while (!shared_->free_groups.compare_exchange_weak(
		now, tagged((now >> 32) + 1, std::atomic_ref<Ref>(groups_[g].hash_next).load(std::memory_order_relaxed)),
		std::memory_order_acquire));
	Group &n = groups_[g];
	const size_t length = std::min(std::strlen(key), kGroupMax - 1);
	std::memcpy(n.key, key, length);
	n.key[length] = '\0';
	shared_->used_groups.fetch_add(1, std::memory_order_relaxed);
	if (q.groups++ >= group_share().guaranteed)
		shared_->lent_groups.fetch_add(1, std::memory_order_relaxed);
	// jobs that the search has not found yet may be on disk
	const bool unknown = unknown_groups(q);
	n.watermark = unknown ? kMinKey : kMaxKey;
	n.floor = unknown ? 0 : INT64_MAX;
	count_paged(q, &Queue::paged_groups, false, n.watermark != kMaxKey);
	n.limit = kMaxKey;
	n.ready = Root{};
	n.bucket = Bucket{};
	if (q.starts_from != 0)
		n.bucket.empty(q.settings.group_rate, q.starts_from);
	n.timer = Links{};
	n.opens_at = kNever;
	n.own = GroupSettings{};
	n.holds = 0;
	n.turn = 0;
	n.head = n.wanted_next = kNil;
	n.entries = n.running = n.held = 0;
	n.loader = kNil;
	n.queue = index_of(q);
	n.prev = kNil;
	n.next = q.groups_head;
	if (n.next != kNil)
		groups_[n.next].prev = g;
	q.groups_head = g;
	n.wanted = n.opening = n.resting = false;
	std::atomic_ref<uint16_t>(n.home).store(static_cast<uint16_t>(n.queue + 1), std::memory_order_release);
	platform_.lock_partition(partition, true);
	std::atomic_ref<Ref>(n.hash_next).store(group_buckets_[b], std::memory_order_relaxed);
	group_buckets_[b] = g;
	platform_.unlock_partition(partition);
	if (n.watermark != kMaxKey)
		want_group(q, g);
	return g;
}

void Engine::free_group(Queue &q, Ref g) noexcept
{
	Group &x = groups_[g];
	shared_->used_groups.fetch_sub(1, std::memory_order_relaxed);
	if (--q.groups >= group_share().guaranteed)
		shared_->lent_groups.fetch_sub(1, std::memory_order_relaxed);
	(x.prev != kNil ? groups_[x.prev].next : q.groups_head) = x.next;
	if (x.next != kNil)
		groups_[x.next].prev = x.prev;
	set_opening(q, g, kNever);
	set_resting(q, g, false);
	count_paged(q, &Queue::paged_groups, x.watermark != kMaxKey, false);
	if (x.wanted)
	{
		Ref before = kNil;
		for (Ref i = q.wanted; i != g; i = groups_[i].wanted_next)
			before = i;
		(before != kNil ? groups_[before].wanted_next : q.wanted) = x.wanted_next;
		if (q.wanted_tail == g)
			q.wanted_tail = before;
	}
	const uint32_t b = group_bucket(q, x.key);
	platform_.lock_partition(b % kPartitions, true);
	Ref *at = &group_buckets_[b];
	while (*at != g)
		at = &groups_[*at].hash_next;
	std::atomic_ref<Ref>(*at).store(x.hash_next, std::memory_order_relaxed);
	platform_.unlock_partition(b % kPartitions);
	std::atomic_ref<uint16_t>(x.home).store(0, std::memory_order_release);
	x.wanted = false;
	uint64_t now = shared_->free_groups.load(std::memory_order_relaxed);
	do
		std::atomic_ref<Ref>(x.hash_next).store(static_cast<Ref>(now), std::memory_order_relaxed);
	while (!shared_->free_groups.compare_exchange_weak(now, tagged((now >> 32) + 1, g), std::memory_order_release));
	// others wait for a slot
	if (q.discover.load())
		request_refill(q);
}

// --- what may start ------------------------------------------------------------------------------------------------

int32_t Engine::group_limit(const Queue &q, const GroupSettings &own) const noexcept
{
	if (own.max_running != kUnset)
		return own.max_running;
	if (q.settings.group_max_running != kUnset)
		return q.settings.group_max_running;
	return q.settings.fair ? 0 : 1;
}

void Engine::hold_group(Queue &q, Ref r, int by) noexcept
{
	groups_[r].holds = static_cast<uint32_t>(static_cast<int>(groups_[r].holds) + by);
	update_group(q, r);
}

void Engine::set_group(Queue &q, Ref r, const GroupSettings &own, bool loaded) noexcept
{
	Group &g = groups_[r];
	q.sets_groups = q.sets_groups || own.any();
	g.own = own;
	if (loaded)
		g.bucket.empty(group_rate(q, g), q.starts_from);
	g.bucket.fit(group_rate(q, g), platform_.mono());
	update_group(q, r);
}

Block Engine::blocked(const Queue &q, const Group &g) const noexcept
{
	if (g.own.paused_until != 0)
		return Block::paused;
	const int32_t limit = group_limit(q, g.own);
	if (limit > 0 && g.running >= static_cast<uint32_t>(limit))
		return Block::running;
	if (limit > 0 && g.held > 0 && !q.settings.loose_groups)
		return Block::held;
	const Ref next = g.head != kNil ? g.head : g.ready.min;
	if (next != kNil && !(entries_[next].key() < g.watermark))
		return Block::disk;
	const Rate &rate = group_rate(q, g);
	if (rate.limits() && !g.bucket.open(rate, platform_.mono()))
		return Block::rate;
	return Block::none;
}

void Engine::withdraw_head(Queue &q, Group &g) noexcept
{
	withdraw(q, g.head);
	by_key().insert(g.ready, g.head);
	g.head = kNil;
}

// Offers the group's next job or withdraws it; frees the slot if it is unused.
void Engine::update_group(Queue &q, Ref r, bool ask) noexcept
{
	Group &g = groups_[r];
	const Block block = g.head == kNil && g.ready.min == kNil ? Block::none : blocked(q, g);
	if (g.head != kNil && block != Block::none)
		withdraw_head(q, g);
	else if (g.head == kNil && block == Block::none && g.ready.min != kNil)
	{
		const Ref first = g.ready.min;
		by_key().remove(g.ready, first);
		g.head = first;
		if (q.settings.fair)
			g.turn = std::max(g.turn, q.vclock); // a group with nothing to start accumulates no turns
		offer(q, first);
	}
	const Rate &rate = group_rate(q, g);
	const bool unneeded = g.entries == 0 && g.watermark == kMaxKey && g.loader == kNil && !g.own.any() && g.holds == 0;
	Micros at = kNever;
	if (block == Block::rate)
		at = g.bucket.opens_at(rate);
	else if (unneeded && rate.limits() && g.bucket.full_by() > platform_.mono())
		at = g.bucket.full_by(); // a new slot would have a full bucket
	// a new slot would begin at the current virtual time, so a group whose turn is later keeps its slot
	const bool rest = unneeded && at == kNever && q.settings.fair && g.turn > q.vclock;
	if (!rest)
		set_resting(q, r, false);
	set_opening(q, r, at);
	if (rest)
		set_resting(q, r, true);
	if (ask && group_dry(q, g))
		want_group(q, r);
	if (unneeded && at == kNever && !rest)
		free_group(q, r);
}

void Engine::set_resting(Queue &q, Ref r, bool on) noexcept
{
	Group &g = groups_[r];
	if (g.resting == on)
		return;
	if (on)
		by_resting().insert(q.resting, r);
	else
		by_resting().remove(q.resting, r);
	g.resting = on;
}

void Engine::after_change(Queue &q, Ref g, bool was_full) noexcept
{
	if (g != kNil)
		update_group(q, g);
	if (was_full && !at_limit(q) && (has_waiters(q) || q.call))
		reopen(q);
}

void Engine::set_opening(Queue &q, Ref r, Micros at) noexcept
{
	Group &g = groups_[r];
	if (g.opening == (at != kNever) && (!g.opening || g.opens_at == at))
		return;
	if (g.opening)
		by_opening().remove(q.opening, r);
	g.opening = at != kNever;
	g.opens_at = at;
	if (g.opening)
		by_opening().insert(q.opening, r);
	publish_opening(q);
}

void Engine::refresh_groups(Queue &q) noexcept
{
	const Micros now = platform_.mono();
	q.starts.fit(q.settings.rate, now);
	q.enqueues.fit(q.settings.enqueue_rate, now);
	for (Ref r = q.groups_head; r != kNil; r = groups_[r].next)
	{
		Group &g = groups_[r];
		set_resting(q, r, false);
		g.bucket.fit(group_rate(q, g), now);
		if (g.head != kNil)
			withdraw_head(q, g);
	}
	for (uint16_t l = q.lanes; l != kNoLane; l = lanes_[l].next)
		lane_out(q, lanes_[l]);
	for (Ref r = q.groups_head, next = kNil; r != kNil; r = next)
	{
		next = groups_[r].next; // update_group() may free the slot
		if (!q.settings.fair)
			groups_[r].turn = 0;
		update_group(q, r);
	}
	refresh(q);
	publish_opening(q);
}

} // namespace tq::core
