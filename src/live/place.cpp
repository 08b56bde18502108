// What the journal says of a job, turned into an entry.
#include "guc.hpp"
#include "live/bound_leases.hpp"
#include "live/loader.hpp"
#include "live/policy.hpp"
#include "live/publish.hpp"
#include "live/workers_table.hpp"

namespace tq::live
{

uint16_t queue_of_id(const Db &db, int32 id) noexcept
{
	const uint16_t d = index_of(db);
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		if (q.state != core::QueueState::free && q.db == d && q.id == id)
			return static_cast<uint16_t>(i);
	}
	return UINT16_MAX;
}

journal::Candidate candidate_of(const journal::JobRow &row, const ItemPointerData &tid) noexcept
{
	journal::Candidate c{};
	c.tid = tid;
	c.id = row.id;
	c.queue_id = row.queue_id;
	c.priority = row.priority;
	c.enqueued_at = row.enqueued_at;
	c.run_at = row.run_at;
	c.expires_at = row.expires_at;
	c.due = journal::kNoTime;
	c.timeout = row.timeout;
	c.lease = row.lease;
	c.max_attempts = row.max_attempts;
	c.weight = row.weight;
	c.has_kind = row.kind != nullptr;
	c.has_group = row.group_key != nullptr;
	if (c.has_group)
		memcpy(c.group, VARDATA_ANY(row.group_key), std::min<size_t>(VARSIZE_ANY_EXHDR(row.group_key), sizeof(c.group) - 1));
	c.has_retry = row.retry != nullptr;
	c.has_options = row.options != nullptr;
	c.has_parents = row.depends_on != nullptr;
	if (c.has_kind)
		memcpy(c.kind, VARDATA_ANY(row.kind), std::min<size_t>(VARSIZE_ANY_EXHDR(row.kind), sizeof(c.kind) - 1));
	return c;
}

State state_of(const journal::Candidate &c, const journal::Fold &fold, Micros now, Micros *due) noexcept
{
	*due = core::kNever;
	if (fold.state == journal::FoldState::running)
		return State::running;
	if (waits_for_parents(c, fold))
		return State::blocked;
	const TimestampTz at = fold.due != journal::kNoTime						 ? fold.due
						   : fold.state == journal::FoldState::fresh ? c.run_at
																	 : journal::kNoTime;
	if (at == journal::kNoTime || at <= now)
		return State::ready;
	*due = at;
	return State::delayed;
}

void fill_entry(Entry &e, const journal::Candidate &c, int slot, const journal::Fold &fold) noexcept
{
	e.block = ItemPointerGetBlockNumberNoCheck(&c.tid);
	e.offset = ItemPointerGetOffsetNumberNoCheck(&c.tid);
	e.segment = static_cast<uint16_t>(slot);
	e.max_attempts = static_cast<uint16_t>(std::clamp(c.max_attempts, 0, static_cast<int32>(UINT16_MAX)));
	e.expires_at = c.expires_at != journal::kNoTime && !fold.new_life ? c.expires_at : core::kNever;
	e.step = fold.next_step;
	e.attempt = static_cast<uint16_t>(std::clamp(fold.attempt, 0, static_cast<int32>(UINT16_MAX)));
	e.weight = hundredths(c.weight);
	if (fold.has_override)
		e.flags |= core::kOverride;
	if (fold.has_checkpoint)
		e.flags |= core::kHasCheckpoint;
	if (fold.cancel_asked)
		e.flags |= core::kCancelAsked;
	if (fold.held)
		e.flags |= core::kHeld;
	if (c.has_retry)
		e.flags |= core::kOwnRetry;
	if (c.has_options)
		e.flags |= core::kOwnOptions;
}

namespace
{

// A lease that a restored journal brings may be ahead of the numbers given here: those go on above it (H10). One beyond 2^53, which the
// clock reaches in centuries, was written by hand, and there need not be numbers above it.
void raise_leases(const Db &db, LeaseNo above) noexcept
{
	if (above >= LeaseNo{1} << 53)
		return;
	core::raise_to(engine.db(index_of(db)).next_lease, above + 1);
}

// A journalled lease goes on for a full new period (P9), whatever is left of the attempt's own time (`timeout`, 0: no end); one that was
// bound to a session has lost it.
void fill_lease(const Queue &q, Entry &e, const journal::Fold &fold, uint32_t worker, Micros timeout) noexcept
{
	const Micros period = fold.lease_length > 0 ? std::clamp<Micros>(fold.lease_length, 1000, Micros{UINT32_MAX} * 1000)
												: guc::lease * Micros{1000};
	e.lease = fold.lease;
	e.lease_ms = static_cast<uint32>(period / 1000);
	const Micros mono = mono_now(), wall = wall_now();
	e.deadline = fold.bound ? 0 : mono + period;
	e.timer = fold.bound ? kLongOver : e.deadline;
	e.claimed_at = fold.claimed_at != journal::kNoTime ? fold.claimed_at : wall;
	if (timeout > 0)
		set_hard_deadline(e, mono + std::max(e.claimed_at + timeout - wall, std::min(timeout, period)));
	e.set_worker(worker);
	e.flags |= core::kLogged;
	if (fold.bound)
		e.flags |= core::kBound;
	if (fold.cancel_asked)
		limit_cancelled(q, e);
}

} // namespace

