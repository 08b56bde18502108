// How a group's backlog is paged: each group has its own watermark, so its backlog on disk does not block other groups.
// Regime: core; everything is noexcept. Locks: the caller holds the queue's.
#include "core/engine.hpp"

#include <algorithm>

namespace tq::core
{

// --- loads --------------------------------------------------------------------------------------------------------

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
	// Frees resting groups if no claim advances the turns, or if other groups need slots.
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
	return g != kNil ? key < groups_[g].watermark && has_capacity(groups_[g]) : !unknown_groups(q);
}

bool Engine::covered_by_watermark(const Queue &q, const Lane &l, const char *group_key, Ref g, Key key) const noexcept
{
	if (g != kNil)
		return key < groups_[g].watermark || key.id < groups_[g].floor;
	if (group_key != nullptr)
		return !unknown_groups(q);
	return key < l.skipped && (key < l.watermark || (key < l.resume && key.id < l.floor));
}

// --- eviction -----------------------------------------------------------------------------------------------------

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
	Bucket fresh; // what a new slot would begin with
	if (q.starts_from != 0)
		fresh.empty(rate, q.starts_from);
	if (g.loader != kNil || g.own.any() || g.holds > 0 || g.entries != g.ready.size + (g.head != kNil) ||
		(g.head != kNil && !is_evictable(entries_[g.head])) ||
		(rate.limits() && g.bucket.full_at > fresh.full_at && g.bucket.full_by() > platform_.mono()))
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
	// before the slot is freed: without it, only this flag says that the group may have jobs on disk
	want_discovery(q);
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
