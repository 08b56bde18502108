// Gives a single job an entry for a verb (R10).
#include "queues/lanes.hpp"
#include "queues/policy.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"
#include "transaction/pending.hpp"

namespace tq
{

namespace
{

struct Guard
{
	Db *db;
	uint16_t queue;
	Ref ref;
};

void clean_up(int, Datum arg)
{
	const auto *g = reinterpret_cast<Guard *>(DatumGetPointer(arg));
	drop_placeholder(*g->db, g->queue, g->ref, true);
}

// Reads the journal with a snapshot that is newer than the placeholder.
void fold_pinned(Db &db, const journal::Segment &tables, FetchedJob *p)
{
	Guard guard{&db, p->queue, p->ref};
	PG_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
	{
		TQ_WAIT_POINT("pin-before-fold");
		Snapshot snapshot = committed_snapshot();
		journal::fold_seen_jobs(tables, &p->row.id, 1, snapshot, &p->fold);
		UnregisterSnapshot(snapshot);
		TQ_WAIT_POINT("pin-after-fold");
	}
	PG_END_ENSURE_ERROR_CLEANUP(clean_up, PointerGetDatum(&guard));
}

// The result of a step of the search.
enum class Step : uint8
{
	next,  // continue with the next step or segment
	again, // the job or its queue has changed: search again
	done,  // FetchedJob::result is the answer
};

struct Search
{
	Db &db;
	JobId id;
	bool keep_terminal;
	For what;
	bool unfinished; // the job is unfinished, and its kind has no lane
	bool lacks_lane; // its kind has no lane: it has ended, or the counts of its kind are wrong
	journal::Segment tables;
	FetchedJob p;

