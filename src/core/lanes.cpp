// Lanes and watermarks: which job of a lane is next, which jobs have an entry and which are on disk only; waiters.
#include "core/engine.hpp"

#include <algorithm>

namespace tq::core
{

// --- startable jobs -----------------------------------------------------------------------------------------------

// The next job of a lane: its first job without a group or its first group head. Neither may pass the watermark,
// because an earlier job without a group may be on disk. With fair groups, a head waits only if the watermark has a
// lower priority number. *turn receives the virtual time of the job's group.
Ref Engine::first_of(const Queue &q, const Lane &l, double *turn) const noexcept
{
	const bool fair = q.settings.fair;
	Ref loose = l.ready.min, head = l.heads.min;
	if (loose != kNil && !(entries_[loose].key() < l.watermark))
		loose = kNil;
	if (head != kNil && holds_back(q, l, entries_[head].key()))
		head = kNil;
	const double loose_turn = fair ? std::max(q.loose_turn, q.vclock) : 0;
	const double head_turn = head != kNil ? groups_[entries_[head].group].turn : 0;
	if (loose != kNil && head != kNil)
	{
		const Entry &x = entries_[loose], &y = entries_[head];
		const bool before = x.priority != y.priority	? x.priority < y.priority
							: loose_turn != head_turn ? loose_turn < head_turn
													  : x.ready_key() < y.ready_key();
		(before ? head : loose) = kNil;
	}
	*turn = loose != kNil ? loose_turn : head_turn;
	return loose != kNil ? loose : head;
}

void Engine::lane_out(Queue &q, Lane &l) noexcept
{
	if (l.in_startable)
		by_head().remove(q.startable, index_of(l));
	l.in_startable = false;
	l.first = kNil;
}

void Engine::lane_in(Queue &q, Lane &l) noexcept
{
	if (l.paused_until == 0 && q.paused_until == 0)
		l.first = first_of(q, l, &l.turn);
	if (l.first != kNil)
	{
		by_head().insert(q.startable, index_of(l));
		l.in_startable = true;
	}
	mark_startable(q);
}

// Call it before has_waiters(): a process that is not found there looks at the bits later.
void Engine::mark_startable(const Queue &q) noexcept
{
	std::atomic<uint64_t> &word = startable_bits_[index_of(q) / 64];
	const uint64_t bit = uint64_t{1} << (index_of(q) % 64);
	const bool is = q.startable.min != kNil;
	if (is == ((word.load(std::memory_order_relaxed) & bit) != 0))
		return;
	if (is)
		word.fetch_or(bit);
	else
		word.fetch_and(~bit);
}

void Engine::offer(Queue &q, Ref r) noexcept
{
	const Entry &e = entries_[r];
	Lane &l = lanes_[e.lane];
	bool first = false;
	if (e.group == kNil)
	{
		by_key().insert(l.ready, r);
		first = l.ready.min == r;
	}
	else
	{
		by_turn().insert(l.heads, r);
		first = l.heads.min == r;
	}
	if (first)
	{
		lane_out(q, l);
		lane_in(q, l);
	}
	if ((has_waiters(q) || q.call) && l.in_startable && (e.key() < l.watermark || l.first == r))
	{
		l.startable_at = ++q.startable_seq;
		const int64_t left = starts_left(q);
		if (left > q.tokens) // otherwise the holders of the tokens wake others in wait_leave()
		{
			if (!grant(q, l))
				call(q);
		}
		else if (left == 0 && is_throttled(q))
			publish_opening(q);
	}
}

void Engine::withdraw(Queue &q, Ref r) noexcept
{
	const Entry &e = entries_[r];
	Lane &l = lanes_[e.lane];
	const bool first = l.first == r;
	if (first)
		lane_out(q, l);
	const bool least = e.group == kNil && l.ready.min == r;
	if (e.group == kNil)
		by_key().remove(l.ready, r);
	else
		by_turn().remove(l.heads, r);
	if (first)
		lane_in(q, l);
	if (least && runs_dry(q, l))
		request_refill(q);
}

void Engine::refresh(Queue &q) noexcept
{
	for (uint16_t i = q.lanes; i != kNoLane; i = lanes_[i].next)
	{
		lane_out(q, lanes_[i]);
		lane_in(q, lanes_[i]);
		lanes_[i].startable_at = ++q.startable_seq;
		if (runs_dry(q, lanes_[i]))
			request_refill(q);
	}
	wake_for_startable(q);
	if (q.paged_groups > 0 || q.discover.load())
		want_groups_again(q);
}

void Engine::set_paused(Queue &q, Lane *l, Micros until) noexcept
{
	(l != nullptr ? l->paused_until : q.paused_until) = until;
	refresh(q);
}

// --- watermarks --------------------------------------------------------------------------------------------------

bool Engine::runs_dry(const Queue &q, const Lane &l) const noexcept
{
	if (l.watermark == kMaxKey || q.paused_until != 0 || l.paused_until != 0)
		return false;
	// Entries at or above the watermark, such as overrides, cannot start. If even the first is there, none can.
	return l.ready.size < low_mark(q) || l.ready.min == kNil || !(entries_[l.ready.min].key() < l.watermark);
}

void Engine::lower_watermark(Queue &q, Lane &l, Key key, JobId least) noexcept
{
	if (key < l.limit)
		l.limit = key;
	if (key < l.watermark)
	{
		count_paged(q, &Queue::paged_lanes, l.watermark != kMaxKey, true);
		// Above the old watermark, ids below `least` may be on disk. So the new floor holds up to there only.
		if (least > l.floor)
			l.resume = l.watermark;
		l.floor = least;
		l.watermark = key;
		if (l.in_startable)
		{
			lane_out(q, l);
			lane_in(q, l);
		}
	}
	else if (key < l.resume)
		l.floor = std::min(l.floor, least);
	if (runs_dry(q, l))
		request_refill(q);
}

void Engine::skip(Lane &l, Key from) noexcept { l.skipped = std::min(l.skipped, from); }

void Engine::read_skipped(Queue &q, Lane &l) noexcept
{
	const Key from = l.skipped;
	l.skipped = kMaxKey;
	if (from != kMaxKey)
		lower_watermark(q, l, from);
}

void Engine::raise_watermark(Queue &q, Lane &l, Key key) noexcept
{
	const Key to = std::min(key, l.limit);
	if (to <= l.watermark)
		return;
	count_paged(q, &Queue::paged_lanes, true, to != kMaxKey);
	l.watermark = to;
	if (!(to < l.resume))
	{
		l.resume = to;
		l.floor = INT64_MAX;
	}
	lane_out(q, l);
	lane_in(q, l);
	l.startable_at = ++q.startable_seq;
	wake_for_startable(q);
	// the loader may have read few jobs or none, and no later claim would request more
	if (runs_dry(q, l))
		request_refill(q);
}

bool Engine::evict_ready(Queue &q, Lane &l, Key above, uint32_t hint) noexcept
{
	// Starts at the greatest key that may be evictable (Lane::evictable). enter() raises it for an evictable entry.
	for (Ref r = by_key().last(l.ready, [&](Ref x) noexcept { return entries_[x].key() <= l.evictable; }); r != kNil;
		 r = by_key().prev(r))
	{
		const Entry &e = entries_[r];
		l.evictable = e.key();
		if (e.key() <= above)
			return false;
		if (!is_evictable(e))
			continue;
		lower_watermark(q, l, e.key(), e.id);
		note_on_disk(q, e);
		drop(q, r, hint);
		return true;
	}
	l.evictable = kMinKey;
	return false;
}

// --- waiting -----------------------------------------------------------------------------------------------------

void Engine::wait_enter(Queue &q, Ref i, uint32_t proc, const uint64_t *kinds, int nkinds, uint64_t workers) noexcept
{
	Waiter &w = waiters_[i];
	w.proc = proc;
	w.queue = index_of(q);
	w.generation = q.generation;
	w.since = q.startable_seq;
	w.granted = false;
	w.nkinds = nkinds <= kWaiterKinds ? static_cast<uint8_t>(nkinds) : 0;
	std::copy_n(kinds, w.nkinds, w.kinds);
	w.workers = workers;
	w.prev = q.waiters_tail;
	w.next = kNil;
	(q.waiters_tail != kNil ? waiters_[q.waiters_tail].next : q.waiters_head) = i;
	q.waiters_tail = i;
	w.linked = true;
	if (is_throttled(q))
		publish_opening(q);
}

void Engine::unlink_waiter(Queue &q, Waiter &w) noexcept
{
	(w.prev != kNil ? waiters_[w.prev].next : q.waiters_head) = w.next;
	(w.next != kNil ? waiters_[w.next].prev : q.waiters_tail) = w.prev;
	w.linked = false;
}

bool Engine::wait_leave(Queue &q, Ref i, bool pass) noexcept
{
	Waiter &w = waiters_[i];
	const bool had = w.granted;
	w.granted = false;
	if (w.generation != q.generation) // the slot was freed, which removed its waiters
		return had;
	if (w.linked)
		unlink_waiter(q, w);
	if (had)
	{
		--q.tokens;
		if (pass)
			wake_for_startable(q);
	}
	return had;
}

// Gives a token to the first waiter whose filter matches the lane and that registered before a job last became
// startable there. A later waiter has seen the job and not taken it. It may seem to match, because it names more kinds
// than Waiter::kinds holds. Two such waiters would pass a token back and forth.
bool Engine::grant(Queue &q, const Lane &l) noexcept
{
	for (Ref i = q.waiters_head; i != kNil; i = waiters_[i].next)
	{
		Waiter &w = waiters_[i];
		if (w.since >= l.startable_at)
			break; // the list is in the order of registration, so `since` only grows
		if (w.nkinds != 0 && std::find(w.kinds, w.kinds + w.nkinds, l.kind_hash) == w.kinds + w.nkinds)
			continue;
		unlink_waiter(q, w);
		w.granted = true;
		++q.tokens;
		platform_.wake(w.proc);
		return true;
	}
	return has_watchers(q) && grant_watcher(q, l);
}

void Engine::wake_worker(const Queue &q, uint64_t worker) noexcept
{
	for (Ref i = q.waiters_head; i != kNil; i = waiters_[i].next)
		if ((waiters_[i].workers & worker) != 0)
			platform_.wake(waiters_[i].proc);
}

void Engine::call_when_startable(Queue &q) noexcept
{
	q.call = true;
	if (is_throttled(q))
		publish_opening(q);
}

void Engine::call(Queue &q) noexcept
{
	if (!q.call)
		return;
	q.call = false;
	platform_.startable(q.db);
}

// Grants tokens until there is one for each job that may start. The holder of a token calls this when it stops waiting,
// so no waiter sleeps while a job for it is startable.
void Engine::wake_for_startable(Queue &q) noexcept
{
	uint64_t startable = 0;
	const bool waited_for = has_waiters(q);
	const auto most = static_cast<uint64_t>(waited_for ? starts_left(q) : 0);
	for (Ref i = q.startable.min; i != kNil && waited_for && q.tokens < most; i = by_head().next(i))
	{
		const uint32_t size = lanes_[i].ready.size + lanes_[i].heads.size;
		startable += size;
		for (uint32_t n = size; n > 0 && q.tokens < std::min(startable, most) && grant(q, lanes_[i]); --n)
		{
		}
	}
	if (q.startable.min != kNil && q.tokens == 0 && starts_left(q) > 0)
		call(q);
	if ((waited_for || q.call) && is_throttled(q))
		publish_opening(q);
}

} // namespace tq::core
