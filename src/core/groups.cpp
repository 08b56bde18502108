// Jobs with a group_key: which of them may start next, and how a group's backlog is paged. A group's ready jobs wait in a tree of
// their own; its first one is offered to claims while the group may start one. So a group that may not start costs claims nothing, and
// with a watermark of its own its backlog stays on disk without holding up anybody else's.
#include "core/engine.hpp"

#include <cstring>

namespace tq::core
{

// --- slots -------------------------------------------------------------------------------------------------------

Ref Engine::group_for(Queue &q, const char *key, bool make) noexcept
{
	const uint64_t hash = hash_name(key) ^ (static_cast<uint64_t>(index_of(q)) * 0x9e3779b97f4a7c15ULL);
	const uint32_t b = group_bucket(hash);
	const uint32_t partition = b % kPartitions;
	platform_.lock_partition(partition, false);
	Ref g = group_buckets_[b];
	while (g != kNil && !(groups_[g].hash == hash && groups_[g].queue == index_of(q) && std::strcmp(groups_[g].key, key) == 0))
		g = groups_[g].hash_next;
	platform_.unlock_partition(partition);
	if (g != kNil || !make)
		return g;

	uint64_t now = shared_->free_groups.load(std::memory_order_acquire);
	do
	{
		g = static_cast<Ref>(now);
		if (g == kNil)
		{
			if (q.resting.min == kNil)
				return kNil;
			free_group(q, q.resting.min); // a turn forgotten is better than a job sent to disk
			now = shared_->free_groups.load(std::memory_order_acquire);
			g = static_cast<Ref>(now);
			if (g == kNil)
				return kNil;
		}
	} while (!shared_->free_groups.compare_exchange_weak(
		now, ((now >> 32) + 1) << 32 | std::atomic_ref<Ref>(groups_[g].hash_next).load(std::memory_order_relaxed),
		std::memory_order_acquire));
	Group &n = groups_[g];
	const size_t length = std::min(std::strlen(key), kGroupMax - 1);
	std::memcpy(n.key, key, length);
	n.key[length] = '\0';
	shared_->used_groups.fetch_add(1, std::memory_order_relaxed);
	++q.groups;
	n.hash = hash;
	// what nobody has looked for may be on disk
	n.watermark = unknown_groups(q) ? kMinKey : kMaxKey;
	q.sunk_groups += n.watermark != kMaxKey;
	n.limit = kMaxKey;
	n.ready = Root{};
	n.bucket = Bucket{};
	if (q.starts_from != 0)
		n.bucket.empty(q.settings.group_rate, q.starts_from);
	n.timer = Links{};
	n.opens_at = kNever;
	n.turn = 0;
	n.head = n.wanted_next = kNil;
	n.entries = n.running = n.held = 0;
	n.loader = kNil;
	n.queue = index_of(q);
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
	--q.groups;
	opens_at(q, g, kNever);
	rests(q, g, false);
	if (x.watermark != kMaxKey)
		--q.sunk_groups;
	if (x.wanted)
	{
		Ref before = kNil;
		for (Ref i = q.wanted; i != g; i = groups_[i].wanted_next)
			before = i;
		(before != kNil ? groups_[before].wanted_next : q.wanted) = x.wanted_next;
		if (q.wanted_tail == g)
			q.wanted_tail = before;
	}
	const uint32_t b = group_bucket(x.hash);
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
	while (!shared_->free_groups.compare_exchange_weak(now, ((now >> 32) + 1) << 32 | g, std::memory_order_release));
	// others wait for a slot
	if (q.discover.load() && !q.want_refill.exchange(true))
		platform_.want_refill(q.db);
}

// --- who may start -------------------------------------------------------------------------------------------------

int32_t Engine::group_limit(const Queue &q) const noexcept
{
	if (q.settings.group_max_running != kUnset)
		return q.settings.group_max_running;
	return q.settings.fair ? 0 : 1;
}

Engine::Block Engine::blocked(const Queue &q, const Group &g) const noexcept
{
	const int32_t limit = group_limit(q);
	if (limit > 0 && g.running >= static_cast<uint32_t>(limit))
		return Block::running;
	if (limit > 0 && g.held > 0 && !q.settings.loose_groups)
		return Block::held;
	const Ref next = g.head != kNil ? g.head : g.ready.min;
	if (next != kNil && !(entries_[next].key() < g.watermark))
		return Block::disk;
	if (q.settings.group_rate.limits() && !g.bucket.open(q.settings.group_rate, platform_.mono()))
		return Block::rate;
	return Block::none;
}

// Offers the group's next job, or takes it back; gives the slot away if nothing needs it.
void Engine::settle(Queue &q, Ref r, bool ask) noexcept
{
	Group &g = groups_[r];
	const Block block = g.head == kNil && g.ready.min == kNil ? Block::none : blocked(q, g);
	if (g.head != kNil && block != Block::none)
	{
		withdraw(q, g.head);
		by_key().insert(g.ready, g.head);
		g.head = kNil;
	}
	else if (g.head == kNil && block == Block::none && g.ready.min != kNil)
	{
		const Ref first = g.ready.min;
		by_key().remove(g.ready, first);
		g.head = first;
		if (q.settings.fair)
			g.turn = std::max(g.turn, q.vclock); // one that had nothing to start has not saved up turns
		offer(q, first);
	}
	const Rate &rate = q.settings.group_rate;
	const bool unneeded = g.entries == 0 && g.watermark == kMaxKey && g.loader == kNil;
	Micros at = kNever;
	if (block == Block::rate)
		at = g.bucket.opens_at(rate);
	else if (unneeded && rate.limits() && g.bucket.full_by() > platform_.mono())
		at = g.bucket.full_by(); // a new slot would begin with a full bucket,
	// and with the turn that has come
	const bool rest = unneeded && at == kNever && q.settings.fair && g.turn > q.vclock;
	if (!rest)
		rests(q, r, false);
	opens_at(q, r, at);
	if (rest)
		rests(q, r, true);
	if (ask && group_dry(q, g))
		want_group(q, r);
	if (unneeded && at == kNever && !rest)
		free_group(q, r);
}

void Engine::rests(Queue &q, Ref r, bool on) noexcept
{
	Group &g = groups_[r];
	if (g.resting == on)
		return;
	if (on)
		by_rest().insert(q.resting, r);
	else
		by_rest().remove(q.resting, r);
	g.resting = on;
}

void Engine::after(Queue &q, Ref g, bool was_full) noexcept
{
	if (g != kNil)
		settle(q, g);
	if (was_full && !at_limit(q) && (q.waiters_head != kNil || q.call))
		reopen(q);
}

void Engine::opens_at(Queue &q, Ref r, Micros at) noexcept
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
	for (Ref r = 0; r < shared_->limits.groups; ++r)
	{
		Group &g = groups_[r];
		if (!owns(q, r))
			continue;
		rests(q, r, false);
		g.bucket.fit(q.settings.group_rate, now);
		if (g.head != kNil)
		{
			withdraw(q, g.head);
			by_key().insert(g.ready, g.head);
			g.head = kNil;
		}
	}
	for (uint16_t l = q.lanes; l != kNoLane; l = lanes_[l].next)
		lane_out(q, lanes_[l]);
	for (Ref r = 0; r < shared_->limits.groups; ++r)
	{
		if (!owns(q, r))
			continue;
		if (!q.settings.fair)
			groups_[r].turn = 0;
		settle(q, r);
	}
	refresh(q);
	publish_opening(q);
}