Place place_job(Db &db, const journal::Candidate &c, int slot, const journal::Fold &fold, uint16_t queue, uint16_t lane,
				Ref ref, Source source) noexcept
{
	Queue &q = engine.queue(queue);
	const bool had_placeholder = ref != kNil;
	if (fold.state == journal::FoldState::running)
		raise_leases(db, fold.lease);
	const int32 priority = fold.has_priority ? fold.priority : c.priority;
	const Key key{priority, c.id};
	const uint32_t worker = fold.state == journal::FoldState::running && fold.worker[0] != '\0'
								? worker_slot(db, fold.worker)
								: kNil;
	lock_queue(queue);
	Lane &l = engine.lane(lane);
	const Micros now = wall_now();
	Micros due = core::kNever;
	State to = state_of(c, fold, now, &due);
	// the attempt that was asked to stop is gone: the scheduler cancels the job
	const bool doomed = fold.cancel_asked && to != State::running;
	if (doomed)
	{
		to = State::delayed;
		due = now;
	}
	// those behind a job that waits for its next attempt wait for it
	const bool waited_for = to == State::delayed && fold.held && c.has_group && engine.group_limit(q) > 0;
	const bool blocked = to == State::blocked; // no watermark speaks of it: whoever frees it publishes it
	const bool must = !blocked && (to == State::running || fold.has_override || doomed || waited_for);
	const Micros timers = engine.db(index_of(db)).timer_watermark.load();
	bool wanted = true;
	if (!must && source != Source::pin)
	{
		if (blocked)
			wanted = false;
		else if (to == State::delayed)
			// on the way up from disk, one that the timers' watermark vouches for stays theirs; at first their groups leave the slots to those
			// that must have one
			wanted = source == Source::timer || (!(source == Source::first_load && c.has_group) && due < timers &&
												 due <= now + guc::timer_horizon * Micros{1000000});
		else if (c.has_group)
			wanted = source == Source::lane || engine.takes(q, c.group, key);
		else
			wanted = source == Source::lane || key < l.watermark || l.tail;
	}
	// one that was enqueued meanwhile is counted by its entry
	uint16_t other = 0;
	if (!wanted && source == Source::first_load && !had_placeholder && engine.find(index_of(db), c.id, &other) != kNil)
	{
		unlock_queue(queue);
		return Place::known;
	}
	Place result = Place::on_disk;
	Ref group = wanted && !had_placeholder && c.has_group ? engine.group_for(q, c.group, true) : kNil;
	if (wanted && !had_placeholder && c.has_group && group == kNil)
	{
		if (must)
		{
			unlock_queue(queue);
			return Place::no_slot;
		}
		wanted = false;
	}
	if (wanted && !had_placeholder)
	{
		Ref existing = kNil;
		ref = engine.insert(q, lane, c.id, priority, State::placeholder, my_proc, must, &existing, group);
		if (ref == kNil && existing == kNil && engine.evict_ready(q, l, must ? core::kMinKey : key, my_proc))
		{
			group = c.has_group ? engine.group_for(q, c.group, true) : kNil; // the first attempt may have given it away again
			if (!c.has_group || group != kNil)
				ref = engine.insert(q, lane, c.id, priority, State::placeholder, my_proc, must, &existing, group);
		}
		if (existing != kNil)
		{
			unlock_queue(queue);
			return Place::known;
		}
		if (ref == kNil && must)
		{
			unlock_queue(queue);
			return Place::no_room;
		}
	}
	if (wanted && ref != kNil)
	{
		// its time may have come since it was counted: then its lane is reading it in before the timers do
		Micros timed = core::kNever;
		const bool counted = source != Source::first_load &&
							 state_of(c, fold, PG_INT64_MIN, &timed) == State::delayed && timed >= timers;
		if ((source == Source::timer || counted) && l.delayed_disk > 0)
			l.count_delayed(-1);
		engine.change(q, ref, [&](Entry &e) noexcept {
			fill_entry(e, c, slot, fold);
			if (doomed)
				e.flags |= core::kOverride;
			e.priority = priority;
			e.state = to;
			e.timer = due;
			if (to == State::running)
				fill_lease(q, e, fold, worker, timeout_of(c.timeout, q.settings).value);
		});
		result = Place::in_memory;
	}
	else
	{
		if (ref != kNil)
			engine.drop(q, ref, my_proc);
		if (blocked)
		{
		}
		else if (to == State::delayed)
		{
			engine.sink_timer(index_of(db), due);
			if (source == Source::first_load)
				l.count_delayed(1);
		}
		else
		{
			engine.sink_job(q, l, c.group_key(), kNil, key);
			if (source == Source::timer && l.delayed_disk > 0)
				l.count_delayed(-1);
		}
	}
	unlock_queue(queue);
	return result;
}

void drop_placeholder(Db &db, uint16_t queue, Ref ref, bool unfinished) noexcept
{
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	Entry &e = engine.entry(ref);
	if (e.state == State::placeholder)
	{
		Lane &l = engine.lane(e.lane);
		if (unfinished)
		{
			// it is not known whether it is ready or delayed, so both watermarks must stop vouching for it
			engine.sink_job(q, l, nullptr, e.group, e.key());
			engine.sink_timer(index_of(db), wall_now());
		}
		engine.drop(q, ref, my_proc);
	}
	unlock_queue(queue);
}

} // namespace tq::live
