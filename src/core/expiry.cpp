// Expiry: jobs that no claim has started by their expires_at. In memory they are in a tree by that time, beside their
// lane or timer tree; on disk they expire when they are read in.
// Regime: core; everything is noexcept. Locks: the caller holds the queue's.
#include "core/engine.hpp"

namespace tq::core
{

namespace
{

// Set aside: no claim can take the job before the scheduler ends it.
bool is_set_aside(const Entry &e) noexcept { return e.mark == Verb::expire && e.owner == kNil; }

} // namespace

void Engine::leave_expiry(Queue &q, Entry &e) noexcept
{
	const Ref r = ref_of(e);
	if (e.mark == Verb::none)
		by_expiry().remove(q.expiry, r);
	else if (is_set_aside(e))
	{
		if (e.aux.left != kNil)
			entries_[e.aux.left].aux.right = e.aux.right;
		else
			q.expired_head = e.aux.right;
		if (e.aux.right != kNil)
			entries_[e.aux.right].aux.left = e.aux.left;
		e.aux = Links{};
	}
	else
		return;
	publish_expiry(q);
}

void Engine::enter_expiry(Queue &q, Entry &e) noexcept
{
	const Ref r = ref_of(e);
	if (e.mark == Verb::none)
		by_expiry().insert(q.expiry, r);
	else if (is_set_aside(e))
	{
		e.aux.left = kNil;
		e.aux.right = q.expired_head;
		if (q.expired_head != kNil)
			entries_[q.expired_head].aux.left = r;
		q.expired_head = r;
	}
	else
		return;
	publish_expiry(q);
}

void Engine::publish_expiry(Queue &q) noexcept
{
	const Micros next = q.expired_head != kNil ? 0 : q.expiry.min != kNil ? entries_[q.expiry.min].expires_at : kNever;
	const Micros before = q.next_expiry.load(std::memory_order_relaxed);
	if (next == before)
		return;
	q.next_expiry.store(next);
	if (next < before)
		platform_.sooner(q.db, next, false);
}

int Engine::set_aside_now(Queue &q, Micros wall, int max) noexcept
{
	int n = 0;
	while (n < max && has_overdue(q, wall) && pins_left(q) > 0)
	{
		set_mark(q, q.expiry.min, kNil, Verb::expire, State::terminal);
		++n;
	}
	return n;
}

int Engine::collect_expired(Queue &q, Micros wall, int max, uint32_t owner, Ref *out, LockedSegments *locked) noexcept
{
	int n = 0, left = kMostSkipped;
	for (const bool aside : {true, false})
	{
		Ref r = aside ? q.expired_head : q.expiry.min;
		while (r != kNil && n < max && left > 0 && (aside || entries_[r].expires_at <= wall))
		{
			const Ref next = aside ? entries_[r].aux.right : by_expiry().next(r);
			if (locked != nullptr && locked->has(entries_[r].segment))
			{
				locked->skipped = true;
				--left;
			}
			else
			{
				set_mark(q, r, owner, Verb::expire, State::terminal);
				out[n++] = r;
			}
			r = next;
		}
	}
	return n;
}

} // namespace tq::core