// --- paging ----------------------------------------------------------------------------------------------------------

// A share of the memory for each. Where it gets short, all groups together may keep half of it.
uint32_t Engine::group_cap() const noexcept
{
	const uint32_t all = shared_->limits.entries;
	if (free_entries() > all / 2)
		return std::max(all / 16, 4U);
	const uint32_t groups = std::max(shared_->used_groups.load(std::memory_order_relaxed), 1U);
	return std::clamp(all / 2 / groups, 1U, std::max(all / 256, 2U));
}

bool Engine::group_dry(const Queue &q, const Group &g) const noexcept
{
	if (g.watermark == kMaxKey || g.loader != kNil || q.paused_until != 0)
		return false;
	const uint32_t waiting = g.ready.size + (g.head != kNil);
	return waiting < std::max(std::min(shared_->limits.entries / 512, group_cap() / 2), 1U) ||
		   (g.head == kNil && g.ready.min != kNil && !(entries_[g.ready.min].key() < g.watermark));
}

void Engine::want_group(Queue &q, Ref r) noexcept
{
	Group &g = groups_[r];
	if (!g.wanted)
	{
		g.wanted = true;
		g.wanted_next = kNil;
		(q.wanted_tail != kNil ? groups_[q.wanted_tail].wanted_next : q.wanted) = r;
		q.wanted_tail = r;
	}
	if (!q.want_refill.exchange(true))
		platform_.want_refill(q.db);
}

Ref Engine::take_wanted(Queue &q) noexcept
{
	while (q.wanted != kNil)
	{
		const Ref r = q.wanted;
		q.wanted = groups_[r].wanted_next;
		if (q.wanted == kNil)
			q.wanted_tail = kNil;
		groups_[r].wanted = false;
		if (group_dry(q, groups_[r]))
			return r;
		settle(q, r); // nothing may need it any more
	}
	return kNil;
}

void Engine::want_groups_again(Queue &q) noexcept
{
	// nobody claims any more, or others need the slots
	if (q.resting.min != kNil && (q.startable.min == kNil || !has_free_group()))
		advance(q, groups_[q.resting.max].turn);
	if (q.discover.load() && !q.want_refill.exchange(true))
		platform_.want_refill(q.db);
	if (q.sunk_groups == 0)
		return;
	for (Ref r = 0; r < shared_->limits.groups; ++r)
		if (owns(q, r) && group_dry(q, groups_[r]))
			want_group(q, r);
}

