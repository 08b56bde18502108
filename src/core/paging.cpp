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
	std::atomic_thread_fence(std::memory_order_release); // whoever reads the new generation without the lock, then reads these of the new queue
	++q.generation;
	q.lanes = kNoLane;
	q.state = state;
	q.persisted = false;
	q.writer = 0;
	q.paused_until = q.asked_at = 0;
	q.settings = QueueSettings{};
	q.startable = q.due = q.leases = q.opening = q.resting = q.expiry = Root{};
	q.wanted = q.wanted_tail = kNil;
	q.starts = q.enqueues = Bucket{};
	q.rate_opens_at = kNever;
	q.starts_from = 0;
	q.vclock = q.loose_turn = 0;
	q.running = q.groups = q.sunk_groups = q.group_loads = 0;
	q.admitted = 0;
	q.expired_head = kNil;
	q.evictable = INT64_MIN;
	q.claims_head = q.claims_tail = q.waiters_head = q.waiters_tail = kNil;
	q.startable_seq = 0;
	q.tokens = 0;
	q.call = false;
	q.next_due.store(kNever);
	q.next_lease.store(kNever);
	q.next_claim.store(kNever);
	q.next_expiry.store(kNever);
	q.next_open.store(kNever);
	q.want_refill.store(false);
	q.discover.store(false);
	q.discovering.store(false);
	q.has_news.store(false);
	q.news = News{};
	q.enqueued = q.claimed = q.succeeded = q.failed = q.lost = q.dead = q.released = q.cancelled = q.expired = 0;
	q.waits = q.runs = Histogram{};
}

void Engine::free_queue(Queue &q) noexcept
{
	for (uint16_t i = q.lanes; i != kNoLane;)
	{
		const uint16_t next = lanes_[i].next;
		lanes_[i].used = false;
		++lanes_[i].frees;
		i = next;
	}
	while (q.waiters_head != kNil)
	{
		Waiter &w = waiters_[q.waiters_head];
		unlink_waiter(q, w);
		platform_.wake(w.proc);
	}
	for (uint32_t g = 0; g < shared_->limits.groups; ++g)
		if (owns(q, g))
			free_group(q, g);
	q.lanes = kNoLane;
	q.state = QueueState::free;
	std::atomic_thread_fence(std::memory_order_release); // as in init_queue
	++q.generation;
}

uint16_t Engine::find_lane(const Queue &q, const char *kind) const noexcept
{
	const uint64_t h = kind != nullptr ? hash_name(kind) : 0;
	for (uint16_t i = q.lanes; i != kNoLane; i = lanes_[i].next)
		if (lanes_[i].kind_hash == h && (kind == nullptr || std::strcmp(lanes_[i].kind, kind) == 0))
			return i;
	return kNoLane;
}

uint16_t Engine::make_lane(Queue &q, const char *kind) noexcept
{
	for (uint32_t i = 0; i < shared_->limits.lanes && i < kNoLane; ++i)
	{
		Lane &l = lanes_[i];
		if (l.used)
			continue;
		const uint32_t frees = l.frees;
		l = Lane{};
		l.frees = frees;
		if (kind != nullptr)
		{
			std::strncpy(l.kind, kind, kNameMax - 1);
			l.kind_hash = hash_name(l.kind);
			l.has_kind = true;
		}
		l.watermark = l.limit = kMaxKey;
		l.evictable = kMinKey;
		l.loader = l.first = kNil;
		l.queue = index_of(q);
		l.next = q.lanes;
		l.used = true;
		q.lanes = static_cast<uint16_t>(i);
		return static_cast<uint16_t>(i);
	}
	return kNoLane;
}

