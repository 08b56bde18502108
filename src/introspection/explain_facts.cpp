#include "introspection/explain_facts.hpp"

#include "jobs/verbs.hpp"
#include "queues/lanes.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"

namespace tq
{

namespace
{

bool wants(const core::Waiter &w, uint64 kind_hash) noexcept
{
	return w.nkinds == 0 || std::find(w.kinds, w.kinds + w.nkinds, kind_hash) != w.kinds + w.nkinds;
}

// A running job of a group, or (`held`) a job of the group that waits for its next attempt; 0 if it is not among the
// first kFewJobs.
core::JobId one_of(core::Ref first, core::Ref group, bool held) noexcept
{
	int n = 0;
	for (core::Ref r = first; r != core::kNil && n < kFewJobs; r = engine.next_in_tree(r), ++n)
		if (engine.entry(r).group == group && (!held || engine.entry(r).has(core::kHeld)))
			return engine.entry(r).id;
	return 0;
}

// The caller holds the queue's lock.
void copy_group(Queue &q, const char *key, core::Key at, MemoryFacts *f) noexcept
{
	strlcpy(f->group, key, sizeof(f->group));
	const core::Ref r = engine.group_for(q, key, false);
	if (r == core::kNil)
	{
		f->below_watermark = false;
		f->no_group_slots = !engine.has_free_group(q);
		return;
	}
	const core::Group &g = engine.group(r);
	f->block = engine.blocked(q, g);
	f->group_running = g.running;
	f->group_paused = g.own.paused_until;
	f->group_limit = engine.group_limit(q, g.own);
	f->own_limit = g.own.max_running != core::kUnset;
	f->own_rate = g.own.rate.limits();
	f->group_opens = f->block == core::Block::rate ? g.bucket.opens_at(engine.group_rate(q, g)) : 0;
	f->below_watermark = at < g.watermark;
	f->blocker = f->block == core::Block::running ? one_of(q.leases.min, r, false)
				 : f->block == core::Block::held  ? one_of(q.due.min, r, true)
														  : 0;
	f->ahead = g.head != core::kNil && engine.entry(g.head).key() < at;
	for (core::Ref e = g.ready.min; e != core::kNil && f->ahead < kFewJobs && engine.entry(e).key() < at;
		 e = engine.next_in_tree(e))
		++f->ahead;
}

// The caller holds the queue's lock.
void copy_queue(Queue &q, uint16_t lane, core::Key key, const char *group, MemoryFacts *f) noexcept
{
	const Lane &l = engine.lane(lane);
	strlcpy(f->queue, q.name, sizeof(f->queue));
	strlcpy(f->kind, l.kind, sizeof(f->kind));
	f->queue_paused = q.paused_until;
	f->kind_paused = l.paused_until;
	f->asked_at = std::max(q.asked_at, l.asked_at);
	f->asked_by[0] = l.asked_by;
	f->asked_by[1] = q.asked_by;
	f->running = q.running;
	f->share_is_full = engine.places_to_start(q) == 0;
	f->pinned = q.pinned;
	f->max_running = std::max(q.settings.max_running, 0);
	const core::Rate &rate = q.settings.rate;
	f->rate_opens = q.starts.open(rate, mono_now()) ? 0 : q.starts.opens_at(rate);
	f->below_watermark = key < l.watermark;
	for (core::Ref w = q.waiters_head; w != core::kNil && !f->waited_for; w = engine.waiter(w).next)
		f->waited_for = wants(engine.waiter(w), l.kind_hash);
	engine.for_watchers(q, [&](uint32_t proc) noexcept {
		f->waited_for = f->waited_for || engine.watches(proc, q, l.kind_hash);
	});
	if (!f->waited_for)
		copy_asked_kinds(q, &f->others);
	if (group != nullptr) // its jobs are not in the lane's tree
		return copy_group(q, group, key, f);
	for (core::Ref r = l.ready.min; r != core::kNil && f->ahead < kFewJobs && engine.entry(r).key() < key;
		 r = engine.next_in_tree(r))
		++f->ahead;
}

} // namespace

bool copy_entry(const Db &db, core::JobId id, MemoryFacts *f) noexcept
{
	uint16_t slot = 0;
	const core::Ref ref = engine.find(index_of(db), id, &slot);
	if (ref == core::kNil)
		return false;
	lock_queue(slot);
	Queue &q = engine.queue(slot);
	f->has_entry = engine.is(q, ref, id) &&
				   (engine.entry(ref).state != State::placeholder || engine.entry(ref).mark != Verb::none);
	if (f->has_entry)
	{
		f->e = engine.entry(ref);
		const char *worker = worker_name(f->e.worker());
		strlcpy(f->worker, worker != nullptr ? worker : "", sizeof(f->worker));
		copy_queue(q, f->e.lane, f->e.key(), f->e.group != core::kNil ? engine.group(f->e.group).key : nullptr, f);
	}
	unlock_queue(slot);
	return f->has_entry;
}

bool copy_queue_of(const Db &db, core::JobId id, const JournalFacts &rec, MemoryFacts *f)
{
	const uint16_t slot = queue_of_id(db, rec.row.queue_id);
	const journal::Candidate c = candidate_of(rec.row, ItemPointerData{});
	if (slot == kNoQueue)
		return false;
	const uint16_t of_kind = lane_for(slot, c.has_kind ? c.kind : nullptr, Make::never);
	// if the kind has no lane, the job has ended since it was read
	const uint16_t lane = of_kind != core::kNoLane ? of_kind : lane_for(slot, nullptr);
	lock_queue(slot);
	Queue &q = engine.queue(slot);
	// it may have been dropped meanwhile, and another queue, perhaps of another database, may have its slot
	const bool same = q.state != core::QueueState::free && q.db == index_of(db) && q.id == rec.row.queue_id;
	if (same)
		copy_queue(q, lane, core::Key{rec.fold.has_priority ? rec.fold.priority : rec.row.priority, id},
				   c.group_key(), f);
	unlock_queue(slot);
	return same;
}

bool read_record(Db &db, core::JobId id, JournalFacts *rec)
{
	Snapshot snapshot = committed_snapshot();
	bool found = false, own = false;
	// Reads all segments that may have the job. A moved job is in two: segment 0 comes last and has its whole history.
	find_in_segments(db, id, [&](const journal::Segment &tables, int) {
		ItemPointerData tid;
		if (journal::find_job(tables, id, snapshot, false, &rec->row, &tid))
		{
			found = true;
			rec->events = journal::job_events(tables, id, snapshot);
		}
		else
			own = own || (!found && journal::find_own_job(tables, id, &rec->row, &tid));
		return false;
	});
	UnregisterSnapshot(snapshot);
	if (!found && !own)
		raise_no_job(id);
	for (const journal::EventRow &e : rec->events)
		journal::fold_event(rec->fold, e);
	rec->state = state_of(candidate_of(rec->row, ItemPointerData{}), rec->fold, wall_now(), &rec->due);
	return found;
}

} // namespace tq
