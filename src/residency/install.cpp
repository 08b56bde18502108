// Creates a job's entry from the journal.
#include "guc.hpp"
#include "queues/policy.hpp"
#include "residency/bound_leases.hpp"
#include "residency/loader.hpp"
#include "shmem/workers_table.hpp"

namespace tq
{

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
		memcpy(c.group, VARDATA_ANY(row.group_key),
			   std::min<size_t>(VARSIZE_ANY_EXHDR(row.group_key), sizeof(c.group) - 1));
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

core::Vouched vouched_at(const Db &db, const Lane &l, Micros now) noexcept
{
	return {.lane = l.watermark,
			.tail = l.tail,
			.timers = engine.db(index_of(db)).timer_watermark.load(),
			.horizon = now + guc::timer_horizon * core::kSecond};
}

void fill_entry(Entry &e, const journal::Candidate &c, int slot, const journal::Fold &fold) noexcept
{
	e.block = ItemPointerGetBlockNumberNoCheck(&c.tid);
	e.offset = ItemPointerGetOffsetNumberNoCheck(&c.tid);
	e.segment = static_cast<uint16_t>(slot);
	e.max_attempts = static_cast<uint16_t>(std::clamp(c.max_attempts, 0, static_cast<int32>(UINT16_MAX)));
	const TimestampTz expires_at = fold.expires_at(c.expires_at);
	e.expires_at = expires_at != journal::kNoTime ? expires_at : core::kNever;
	e.step = fold.next_step;
	e.attempt = static_cast<uint16_t>(std::clamp(fold.attempt, 0, static_cast<int32>(UINT16_MAX)));
	e.weight = hundredths(c.weight);
	if (fold.has_override)
		e.flags |= core::kOverride;
	if (fold.has_checkpoint)
		e.flags |= core::kHasCheckpoint;
	if (fold.cancel_asked)
		e.flags |= core::kCancelAsked;
	if (fold.superseded)
		e.flags |= core::kSuperseded;
	if (fold.held)
		e.flags |= core::kHeld;
	if (c.has_retry)
		e.flags |= core::kOwnRetry;
	if (c.has_options)
		e.flags |= core::kOwnOptions;
}

namespace
{

// A restored journal may have a lease above this server's numbers; later numbers continue above it (H10). Ignores
// numbers from 2^53: the clock reaches them only in centuries, so they were written by hand.
void raise_leases(const Db &db, LeaseNo above) noexcept
{
	if (above >= LeaseNo{1} << 53)
		return;
	core::raise_to(engine.db(index_of(db)).next_lease, above + 1);
}

// Continues a journalled lease for a full new period (P9), even if less is left of the attempt's `timeout` (0: none). A
// lease that was bound to a session is lost.
void fill_lease(const Queue &q, Entry &e, const journal::Fold &fold, uint32_t worker, Micros timeout) noexcept
{
	const Micros period = fold.lease_length > 0 ? std::clamp<Micros>(fold.lease_length, 1000, Micros{UINT32_MAX} * 1000)
												: guc::lease * Micros{1000};
	e.lease = fold.lease;
	e.lease_ms = static_cast<uint32>(period / 1000);
	const Micros wall = wall_now(), mono = mono_now(); // in this order, a delay in between shortens no attempt
	e.deadline = e.timer = mono + period;
	e.claimed_at = fold.claimed_at != journal::kNoTime ? fold.claimed_at : wall;
	if (timeout > 0)
		set_hard_deadline(e, mono + std::max(e.claimed_at + timeout - wall, std::min(timeout, period)));
	e.set_worker(worker);
	e.flags |= core::kLogged;
	if (fold.binding == core::Binding::session)
	{
		e.flags |= core::kBound;
		core::revoke(e);
	}
	else if (fold.binding == core::Binding::worker && worker != kNil)
		e.flags |= core::kOfWorker;
	if (fold.cancel_asked)
		limit_cancelled(q, e);
}

// A job being read into memory, as decided under its queue's lock.
struct Arrival : JobRead
{
	Db &db;
	Queue &q;
	Lane &l;
	Key key;
	State to = State::none;
	Micros due = core::kNever;
	bool doomed = false; // asked to stop or superseded, and the attempt is gone: the scheduler cancels it
	bool must = false;	 // may not stay on disk
};

// Determines the job's state, and whether that state requires an entry.
void decide_state(Arrival &a, Micros now) noexcept
{
	a.to = state_of(a.c, a.fold, now, &a.due);
	a.doomed = (a.fold.cancel_asked || a.fold.superseded) && a.to != State::running;
	if (a.doomed)
	{
		a.to = State::delayed;
		a.due = now;
	}
	// In a group, later jobs wait for a job that waits to be retried.
	const auto in_order = [&a]() noexcept {
		const Ref g = engine.group_for(a.q, a.c.group, false);
		return engine.group_limit(a.q, g != kNil ? engine.group(g).own : core::GroupSettings{}) > 0;
	};
	const bool waited_for = a.to == State::delayed && a.fold.held && a.c.has_group && in_order();
	// No watermark covers a blocked job; the transaction that frees it publishes it.
	a.must = a.to != State::blocked && (a.to == State::running || a.fold.has_override || a.doomed || waited_for);
}

bool is_wanted(const Arrival &a, const core::Vouched &vouched) noexcept
{
	if (a.must || a.source == Source::pin)
		return true;
	if (a.to == State::blocked)
		return false;
	const bool delayed = a.to == State::delayed;
	if (a.source == (delayed ? Source::timer : Source::lane))
		return true; // its own loader has found it
	// A job read from disk at or above the timers' watermark stays with the timers. During the first load, delayed jobs
	// leave group slots to jobs that require one.
	const core::Waiting job{.key = a.key, .due = a.due, .delayed = delayed, .grouped = a.c.has_group};
	return core::belongs_in_memory(job, vouched, [&a, delayed]() noexcept {
		return delayed ? a.source != Source::first_load : engine.takes(a.q, a.c.group, a.key);
	});
}

// Makes an entry, evicting a later job for it if memory is full. Installed::on_disk: the job must stay on disk.
Installed make_entry(Arrival &a) noexcept
{
	const auto find_group = [&a]() noexcept {
		return a.c.has_group ? engine.group_for(a.q, a.c.group, true, a.must) : kNil;
	};
	Ref group = find_group();
	if (a.c.has_group && group == kNil)
		return a.must ? Installed::no_slot : Installed::on_disk;
	Ref existing = kNil;
	const auto insert = [&]() noexcept {
		a.ref = engine.insert(a.q,
			{.lane = a.lane, .id = a.c.id, .priority = a.key.priority,
			 .state = State::placeholder, .reserve = a.must, .group = group}, my_proc, &existing);
	};
	insert();
	if (a.ref == kNil && existing == kNil && engine.evict_ready(a.q, a.l, a.must ? core::kMinKey : a.key, my_proc))
	{
		group = find_group(); // the first attempt may have evicted the group's slot
		if (!a.c.has_group || group != kNil)
			insert();
	}
	if (existing != kNil)
		return Installed::known;
	return a.ref != kNil ? Installed::in_memory : a.must ? Installed::memory_full : Installed::on_disk;
}

// Turns the placeholder into the job's entry.
void fill_placeholder(const Arrival &a, Micros timers, uint32_t worker) noexcept
{
	// It was counted as delayed but may be due by now; then its lane reads it in before the timers do.
	Micros timed = core::kNever;
	const bool counted = a.source != Source::first_load &&
						 state_of(a.c, a.fold, PG_INT64_MIN, &timed) == State::delayed && timed >= timers;
	if ((a.source == Source::timer || counted) && a.l.delayed_disk > 0)
		a.l.count_delayed(-1);
	engine.change(a.q, a.ref, [&](Entry &e) noexcept {
		fill_entry(e, a.c, a.slot, a.fold);
		e.priority = a.key.priority;
		e.state = a.to;
		e.timer = a.due;
		// The commit that superseded the job may have found the placeholder only.
		if (a.doomed || (e.has(core::kSuperseded) && (a.to == State::ready || a.to == State::delayed)))
			core::to_be_cancelled(e, wall_now());
		if (a.to == State::running)
			fill_lease(a.q, e, a.fold, worker, timeout_of(a.c.timeout, a.q.settings).value);
	});
}

// Drops the placeholder, if any, and lowers the watermark that covered the job.
void leave_on_disk(const Arrival &a) noexcept
{
	if (a.ref != kNil)
		engine.drop(a.q, a.ref, my_proc);
	if (a.to == State::blocked)
		return;
	const TimestampTz expires_at = a.fold.expires_at(a.c.expires_at);
	if (a.fold.attempt == 0 && expires_at != journal::kNoTime)
		engine.note_on_disk(index_of(a.db), expires_at);
	if (a.to == State::delayed)
	{
		engine.lower_timer_watermark(index_of(a.db), a.due);
		if (a.source == Source::first_load)
			a.l.count_delayed(1);
		return;
	}
	engine.lower_job_watermark(a.q, a.l, a.c.group_key(), kNil, a.key);
	if (a.source == Source::timer && a.l.delayed_disk > 0)
		a.l.count_delayed(-1);
}

// Queue lock held. Whether the queue and the job's placeholder are those that the loader found. release_db() drops them
// while a session reads the journal.
bool is_current(const Arrival &a) noexcept
{
	return a.q.state != core::QueueState::free && a.q.db == index_of(a.db) && a.q.id == a.c.queue_id &&
		   (a.ref == kNil || engine.is(a.q, a.ref, a.c.id));
}

// Queue lock held.
Installed place_locked(Arrival &a, uint32_t worker) noexcept
{
	if (!is_current(a))
		return Installed::known;
	const Micros now = wall_now();
	decide_state(a, now);
	const core::Vouched vouched = vouched_at(a.db, a.l, now);
	const bool wanted = is_wanted(a, vouched);
	Installed result = wanted ? Installed::in_memory : Installed::on_disk;
	if (a.ref == kNil)
	{
		// A job enqueued meanwhile is counted through its entry.
		uint16_t other = 0;
		if (!wanted && a.source == Source::first_load && engine.find(index_of(a.db), a.c.id, &other) != kNil)
			return Installed::known;
		if (wanted)
			result = make_entry(a);
	}
	if (result == Installed::in_memory)
		fill_placeholder(a, vouched.timers, worker);
	else if (result == Installed::on_disk)
		leave_on_disk(a);
	return result;
}

} // namespace

Installed install_job(Db &db, const JobRead &job) noexcept
{
	const journal::Fold &fold = job.fold;
	const bool running = fold.state == journal::FoldState::running;
	if (running)
		raise_leases(db, fold.lease);
	const uint32_t worker = running && fold.worker[0] != '\0' ? worker_slot(db, fold.worker, InvalidOid) : kNil;
	if (worker != kNil && fold.binding == core::Binding::worker)
		note_restored(worker, job.queue);
	Arrival a{job, db, engine.queue(job.queue), engine.lane(job.lane),
			  Key{fold.has_priority ? fold.priority : job.c.priority, job.c.id}};
	lock_queue(job.queue);
	const Installed result = place_locked(a, worker);
	unlock_queue(job.queue);
	return result;
}

void drop_placeholder(Db &db, uint16_t queue, Ref ref, bool unfinished) noexcept
{
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	Entry &e = engine.entry(ref);
	if (e.state == State::placeholder && Engine::home_of(e) == queue + 1) // else release_db() has dropped it
	{
		Lane &l = engine.lane(e.lane);
		if (unfinished)
		{
			// Unknown whether the job is ready or delayed, so lower both watermarks.
			engine.lower_job_watermark(q, l, nullptr, e.group, e.key());
			engine.lower_timer_watermark(index_of(db), wall_now());
		}
		engine.drop(q, ref, my_proc);
	}
	unlock_queue(queue);
}

} // namespace tq