// The next job of a lane: one without a group, or the head of a group, whichever comes first. None of them may pass the watermark,
// which speaks of jobs without a group; where groups take turns, jobs of one priority do not wait for each other's backlog.
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
													  : x.id < y.id;
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
	if (l.paused_until != 0 || q.paused_until != 0)
		return;
	l.first = first_of(q, l, &l.turn);
	if (l.first == kNil)
		return;
	by_head().insert(q.startable, index_of(l));
	l.in_startable = true;
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
	if ((q.waiters_head != kNil || q.call) && l.in_startable && (e.key() < l.watermark || l.first == r))
	{
		l.startable_at = ++q.startable_seq;
		const int64_t left = q.settings.limited() ? starts_left(q) : INT64_MAX;
		if (left > q.tokens) // else those who are awake come back, and wake others
		{
			if (!grant(q, l))
				call(q);
		}
		else if (left == 0 && q.settings.rate.limits())
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
	if (least && runs_dry(q, l) && !q.want_refill.exchange(true))
		platform_.want_refill(q.db);
}

void Engine::refresh(Queue &q) noexcept
{
	for (uint16_t i = q.lanes; i != kNoLane; i = lanes_[i].next)
	{
		lane_out(q, lanes_[i]);
		lane_in(q, lanes_[i]);
		lanes_[i].startable_at = ++q.startable_seq;
		if (runs_dry(q, lanes_[i]) && !q.want_refill.exchange(true))
			platform_.want_refill(q.db);
	}
	wake_for_startable(q);
	if (q.sunk_groups > 0 || q.discover.load())
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
	// overrides beyond the watermark do not count as a stock
	if (l.watermark == kMaxKey || q.paused_until != 0 || l.paused_until != 0)
		return false;
	const uint32_t low = std::max<uint32_t>(1, std::min<uint32_t>(1000, shared_->limits.entries / 32));
	return l.ready.size < low || l.ready.min == kNil || !(entries_[l.ready.min].key() < l.watermark);
}

void Engine::sink(Queue &q, Lane &l, Key key) noexcept
{
	if (key < l.limit)
		l.limit = key;
	if (key < l.watermark)
	{
		l.watermark = key;
		if (l.in_startable)
		{
			lane_out(q, l);
			lane_in(q, l);
		}
	}
	if (runs_dry(q, l) && !q.want_refill.exchange(true))
		platform_.want_refill(q.db);
}

void Engine::raise(Queue &q, Lane &l, Key key) noexcept
{
	const Key to = std::min(key, l.limit);
	if (to <= l.watermark)
		return;
	l.watermark = to;
	lane_out(q, l);
	lane_in(q, l);
	l.startable_at = ++q.startable_seq;
	wake_for_startable(q);
	// what the loader brought may be little or nothing, and no claim would ask for more
	if (runs_dry(q, l) && !q.want_refill.exchange(true))
		platform_.want_refill(q.db);
}

// First the limit, then the watermark. A loader that looks at the limit before the first sees its raise undone by the second. One that
// resets the limit in between starts to read only then, so it either starts below `due`, or finds the watermark lowered when it
// wants to raise it (test/model/timers.cpp).
void Engine::sink_timer(uint16_t d, Micros due) noexcept
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

bool Engine::raise_timer(uint16_t d, Micros from, Micros due) noexcept
{
	if (!dbs_[d].timer_watermark.compare_exchange_strong(from, due))
		return false;
	lower(dbs_[d].timer_watermark, dbs_[d].timer_limit.load());
	return true;
}

bool Engine::evict_ready(Queue &q, Lane &l, Key above, uint32_t hint) noexcept
{
	// those passed over once are not looked at again, however many there are
	for (Ref r = by_key().last(l.ready, [&](Ref x) noexcept { return entries_[x].key() <= l.evictable; }); r != kNil;
		 r = by_key().prev(r))
	{
		const Entry &e = entries_[r];
		l.evictable = e.key();
		if (e.key() <= above)
			return false;
		if (!is_evictable(e))
			continue;
		sink(q, l, e.key());
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
		sink_timer(q.db, e.timer);
		lanes_[e.lane].count_delayed(1);
		drop(q, r, hint);
		return true;
	}
	q.evictable = INT64_MIN;
	return false;
}

// --- timers ------------------------------------------------------------------------------------------------------

constexpr Micros kUndoomed = 1000000; // the pause after which a job that is to be cancelled is looked at again, if nobody could do it

