// What happens at a time: delayed jobs that become due, leases and attempts that end, and the watermark of the delayed
// jobs that are in memory.
// Regime: core; everything is noexcept. Locks: the caller holds the queue's, except for the watermark, which is atomic.
#include "core/engine.hpp"

#include <algorithm>

namespace tq::core
{

// --- watermark ----------------------------------------------------------------------------------------------------

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

// --- eviction -----------------------------------------------------------------------------------------------------

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

// --- due jobs, lost leases ----------------------------------------------------------------------------------------

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
		// claims that cause no pause doom no job, for instance one that was rescheduled
		const auto is_aborted = [&due, own](int limit) noexcept {
			return abort_pause(due.aborts) != 0 && due.aborts >= (own != 0 ? own : limit);
		};
		if (doom != nullptr && (is_aborted(doom->aborts) || due.has(kCancelAsked)))
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

} // namespace tq::core