	Step end(Fetch result) noexcept
	{
		p.result = result;
		return Step::done;
	}
	bool in_share() const noexcept { return what != For::server; }
};

// Checks the entry found in memory. Waits while a loader has the job.
Step look_at_entry(Search &s, int tries)
{
	FetchedJob &p = s.p;
	lock_queue(p.queue);
	const Entry &e = engine.entry(p.ref);
	const bool there = engine.is(engine.queue(p.queue), p.ref, s.id);
	const bool loading = there && e.state == State::placeholder && e.mark == Verb::none;
	p.lane = e.lane;
	p.segment = e.segment;
	unlock_queue(p.queue);
	if (there && !loading)
		return s.end(Fetch::found);
	if (tries > 2000)
		return s.end(Fetch::busy);
	// A loader needs some microseconds, or as long as it waits for a lock.
	if (loading)
		pg_usleep(500);
	return Step::again;
}

// Reads the job's row; false if the segment has no such row or the queue is gone.
bool find_row(Search &s, int slot)
{
	if (!tables_at(s.db, slot, &s.tables))
		return false;
	journal::JobRow row;
	ItemPointerData tid;
	Snapshot snapshot = committed_snapshot();
	const bool found = journal::find_job(s.tables, s.id, snapshot, false, &row, &tid);
	UnregisterSnapshot(snapshot);
	if (!found)
		return false;
	s.p.queue = queue_of_id(s.db, row.queue_id);
	if (s.p.queue == kNoQueue)
		return false;
	s.p.row = candidate_of(row, tid);
	s.p.segment = slot;
	return true;
}

Step choose_lane(Search &s)
{
	FetchedJob &p = s.p;
	const char *kind = p.row.has_kind ? p.row.kind : nullptr;
	p.lane = lane_for(p.queue, kind, s.unfinished ? Make::must : s.what == For::verb ? Make::attempt : Make::never);
	s.lacks_lane = p.lane == core::kNoLane;
	if (s.lacks_lane && s.what == For::verb)
		return s.end(Fetch::memory_full); // too many kinds (tq.max_lanes)
	if (s.lacks_lane)
		p.lane = lane_for(p.queue, nullptr);
	return Step::next;
}

Step insert_placeholder(Search &s)
{
	FetchedJob &p = s.p;
	Queue &q = engine.queue(p.queue);
	lock_queue(p.queue);
	// The queue was dropped meanwhile.
	if (q.state == core::QueueState::free || q.db != index_of(s.db) || q.id != p.row.queue_id)
	{
		unlock_queue(p.queue);
		return Step::again;
	}
	if (s.in_share() && !may_hold(q))
	{
		unlock_queue(p.queue);
		return s.end(Fetch::memory_full);
	}
	const Ref group = p.row.has_group ? engine.group_for(q, p.row.group, true, !s.in_share()) : kNil;
	if (p.row.has_group && group == kNil)
	{
		unlock_queue(p.queue);
		return evict_group_slot(&q) ? Step::again : s.end(Fetch::memory_full); // too many groups (tq.max_groups)
	}
	Ref existing = kNil;
	p.ref = engine.insert(q,
		{.lane = p.lane, .id = s.id, .priority = p.row.priority,
		 .state = State::placeholder, .reserve = true, .group = group}, my_proc, &existing);
	unlock_queue(p.queue);
	if (p.ref != kNil)
		return Step::next;
	return existing != kNil || evict_entries(8) > 0 ? Step::again : s.end(Fetch::memory_full);
}

// Turns the placeholder into an entry, or drops it, depending on the journal.
Step resolve_placeholder(Search &s)
{
	FetchedJob &p = s.p;
	fold_pinned(s.db, s.tables, &p);
	if (p.fold.state == journal::FoldState::moved)
	{
		// If it has a copy, that is in segment 0, the next slot; a loader may have skipped it meanwhile.
		drop_placeholder(s.db, p.queue, p.ref, true);
		return Step::next;
	}
	if (p.fold.terminal())
	{
		if (!s.keep_terminal)
		{
			drop_placeholder(s.db, p.queue, p.ref, false);
			p.ref = kNil;
		}
		return s.end(Fetch::terminal);
	}
	if (s.lacks_lane)
	{
		drop_placeholder(s.db, p.queue, p.ref, true);
		s.unfinished = true;
		return Step::again;
	}
	install_job(s.db, {.c = p.row,
					   .fold = p.fold,
					   .slot = p.segment,
					   .queue = p.queue,
					   .lane = p.lane,
					   .ref = p.ref,
					   .source = Source::pin});
	return s.end(Fetch::found);
}

Step pin_from_segment(Search &s, int slot)
{
	if (!find_row(s, slot))
		return Step::next;
	Step step = choose_lane(s);
	if (step != Step::next)
		return step;
	TQ_WAIT_POINT("pin-before-lock");
	step = insert_placeholder(s);
	return step == Step::next ? resolve_placeholder(s) : step;
}

Step pin_from_disk(Search &s)
{
	int slots[kMostSlots];
	const int nslots = slots_of_id(s.db, s.id, slots);
	for (int i = 0; i < nslots; ++i)
		if (const Step step = pin_from_segment(s, slots[i]); step != Step::next)
			return step;
	return s.end(Fetch::absent);
}

} // namespace

FetchedJob fetch_job(Db &db, JobId id, bool keep_terminal, For what)
{
	Search s{.db = db,
			 .id = id,
			 .keep_terminal = keep_terminal,
			 .what = what,
			 .unfinished = false,
			 .lacks_lane = false,
			 .tables = {},
			 .p = {}};
	Step step = Step::again;
	for (int tries = 0; step == Step::again; ++tries)
	{
		s.p.ref = engine.find(index_of(db), id, &s.p.queue);
		step = s.p.ref != kNil ? look_at_entry(s, tries) : pin_from_disk(s);
		if (step == Step::again)
			CHECK_FOR_INTERRUPTS();
	}
	return s.p;
}

Freed when_free(Db &db, const FetchedJob &p, JobId id)
{
	journal::Candidate row = p.row;
	journal::Fold fold = p.fold;
	if (row.id != id)
	{
		journal::Segment tables;
		journal::JobRow full;
		ItemPointerData tid;
		if (!tables_at(db, p.segment, &tables))
			return {};
		Snapshot snapshot = committed_snapshot();
		if (journal::find_job(tables, id, snapshot, false, &full, &tid))
		{
			row = candidate_of(full, tid);
			journal::fold_job(tables, id, snapshot, &fold);
		}
		UnregisterSnapshot(snapshot);
	}
	fold.freed = true;
	Freed out;
	const Micros now = wall_now();
	const bool delayed = state_of(row, fold, now, &out.due) == State::delayed;
	if (row.expires_at == journal::kNoTime && !fold.new_life)
		out.expires_at = expiry_from(delayed ? out.due : now, expires_in_of(settings_of(p.queue)).value);
	return out;
}

void raise_being_read(JobId id)
{
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("job %lld is being read in", static_cast<long long>(id)), errhint("Try again.")));
}

} // namespace tq