int Engine::fire_due(Queue &q, Micros wall, int max, int doom, uint32_t owner, Ref *out, int *nout) noexcept
{
	int n = 0;
	while (n < max && q.due.min != kNil && entries_[q.due.min].timer <= wall)
	{
		const Ref r = q.due.min;
		++n;
		// the job's own number of attempts wins
		const int own = entries_[r].max_attempts != 0 ? std::min<int>(entries_[r].max_attempts, UINT8_MAX) : doom;
		if (doom > 0 && (entries_[r].aborts >= own || entries_[r].has(kCancelAsked)))
		{
			if (out == nullptr)
			{
				++*nout;
				break;
			}
			change(q, r, [&](Entry &e) noexcept {
				e.mark = Verb::kill;
				e.owner = owner;
				e.pending = State::terminal;
			});
			out[(*nout)++] = r;
		}
		else if (entries_[r].has(kCancelAsked))
			change(q, r, [wall](Entry &e) noexcept { e.timer = wall + kUndoomed; }); // never to start again: for who can journal its end
		else
			change(q, r, [](Entry &e) noexcept { e.state = State::ready; });
	}
	return n;
}

int Engine::collect_lost(Queue &q, Micros mono, Micros grace, int max, uint32_t owner, Ref *out,
						 PrevMark *prev) noexcept
{
	int n = 0;
	while (n < max && q.leases.min != kNil && entries_[q.leases.min].timer <= mono - grace)
	{
		const Ref r = q.leases.min;
		Entry &e = entries_[r];
		const Micros end = e.has(kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline;
		if (end > e.timer && end != 0) // 0: its session has ended, and no grace is due
		{
			change(q, r, [end](Entry &x) noexcept { x.timer = end; });
			continue;
		}
		prev[n] = PrevMark{e.mark, e.owner};
		change(q, r, [owner](Entry &x) noexcept {
			x.mark = Verb::lose;
			x.owner = owner;
			x.pending = State::delayed;
		});
		out[n++] = r;
	}
	return n;
}

// --- waiting -----------------------------------------------------------------------------------------------------

void Engine::wait_enter(Queue &q, Ref i, uint32_t proc, const uint64_t *kinds, int nkinds) noexcept
{
	Waiter &w = waiters_[i];
	w.proc = proc;
	w.queue = index_of(q);
	w.generation = q.generation;
	w.since = q.startable_seq;
	w.granted = false;
	w.nkinds = nkinds <= kWaiterKinds ? static_cast<uint8_t>(nkinds) : 0;
	std::copy_n(kinds, w.nkinds, w.kinds);
	if (q.settings.rate.limits())
		publish_opening(q);
	w.prev = q.waiters_tail;
	w.next = kNil;
	(q.waiters_tail != kNil ? waiters_[q.waiters_tail].next : q.waiters_head) = i;
	q.waiters_tail = i;
	w.linked = true;
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
	if (w.generation != q.generation) // the slot was freed, and took its waiters out
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

// Gives a token to the first waiter whose filter matches the lane, and that has not looked since a job last became startable
// there: one that has did not want it (its filter is longer than the table's), and two such would pass the token to and fro.
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
	return false;
}

void Engine::call_when_startable(Queue &q) noexcept
{
	q.call = true;
	if (q.settings.rate.limits())
		publish_opening(q);
}

void Engine::call(Queue &q) noexcept
{
	if (!q.call)
		return;
	q.call = false;
	platform_.startable(q.db);
}

// As long as one token is out, its holder comes back here, so no waiter sleeps beside a job it could have.
void Engine::wake_for_startable(Queue &q) noexcept
{
	uint64_t startable = 0;
	const auto most = static_cast<uint64_t>(q.waiters_head != kNil ? starts_left(q) : 0);
	for (Ref i = q.startable.min; i != kNil && q.waiters_head != kNil; i = by_head().next(i))
	{
		const uint32_t size = lanes_[i].ready.size + lanes_[i].heads.size;
		startable += size;
		for (uint32_t n = size; n > 0 && q.tokens < std::min(startable, most) && grant(q, lanes_[i]); --n)
		{
		}
	}
	if (q.startable.min != kNil && q.tokens == 0 && starts_left(q) > 0)
		call(q);
	if (q.settings.rate.limits() && (q.waiters_head != kNil || q.call))
		publish_opening(q);
}

} // namespace tq::core
