// Leases that belong to their worker: one heartbeat extends all of them, and one call ends all.
// Regime: core; everything is noexcept. Locks: the caller holds the queue's. The fields of the worker are atomic.
#include "core/engine.hpp"

namespace tq::core
{

void Engine::count_worker(const Entry &e, int by) noexcept
{
	if (e.worker() == kNil)
		return;
	Worker &w = workers_[e.worker()];
	w.running.fetch_add(by, std::memory_order_relaxed);
	if (!e.has(kOfWorker) || e.mark == Verb::lose || e.deadline == 0)
		return;
	w.leases.fetch_add(by);
	if (e.has(kCancelAsked))
		w.asked.fetch_add(by);
}

Micros Engine::lease_end(const Entry &e, bool strict) const noexcept
{
	if (is_revoked(e))
		return 0;
	if (!e.has(kOfWorker))
		return e.deadline;
	const Worker &w = workers_[e.worker()];
	const Micros beat = strict ? kLongAgo : w.beat.load();
	return std::min(w.until.load(), std::max(e.deadline, beat + static_cast<Micros>(e.lease_ms) * 1000));
}

bool Engine::revoke_leases(Queue &q, LeasePosition *from, int max) noexcept
{
	const auto before = by_timer().last(q.leases, [&](Ref r) noexcept {
		const Entry &e = entries_[r];
		return e.timer < from->timer || (e.timer == from->timer && e.id <= from->id);
	});
	Ref r = before != kNil ? by_timer().next(before) : q.leases.min;
	for (; r != kNil && max > 0; --max)
	{
		const Entry &e = entries_[r];
		*from = {e.timer, e.id};
		const Ref next = by_timer().next(r);
		// the lease of an uncommitted own job has not begun: catch_up() ends it at the commit
		if (e.deadline != 0 && e.timer != kNever && is_revoked(e))
			change(q, r, [](Entry &x) noexcept { revoke(x); }); // moves it to the front
		r = next;
	}
	return r != kNil;
}

} // namespace tq::core
