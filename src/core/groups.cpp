// Jobs with a group_key: which may start next, and how a group's backlog is paged. Each group has a tree of ready jobs
// and offers the first to claims while it may start one, so a blocked group costs claims nothing. Each group also has
// its own watermark, so its backlog on disk does not block other groups.
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
		now, ((now >> 32) + 1) << 32 | std::atomic_ref<Ref>(groups_[g].hash_next).load(std::memory_order_relaxed),
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
	while (!shared_->free_groups.compare_exchange_weak(now, ((now >> 32) + 1) << 32 | g, std::memory_order_release));
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

Engine::Block Engine::blocked(const Queue &q, const Group &g) const noexcept
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

// Offers the group's next job or withdraws it; frees the slot if it is unused.
void Engine::update_group(Queue &q, Ref r, bool ask) noexcept
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
			g.turn = std::max(g.turn, q.vclock); // a group with nothing to start accumulates no turns
		offer(q, first);
	}
	const Rate &rate = group_rate(q, g);
	const bool unneeded = g.entries == 0 && g.watermark == kMaxKey && g.loader == kNil && !g.own.any() && g.holds == 0;
	Micros at = kNever;
	if (block == Block::rate)
		at = g.bucket.opens_at(rate);
	else if (unneeded && rate.limits() && g.bucket.full_by() > platform_.mono())
		at = g.bucket.full_by(); // keep the slot: a new one would have a full bucket
	// and the current turn
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
		{
			withdraw(q, g.head);
			by_key().insert(g.ready, g.head);
			g.head = kNil;
		}
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

// --- paging ----------------------------------------------------------------------------------------------------------

// Each group gets a share of the memory. If memory is short, all groups together may keep half of it.
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
	const uint32_t low =
		std::min({shared_->limits.entries / 512, group_cap() / 2, low_mark(q) / std::max(q.paged_groups, 1U)});
	return waiting < std::max(low, 1U) ||
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
	request_refill(q);
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
		update_group(q, r); // the slot may now be unused
	}
	return kNil;
}

void Engine::want_groups_again(Queue &q) noexcept
{
	// no claim advances the turns, or other groups need slots
	if (q.resting.min != kNil && (q.startable.min == kNil || !has_free_group(q)))
		advance(q, groups_[q.resting.max].turn);
	if (q.discover.load())
		request_refill(q);
	if (q.paged_groups == 0)
		return;
	for (Ref r = q.groups_head; r != kNil; r = groups_[r].next)
		if (group_dry(q, groups_[r]))
			want_group(q, r);
}

void Engine::lower_group_watermark(Queue &q, Ref r, Key key, JobId least) noexcept
{
	Group &g = groups_[r];
	g.floor = std::min(g.floor, least);
	g.limit = std::min(g.limit, key);
	if (key < g.watermark)
	{
		count_paged(q, &Queue::paged_groups, g.watermark != kMaxKey, true);
		g.watermark = key;
	}
	update_group(q, r);
}

void Engine::lower_group_watermarks(Queue &q, Key key, JobId least) noexcept
{
	want_discovery(q);
	for (Ref r = q.groups_head; r != kNil; r = groups_[r].next)
		lower_group_watermark(q, r, key, least); // keeps the slot
}

void Engine::raise_group(Queue &q, Ref r, Key key) noexcept
{
	Group &g = groups_[r];
	const Key to = std::min(key, g.limit);
	if (g.watermark < to)
	{
		count_paged(q, &Queue::paged_groups, true, to != kMaxKey);
		g.watermark = to;
		if (to == kMaxKey)
			g.floor = INT64_MAX;
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
	update_group(q, r, again); // otherwise the sweep requests it
}

void Engine::want_discovery(Queue &q) noexcept
{
	q.discover.store(true);
	request_refill(q);
}

void Engine::lower_job_watermark(Queue &q, Lane &l, const char *group_key, Ref g, Key key, JobId least) noexcept
{
	if (g == kNil && group_key != nullptr)
		// Without a slot, a search cannot tell these jobs from those of earlier groups. A paused queue would only use
		// slots that others need.
		g = group_for(q, group_key, q.paused_until == 0);
	if (g != kNil)
		lower_group_watermark(q, g, key, least);
	else if (group_key != nullptr)
		want_discovery(q);
	else
		lower_watermark(q, l, key, least);
}

bool Engine::takes(Queue &q, const char *group_key, Key key) noexcept
{
	const Ref g = group_for(q, group_key, false);
	return g != kNil ? key < groups_[g].watermark && has_room(groups_[g]) : !unknown_groups(q);
}

bool Engine::covered_by_watermark(const Queue &q, const Lane &l, const char *group_key, Ref g, Key key) const noexcept
{
	if (g != kNil)
		return key < groups_[g].watermark || key.id < groups_[g].floor;
	if (group_key != nullptr)
		return !unknown_groups(q);
	return key < l.skipped && (key < l.watermark || (key < l.resume && key.id < l.floor));
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
		lower_group_watermark(q, r, e.key(), e.id);
		note_on_disk(q, e);
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
	lower_group_watermark(q, r, e.key(), e.id); // it is no longer a head
	note_on_disk(q, e);
	drop(q, head, hint);
	return true;
}

bool Engine::evict_group(Queue &q, Ref r, uint32_t hint) noexcept
{
	Group &g = groups_[r];
	const Rate &rate = q.settings.group_rate;
	Bucket anew; // the bucket of a new slot
	if (q.starts_from != 0)
		anew.empty(rate, q.starts_from);
	if (g.loader != kNil || g.own.any() || g.holds > 0 || g.entries != g.ready.size + (g.head != kNil) ||
		(g.head != kNil && !is_evictable(entries_[g.head])) ||
		(rate.limits() && g.bucket.full_at > anew.full_at && g.bucket.full_by() > platform_.mono()))
		return false;
	for (Ref i = g.ready.min; i != kNil; i = by_key().next(i))
		if (!is_evictable(entries_[i]))
			return false;
	lower_group_watermark(q, r, kMinKey); // withdraws its head and keeps the slot while jobs are evicted
	while (g.ready.min != kNil)
	{
		note_on_disk(q, entries_[g.ready.min]);
		drop(q, g.ready.min, hint);
	}
	want_discovery(q); // first: a job without a slot then knows that jobs may be on disk
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
		if (g == kNil || !is_evictable(e) || groups_[g].head != kNil || groups_[g].ready.min != kNil ||
			groups_[g].running > 0)
			continue;
		const bool last = groups_[g].entries == 1;
		evict_timer(q, r, hint);
		++*evicted;
		// it keeps its slot if it may have jobs on disk
		if (last && (!owns(q, g) || evict_group(q, g, hint)))
			return true;
	}
	return false;
}

} // namespace tq::core
