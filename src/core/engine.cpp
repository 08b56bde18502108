// Entries: the free list, lookup, the structures of each state.
#include "core/engine.hpp"

#include <cstring>

namespace tq::core
{

namespace
{

// The free list and the hash share this link. A pop may read it while it changes, so access is always atomic; the
// stack's tag then forces a retry.
Ref load_next(const Entry &e) noexcept
{
	return std::atomic_ref<Ref>(const_cast<Entry &>(e).hash_next).load(std::memory_order_relaxed);
}
void store_next(Entry &e, Ref to) noexcept
{
	std::atomic_ref<Ref>(e.hash_next).store(to, std::memory_order_relaxed);
}

void store_home(Entry &e, uint16_t to) noexcept
{
	std::atomic_ref<uint16_t>(e.home).store(to, std::memory_order_release);
}

// Clears a free entry, except the two words that other sessions may be reading.
void wipe(Entry &e) noexcept
{
	constexpr size_t kLink = offsetof(Entry, hash_next), kHome = offsetof(Entry, home);
	constexpr size_t kAfterLink = kLink + sizeof(Entry::hash_next), kAfterHome = kHome + sizeof(Entry::home);
	static_assert(kLink < kHome);
	const Entry blank{};
	auto *to = reinterpret_cast<char *>(&e);
	const auto *from = reinterpret_cast<const char *>(&blank);
	std::memcpy(to, from, kLink);
	std::memcpy(to + kAfterLink, from + kAfterLink, kHome - kAfterLink);
	std::memcpy(to + kAfterHome, from + kAfterHome, sizeof(Entry) - kAfterHome);
}

} // namespace

// --- free list -------------------------------------------------------------------------------------------------

Ref Engine::pop_free(uint32_t hint, bool for_pin) noexcept
{
	const int64_t keep = for_pin ? 0 : reserve();
	if (shared_->free_count.fetch_sub(1) <= keep)
	{
		shared_->free_count.fetch_add(1);
		return kNil;
	}
	// the count promises an entry; another backend may pop it from this list first, so search until one is found
	for (uint32_t i = hint;; ++i)
	{
		auto &head = shared_->free_lists[i % kFreeLists].head;
		uint64_t now = head.load(std::memory_order_acquire);
		while (static_cast<Ref>(now) != kNil)
		{
			const Ref r = static_cast<Ref>(now);
			if (head.compare_exchange_weak(now, tagged((now >> 32) + 1, load_next(entries_[r])),
										   std::memory_order_acquire))
				return r;
		}
	}
}

void Engine::push_free(Ref r, uint32_t hint) noexcept
{
	auto &head = shared_->free_lists[hint % kFreeLists].head;
	uint64_t now = head.load(std::memory_order_relaxed);
	do
		store_next(entries_[r], static_cast<Ref>(now));
	while (!head.compare_exchange_weak(now, tagged((now >> 32) + 1, r), std::memory_order_release));
	shared_->free_count.fetch_add(1);
}

// --- hash ------------------------------------------------------------------------------------------------------

uint32_t Engine::bucket_of(uint16_t db, JobId id) const noexcept
{
	// ids are dense, so neighbours share cache lines; no mixing is needed
	return static_cast<uint32_t>((static_cast<uint64_t>(id) + mix32(db)) % shared_->limits.entries);
}

Ref Engine::find(uint16_t db, JobId id, uint16_t *queue) const noexcept
{
	const uint32_t b = bucket_of(db, id);
	platform_.lock_partition(b % kPartitions, false);
	Ref r = buckets_[b];
	while (r != kNil && !(entries_[r].id == id && queues_[entries_[r].queue].db == db))
		r = load_next(entries_[r]);
	if (r != kNil)
		*queue = entries_[r].queue;
	platform_.unlock_partition(b % kPartitions);
	return r;
}

// Under the lock of q, `home` cannot change to or from q + 1. So the rest of the entry is read only under its lock.
bool Engine::is(const Queue &q, Ref r, JobId id) const noexcept
{
	const Entry &e = entries_[r];
	return home_of(e) == index_of(q) + 1 && e.id == id;
}

bool Engine::is(Ref r, uint16_t db, JobId id) const noexcept
{
	const uint16_t home = home_of(entries_[r]);
	return home != 0 && queues_[home - 1].db == db && entries_[r].id == id;
}

Ref Engine::insert(Queue &q, const NewEntry &job, uint32_t hint, Ref *existing) noexcept
{
	*existing = kNil;
	const Ref r = pop_free(hint, job.reserve);
	if (r == kNil)
	{
		uint16_t other;
		*existing = find(q.db, job.id, &other);
		after_change(q, job.group, false); // frees a slot that was created for it
		return kNil;
	}
	Entry &e = entries_[r];
	wipe(e);
	e.id = job.id;
	e.priority = job.priority;
	e.timer = e.deadline = e.hard_deadline = e.expires_at = kNever;
	e.step = 1;
	e.set_worker(kNil);
	e.group = job.group;
	e.queue = index_of(q);
	e.lane = job.lane;

	const uint32_t b = bucket_of(q.db, job.id);
	platform_.lock_partition(b % kPartitions, true);
	Ref other = buckets_[b];
	while (other != kNil && !(entries_[other].id == job.id && queues_[entries_[other].queue].db == q.db))
		other = load_next(entries_[other]);
	if (other == kNil)
	{
		store_next(e, buckets_[b]);
		buckets_[b] = r;
	}
	platform_.unlock_partition(b % kPartitions);
	if (other != kNil)
	{
		*existing = other;
		push_free(r, hint);
		after_change(q, job.group, false);
		return kNil;
	}
	e.state = job.state;
	++q.entries;
	count_pin(q, false, is_pinned(e));
	store_home(e, static_cast<uint16_t>(e.queue + 1));
	if (job.group != kNil)
		++groups_[job.group].entries;
	enter(q, e);
	after_change(q, job.group, false);
	return r;
}

void Engine::drop(Queue &q, Ref r, uint32_t hint) noexcept
{
	Entry &e = entries_[r];
	const bool full = at_limit(q);
	const Ref group = e.group;
	leave(q, e);
	--q.entries;
	count_pin(q, is_pinned(e), false);
	end_progress(e);
	if (e.has(kClaimListed))
		unlist_claim(q, e);
	const uint32_t b = bucket_of(q.db, e.id);
	platform_.lock_partition(b % kPartitions, true);
	if (buckets_[b] == r)
		buckets_[b] = load_next(e);
	else
	{
		Ref p = buckets_[b];
		while (load_next(entries_[p]) != r)
			p = load_next(entries_[p]);
		store_next(entries_[p], load_next(e));
	}
	platform_.unlock_partition(b % kPartitions);
	e.state = State::none;
	e.mark = Verb::none;
	store_home(e, 0);
	push_free(r, hint);
	if (group != kNil)
		--groups_[group].entries;
	after_change(q, group, full);
}

// --- the transition function -------------------------------------------------------------------------------------

Engine::Tree Engine::tree_of(const Entry &e) noexcept
{
	switch (e.state)
	{
		case State::ready:
			return e.mark == Verb::none ? Tree::ready : Tree::none;
		case State::delayed:
			return e.mark == Verb::none ? Tree::due : Tree::none;
		case State::running:
			// the deadline applies to an open claim, but not to a finish under way
			return e.mark == Verb::none || e.mark == Verb::claim ? Tree::leases : Tree::none;
		default:
			return Tree::none;
	}
}

void Engine::leave(Queue &q, Entry &e) noexcept
{
	const Ref r = ref_of(e);
	Lane &l = lanes_[e.lane];
	--l.counts[static_cast<int>(e.state)];
	switch (tree_of(e))
	{
		case Tree::ready:
			if (e.group != kNil && groups_[e.group].head != r)
				by_key().remove(groups_[e.group].ready, r);
			else
			{
				withdraw(q, r);
				if (e.group != kNil)
					groups_[e.group].head = kNil;
			}
			break;
		case Tree::due:
			by_timer().remove(q.due, r);
			publish_timers(q);
			break;
		case Tree::leases:
			by_timer().remove(q.leases, r);
			publish_timers(q);
			break;
		case Tree::none:
			break;
	}
	if (may_expire(e))
		leave_expiry(q, e);
	if (e.group != kNil)
	{
		groups_[e.group].running -= e.state == State::running;
		groups_[e.group].held -= blocks_group(e);
	}
	if (e.state == State::running)
	{
		--q.running;
		count_worker(e, -1);
	}
}

void Engine::line_up(Queue &q, Entry &e, bool again) noexcept
{
	e.place = 0;
	if (!again || !q.settings.by_readiness || e.group != kNil || changes_left(q) <= q.pinned)
		return;
	e.place = platform_.next_id(q.db) - 1; // the latest id: after its job, and before all later ones
	e.turn = ++q.turns;
}

// Reported progress ends with the attempt.
void Engine::end_progress(Entry &e) noexcept
{
	if (e.progress == 0)
		return;
	platform_.end_progress(static_cast<uint16_t>(e.progress - 1));
	--queues_[e.queue].progress;
	e.progress = 0;
}

void Engine::enter(Queue &q, Entry &e) noexcept
{
	const Ref r = ref_of(e);
	Lane &l = lanes_[e.lane];
	++l.counts[static_cast<int>(e.state)];
	if (e.state != State::running)
		end_progress(e);
	switch (tree_of(e))
	{
		case Tree::ready:
			mark_notify(q);
			if (e.group != kNil)
			{
				Group &g = groups_[e.group];
				if (g.head != kNil && e.key() < entries_[g.head].key())
					withdraw_head(q, g);
				by_key().insert(g.ready, r); // update_group() offers the first
				break;
			}
			if (is_evictable(e) && l.evictable < e.key())
				l.evictable = e.key();
			offer(q, r);
			break;
		case Tree::due:
			by_timer().insert(q.due, r);
			if (is_evictable(e) && q.evictable < e.timer)
				q.evictable = e.timer;
			publish_timers(q);
			break;
		case Tree::leases:
			by_timer().insert(q.leases, r);
			publish_timers(q);
			break;
		case Tree::none:
			break;
	}
	// A listed entry keeps its position: claims are listed in the order of their commits. One with kJournalFirst is
	// listed before its commit.
	const bool to_log = e.state == State::running && (e.mark == Verb::none || e.has(kJournalFirst)) && !e.has(kLogged);
	if (to_log && !e.has(kClaimListed))
		list_claim(q, e);
	else if (!to_log && e.has(kClaimListed))
		unlist_claim(q, e);
	if (may_expire(e)) // after it left the list of claims, which uses the same links
		enter_expiry(q, e);
	if (e.group != kNil)
	{
		groups_[e.group].running += e.state == State::running;
		groups_[e.group].held += blocks_group(e);
	}
	if (e.state == State::running)
	{
		++q.running;
		count_worker(e, 1);
	}
}

void Engine::publish_timers(Queue &q) noexcept
{
	const Micros due = q.due.min == kNil ? kNever : entries_[q.due.min].timer;
	const Micros lease = q.leases.min == kNil ? kNever : entries_[q.leases.min].timer;
	if (due != q.next_due.load(std::memory_order_relaxed))
	{
		const bool earlier = due < q.next_due.load(std::memory_order_relaxed);
		q.next_due.store(due);
		if (earlier)
			platform_.sooner(q.db, due, false);
	}
	if (lease != q.next_lease.load(std::memory_order_relaxed))
	{
		const bool earlier = lease < q.next_lease.load(std::memory_order_relaxed);
		q.next_lease.store(lease);
		if (earlier)
			platform_.sooner(q.db, lease, true);
	}
}

void Engine::list_claim(Queue &q, Entry &e) noexcept
{
	const Ref r = ref_of(e);
	e.flags |= kClaimListed;
	e.aux.left = q.claims_tail;
	e.aux.right = kNil;
	if (q.claims_tail != kNil)
		entries_[q.claims_tail].aux.right = r;
	else
	{
		q.claims_head = r;
		q.next_claim.store(e.claimed_at);
	}
	q.claims_tail = r;
}

void Engine::unlist_claim(Queue &q, Entry &e) noexcept
{
	e.flags &= static_cast<uint16_t>(~kClaimListed);
	if (e.aux.left != kNil)
		entries_[e.aux.left].aux.right = e.aux.right;
	else
	{
		q.claims_head = e.aux.right;
		q.next_claim.store(e.aux.right != kNil ? entries_[e.aux.right].claimed_at : kNever);
	}
	if (e.aux.right != kNil)
		entries_[e.aux.right].aux.left = e.aux.left;
	else
		q.claims_tail = e.aux.left;
	e.aux = Links{};
}

// --- walking -----------------------------------------------------------------------------------------------------

Ref Engine::next_in_tree(Ref r) const noexcept { return by_key().next(r); }

Ref Engine::ready_from(const Lane &l, int32_t priority) const noexcept
{
	const Ref before = by_key().last(l.ready, [&](Ref r) noexcept { return entries_[r].priority < priority; });
	return before != kNil ? by_key().next(before) : l.ready.min;
}

} // namespace tq::core
