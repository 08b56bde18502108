// Lanes and watermarks: which jobs have an entry and which are on disk only; timers; waiters; queue slots.
#include "core/engine.hpp"

#include <algorithm>
#include <cstring>

namespace tq::core
{

// --- queues and lanes --------------------------------------------------------------------------------------------

void Engine::init_queue(Queue &q, uint16_t db, int32_t id, const char *name, QueueState state) noexcept
{
	std::strncpy(q.name, name, kNameMax - 1);
	q.name[kNameMax - 1] = '\0';
	q.name_hash = hash_name(q.name);
	q.id = id;
	q.db = db;
	q.next_of_name = queue_buckets_[q.name_hash % shared_->limits.queues];
	queue_buckets_[q.name_hash % shared_->limits.queues] = index_of(q);
	// a lockless reader that sees the new generation then reads the new queue's values
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

// The limit goes down before the watermark, because a loader raises the watermark and then applies the limit. A loader
// that read the old limit has its raise undone by the second step. A load that resets the limit between the steps reads
// the watermark after that. If it reads the lowered one, it starts at `due` or below. Otherwise its raise fails or is
// undone, because the second step is still to come (test/model/timers.cpp).
void Engine::lower_timer_watermark(uint16_t d, Micros due) noexcept
{
	lower(dbs_[d].timer_limit, due);
	lower(dbs_[d].timer_watermark, due);
	platform_.sooner(d, due, false);
}

Micros Engine::start_timer_load(uint16_t d) noexcept
{
	dbs_[d].timer_limit.store(kNever);
	return dbs_[d].timer_watermark.load();
}

bool Engine::raise_timer_watermark(uint16_t d, Micros from, Micros due) noexcept
{
	if (!dbs_[d].timer_watermark.compare_exchange_strong(from, due))
		return false;
	lower(dbs_[d].timer_watermark, dbs_[d].timer_limit.load());
	return true;
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

bool Engine::evict_delayed(Queue &q, uint32_t hint) noexcept
{
	for (Ref r = by_timer().last(q.due, [&](Ref x) noexcept { return entries_[x].timer <= q.evictable; }); r != kNil;
		 r = by_timer().prev(r))
	{
		const Entry &e = entries_[r];
		q.evictable = e.timer;
		if (!is_evictable(e))
			continue;
		evict_timer(q, r, hint);
		return true;
	}
	q.evictable = INT64_MIN;
	return false;
}

void Engine::evict_timer(Queue &q, Ref r, uint32_t hint) noexcept
{
	const Entry &e = entries_[r];
	Lane &l = lanes_[e.lane];
	if (e.aborts > 0)
		lower_job_watermark(q, l, nullptr, e.group, e.key());
	else
	{
		lower_timer_watermark(q.db, e.timer);
		l.count_delayed(1);
	}
	note_on_disk(q, e);
	drop(q, r, hint);
}

// --- timers ------------------------------------------------------------------------------------------------------

constexpr Micros kCancelRetry = kSecond; // retry interval of a cancel that could not be completed

int Engine::fire_due(Queue &q, Micros wall, int max, Doom *doom) noexcept
{
	int n = 0;
	while (n < max && q.due.min != kNil && entries_[q.due.min].timer <= wall)
	{
		const Ref r = q.due.min;
		++n;
		const Entry &due = entries_[r];
		const int own = std::min<int>(due.max_attempts, UINT8_MAX); // takes precedence
		if (doom != nullptr && (due.aborts >= (own != 0 ? own : doom->aborts) || due.has(kCancelAsked)))
		{
			const int found = doom->n++;
			if (doom->out == nullptr)
				break;
			set_mark(q, r, doom->owner, Verb::kill, State::terminal);
			doom->out[found] = r;
		}
		else if (due.has(kCancelAsked))
			change(q, r, [wall](Entry &e) noexcept { e.timer = wall + kCancelRetry; }); // its end cannot be journalled
		else
			change(q, r, [](Entry &e) noexcept { e.state = State::ready; });
	}
	return n;
}

int Engine::collect_lost(Queue &q, const LossTerms &t, Ref *out, PrevMark *prev) noexcept
{
	int n = 0;
	while (n < t.max && q.leases.min != kNil && entries_[q.leases.min].timer <= t.until)
	{
		const Ref r = q.leases.min;
		Entry &e = entries_[r];
		const Micros lease = lease_end(e, t.strict);
		const Micros end = e.has(kHardTimeout) ? std::min(lease, e.hard_deadline) : lease;
		if (end > e.timer && end != 0) // 0: the lease was revoked, so it is lost now
		{
			change(q, r, [end](Entry &x) noexcept { x.timer = end; });
			continue;
		}
		prev[n] = PrevMark{e.mark, e.owner};
		set_mark(q, r, t.owner, Verb::lose, State::delayed);
		out[n++] = r;
	}
	return n;
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
			continue;
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
