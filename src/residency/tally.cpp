#include "residency/tally.hpp"

#include "guc.hpp"
#include "queues/lanes.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"

namespace tq
{

namespace
{

void find_lane_of(Tally &t, const journal::Candidate &c)
{
	if (t.queue != kNoQueue && t.last_queue_id == c.queue_id && t.last_has_kind == c.has_kind &&
		(!c.has_kind || strcmp(t.last_kind, c.kind) == 0))
		return;
	t.queue = queue_of_id(*t.db, c.queue_id);
	t.last_queue_id = c.queue_id;
	t.last_has_kind = c.has_kind;
	strlcpy(t.last_kind, c.kind, sizeof(t.last_kind));
	if (t.queue == kNoQueue)
		return;
	t.lane = lane_for(t.queue, c.has_kind ? c.kind : nullptr, Make::must);
	const Lane &l = engine.lane(t.lane);
	if (l.frees == t.frees[t.lane])
		return;
	// The lane is newer than the count and has the slot of a freed lane. Its deltas include all its jobs.
	t.lanes[t.lane] = t.delayed[t.lane] = t.blocked[t.lane] = 0;
	t.changes[t.lane] = l.delayed_changes;
	t.frees[t.lane] = l.frees;
}

// Whether this job without an entry may be on disk by a watermark. A job that is due belongs to the timers until their
// watermark has passed it, so it counts as delayed here.
bool on_disk_by_right(const Tally &t, const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	Micros due = core::kNever;
	const bool timed = state_of(c, fold, PG_INT64_MIN, &due) == State::delayed;
	lock_queue(t.queue);
	const Queue &q = engine.queue(t.queue);
	const Ref group = c.has_group ? engine.group_for(engine.queue(t.queue), c.group, false) : kNil;
	const core::DbCore &db = engine.db(index_of(*t.db));
	const bool yes = (timed && due >= std::min(db.timer_watermark.load(), db.timer_skipped.load())) ||
					 !engine.covered_by_watermark(q, engine.lane(t.lane), c.group_key(), group, Key{c.priority, c.id});
	unlock_queue(t.queue);
	return yes;
}

// A count waits for commit callbacks at most so often, 10 s.
constexpr int kMostNaps = 200;

// For later counts: whether an unfinished job without an entry is rightly on disk. If not, it ended since the count's
// snapshot, or memory lost it: fetch_job() asks the journal again and reads the job in. If many are missing (rows
// written by hand), or the id is not found, lowers the watermark to the job instead, and the loader reads its lane.
bool vouched_for(Tally &t, const journal::Candidate &c, const journal::Fold &fold)
{
	constexpr int64 kOneByOne = 100;
	const uint16_t d = index_of(*t.db);
	// The count may see a job before the commit callback has published it. A callback may be delayed for long.
	for (;; ++t.naps)
	{
		uint16_t q = 0;
		const bool committing = t.db->committing.load() > 0;
		if (engine.find(d, c.id, &q) != kNil || on_disk_by_right(t, c, fold) || engine.find(d, c.id, &q) != kNil)
			return true;
		if (!committing || t.naps >= kMostNaps)
			break;
		nap(50);
	}
	if (t.result.missing < kOneByOne)
	{
		const FetchedJob p = fetch_job(*t.db, c.id, false);
		const bool was_read = p.result == Fetch::found && p.row.id == c.id;
		// It has ended, has an entry, or is being read. If the row was read, it had no entry.
		if (p.result != Fetch::memory_full && p.result != Fetch::absent)
			return !was_read || on_disk_by_right(t, p.row, p.fold);
	}
	Micros due = core::kNever;
	const State to = state_of(c, fold, wall_now(), &due);
	lock_queue(t.queue);
	Queue &of = engine.queue(t.queue);
	// The queue may have been dropped meanwhile.
	const bool there = of.state != core::QueueState::free && of.db == d && of.id == c.queue_id;
	if (there && to == State::delayed)
		engine.lower_timer_watermark(d, due);
	else if (there)
		engine.lower_job_watermark(of, engine.lane(t.lane), c.group_key(), kNil, Key{c.priority, c.id});
	unlock_queue(t.queue);
	return !there;
}

// Whether a delayed job is on disk by the timers' watermark.
bool waits_on_disk(const Tally &t, const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	uint16_t q = 0;
	Micros due = core::kNever;
	const uint16_t d = index_of(*t.db);
	return state_of(c, fold, PG_INT64_MIN, &due) == State::delayed && due >= engine.db(d).timer_watermark.load() &&
		   engine.find(d, c.id, &q) == kNil;
}

// Running jobs and overrides have entries at any watermark. Those of a segment that was damaged have none yet.
void remember_must(Tally &t, JobId id)
{
	uint16_t q = 0;
	if (engine.find(index_of(*t.db), id, &q) != kNil)
		return;
	t.must.append(t.context, id);
}

// Jobs that have expired on disk are read in, for the scheduler to end. No watermark brings them while their queue is
// paused, or others come first. At most this many at a time, because they need memory.
// Jobs that wait for parents and are looked at for orphans in one audit (8 bytes each).
constexpr int64 kMostWaiting = 1000000;
constexpr int kMostOverdue = 10000;

void look_for_expiry(Tally &t, const journal::Candidate &c, const journal::Fold &fold)
{
	const TimestampTz expires_at = fold.expires_at(c.expires_at);
	uint16_t q = 0;
	if (fold.attempt != 0 || expires_at == journal::kNoTime || engine.find(index_of(*t.db), c.id, &q) != kNil)
		return;
	if (is_overdue(fold.attempt, expires_at, wall_now()) && t.overdue < kMostOverdue)
	{
		++t.overdue;
		t.must.append(t.context, c.id);
	}
	else
		t.next_expiry = std::min<Micros>(t.next_expiry, expires_at);
}

// Whether a job of an unknown queue has ended since the count's snapshot, or is gone. Then the queue may have been
// dropped meanwhile. If there are many such jobs, as after a restore, the others are not read.
bool has_ended_since(const Tally &t, JobId id)
{
	constexpr int64 kOneByOne = 100;
	journal::Segment tables;
	if (t.first || t.result.unknown >= kOneByOne || !tables_at(*t.db, t.slot, &tables))
		return false;
	journal::Fold fold;
	Snapshot snapshot = committed_snapshot();
	journal::fold_seen_jobs(tables, &id, 1, snapshot, &fold);
	UnregisterSnapshot(snapshot);
	return fold.terminal() || fold.state == journal::FoldState::moved;
}

} // namespace

void tally_job(const journal::Candidate &c, const journal::Fold &fold, const journal::Values &, void *tally)
{
	Tally &t = *static_cast<Tally *>(tally);
	++t.result.jobs;
	if (fold.terminal())
	{
		t.segment_dead += fold.dead();
		return;
	}
	find_lane_of(t, c);
	if (t.queue == kNoQueue)
	{
		t.result.unknown += !has_ended_since(t, c.id);
		++t.segment_live; // the segment's delta has its end
		return;
	}
	const bool blocked = waits_for_parents(c, fold);
	++t.result.unfinished;
	++t.lanes[t.lane];
	t.blocked[t.lane] += blocked;
	if (blocked && t.waiting.n < kMostWaiting)
		t.waiting.append(t.context, c.id);
	++t.segment_live;
	if (!t.first)
	{
		if (!blocked && !vouched_for(t, c, fold))
			++t.result.missing;
		t.delayed[t.lane] += waits_on_disk(t, c, fold);
		if (!blocked && (fold.state == journal::FoldState::running || fold.has_override || (fold.held && c.has_group)))
			remember_must(t, c.id);
		else if (!blocked)
			look_for_expiry(t, c, fold);
		return;
	}
	// A running job must be in memory, so evicts any lane or group. Retries if another process takes the entry.
	const JobRead job{.c = c,
					  .fold = fold,
					  .slot = t.slot,
					  .queue = t.queue,
					  .lane = t.lane,
					  .ref = kNil,
					  .source = Source::first_load};
	for (int tries = 0;; ++tries)
	{
		const Installed placed = install_job(*t.db, job);
		if (placed != Installed::memory_full && placed != Installed::no_slot)
			break;
		const bool freed = placed == Installed::no_slot ? evict_group_slot() : evict_entries(8) > 0;
		if (tries > 1000 || !freed)
		{
			t.db->too_small.store(true);
			ereport(
				ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg(
					 "tq.max_live_jobs (%d) or tq.max_groups (%d) is too small for the running jobs of this database",
					 guc::max_live_jobs, guc::max_groups),
				 errhint("Raise it and restart the server.")));
		}
	}
}

} // namespace tq