void Engine::sink_group(Queue &q, Ref r, Key key) noexcept
{
	Group &g = groups_[r];
	g.limit = std::min(g.limit, key);
	if (key < g.watermark)
	{
		q.sunk_groups += g.watermark == kMaxKey;
		g.watermark = key;
	}
	settle(q, r);
}

void Engine::sink_groups(Queue &q, Key key) noexcept
{
	want_discovery(q);
	for (Ref r = 0; r < shared_->limits.groups; ++r)
		if (owns(q, r))
			sink_group(q, r, key);
}

void Engine::raise_group(Queue &q, Ref r, Key key) noexcept
{
	Group &g = groups_[r];
	const Key to = std::min(key, g.limit);
	if (g.watermark < to)
	{
		q.sunk_groups -= to == kMaxKey;
		g.watermark = to;
	}
}

Key Engine::start_group_load(Queue &q, Ref r, uint32_t loader) noexcept
{
	groups_[r].loader = loader;
	groups_[r].limit = kMaxKey;
	++q.group_loads;
	return groups_[r].watermark;
}

void Engine::end_group_load(Queue &q, Ref r, bool again) noexcept
{
	groups_[r].loader = kNil;
	--q.group_loads;
	settle(q, r, again); // if not, the sweep asks for it
}

void Engine::want_discovery(Queue &q) noexcept
{
	q.discover.store(true);
	if (!q.want_refill.exchange(true))
		platform_.want_refill(q.db);
}

void Engine::sink_job(Queue &q, Lane &l, const char *group_key, Ref g, Key key) noexcept
{
	if (g == kNil && group_key != nullptr)
		g = group_for(q, group_key, false);
	if (g != kNil)
		sink_group(q, g, key);
	else if (group_key != nullptr)
		want_discovery(q);
	else
		sink(q, l, key);
}

bool Engine::takes(Queue &q, const char *group_key, Key key) noexcept
{
	const Ref g = group_for(q, group_key, false);
	return g != kNil ? key < groups_[g].watermark && has_room(groups_[g]) : !unknown_groups(q);
}

bool Engine::vouches(const Queue &q, const Lane &l, const char *group_key, Ref g, Key key) const noexcept
{
	if (g != kNil)
		return key < groups_[g].watermark;
	return group_key != nullptr ? !unknown_groups(q) : key < l.watermark;
}

bool Engine::evict_from_group(Queue &q, Ref r, Key above, uint32_t hint) noexcept
{
	int tries = 8;
	for (Ref i = groups_[r].ready.max; i != kNil && tries > 0; i = by_key().prev(i), --tries)
	{
		const Entry &e = entries_[i];
		if (e.key() <= above)
			return false;
		if (!is_evictable(e))
			continue;
		sink_group(q, r, e.key());
		drop(q, i, hint);
		return true;
	}
	return false;
}

bool Engine::evict_head(Queue &q, Ref r, uint32_t hint) noexcept
{
	const Group &g = groups_[r];
	if (g.head == kNil || g.ready.min != kNil)
		return false;
	const Ref head = g.head;
	const Entry &e = entries_[head];
	if (!is_evictable(e) || !holds_back(q, lanes_[e.lane], e.key()))
		return false;
	sink_group(q, r, e.key()); // it is no head any more
	drop(q, head, hint);
	return true;
}

bool Engine::evict_group(Queue &q, Ref r, uint32_t hint) noexcept
{
	Group &g = groups_[r];
	const Rate &rate = q.settings.group_rate;
	Bucket anew; // as its next slot would have it
	if (q.starts_from != 0)
		anew.empty(rate, q.starts_from);
	if (g.loader != kNil || g.entries != g.ready.size + (g.head != kNil) || (g.head != kNil && !is_evictable(entries_[g.head])) ||
		(rate.limits() && g.bucket.full_at > anew.full_at && g.bucket.full_by() > platform_.mono()))
		return false;
	for (Ref i = g.ready.min; i != kNil; i = by_key().next(i))
		if (!is_evictable(entries_[i]))
			return false;
	sink_group(q, r, kMinKey); // its head is none any more, and it keeps the slot while its jobs go
	while (g.ready.min != kNil)
		drop(q, g.ready.min, hint);
	want_discovery(q); // first: who finds no slot then knows that there may be jobs on disk
	free_group(q, r);
	return true;
}

bool Engine::evict_delayed_group(Queue &q, uint32_t hint, int *evicted) noexcept
{
	Ref before = kNil;
	for (Ref r = by_timer().last(q.due, [](Ref) noexcept { return true; }); r != kNil; r = before)
	{
		before = by_timer().prev(r);
		const Entry &e = entries_[r];
		const Ref g = e.group;
		if (g == kNil || !is_evictable(e) || groups_[g].head != kNil || groups_[g].ready.min != kNil || groups_[g].running > 0)
			continue;
		const bool last = groups_[g].entries == 1;
		sink_timer(q.db, e.timer);
		lanes_[e.lane].count_delayed(1);
		drop(q, r, hint);
		++*evicted;
		// it keeps its slot if it may have jobs on disk
		if (last && (!owns(q, g) || evict_group(q, g, hint)))
			return true;
	}
	return false;
}

} // namespace tq::core
