// Giving a single job an entry, so that a verb can work on it (R10).
#include "live/attach.hpp"
#include "live/loader.hpp"
#include "live/segments.hpp"

namespace tq::live
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

// Asks the journal, with a snapshot younger than the placeholder.
void fold_pinned(Db &db, const journal::Segment &tables, Pinned *p)
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

} // namespace

Pinned pin(Db &db, JobId id, bool keep_terminal)
{
	Pinned p{};
	const uint16_t d = index_of(db);
	for (int tries = 0;; ++tries)
	{
		p.ref = engine.find(d, id, &p.queue);
		if (p.ref != kNil)
		{
			bool loading = false, there = false;
			lock_queue(p.queue);
			const Entry &e = engine.entry(p.ref);
			there = engine.is(engine.queue(p.queue), p.ref, id);
			loading = there && e.state == State::placeholder && e.mark == Verb::none;
			p.lane = e.lane;
			p.segment = e.segment;
			unlock_queue(p.queue);
			if (there && !loading)
			{
				p.result = Pin::pinned;
				return p;
			}
			if (tries > 2000)
			{
				p.result = Pin::busy;
				return p;
			}
			if (loading) // a loader has it for some microseconds, or until it has a lock that it waits for
				pg_usleep(500);
			CHECK_FOR_INTERRUPTS();
			continue;
		}
		int slots[kMostSlots];
		const int nslots = slots_of_id(db, id, slots);
		bool again = false;
		p.result = Pin::absent;
		for (int i = 0; i < nslots && !again && p.result == Pin::absent; ++i)
		{
			journal::Segment tables;
			if (!tables_at(db, slots[i], &tables))
				continue;
			journal::JobRow row;
			ItemPointerData tid;
			Snapshot s1 = committed_snapshot();
			const bool found = journal::find_job(tables, id, s1, false, &row, &tid);
			UnregisterSnapshot(s1);
			if (!found)
				continue;
			p.queue = queue_of_id(db, row.queue_id);
			if (p.queue == kNoQueue)
				continue;
			p.row = candidate_of(row, tid);
			p.segment = slots[i];
			p.lane = lane_for(p.queue, p.row.has_kind ? p.row.kind : nullptr);
			Queue &q = engine.queue(p.queue);
			Ref existing = kNil;
			TQ_WAIT_POINT("pin-before-lock");
			lock_queue(p.queue);
			if (q.state == core::QueueState::free || q.db != d || q.id != row.queue_id) // it was dropped meanwhile
			{
				unlock_queue(p.queue);
				again = true;
				break;
			}
			const Ref group = p.row.has_group ? engine.group_for(q, p.row.group, true) : kNil;
			if (p.row.has_group && group == kNil)
			{
				unlock_queue(p.queue);
				if (free_slot())
				{
					again = true;
					break;
				}
				p.result = Pin::no_room; // tq.max_groups
				return p;
			}
			p.ref = engine.insert(q, p.lane, id, p.row.priority, State::placeholder, my_proc, true, &existing, group);
			unlock_queue(p.queue);
			if (existing != kNil)
			{
				again = true;
				break;
			}
			if (p.ref == kNil)
			{
				if (make_room(db, 8, core::kNoLane) > 0 || free_one(db))
				{
					again = true;
					break;
				}
				p.result = Pin::no_room;
				return p;
			}
			fold_pinned(db, tables, &p);
			if (p.fold.state == journal::FoldState::moved)
				drop_placeholder(db, p.queue, p.ref, true); // lives on in segment 0, the next slot, if at all; a loader may have passed meanwhile
			else if (p.fold.terminal())
			{
				p.result = Pin::terminal;
				if (!keep_terminal)
				{
					drop_placeholder(db, p.queue, p.ref, false);
					p.ref = kNil;
				}
				return p;
			}
			else
			{
				place_job(db, p.row, p.segment, p.fold, p.queue, p.lane, p.ref, Source::pin);
				p.result = Pin::pinned;
				return p;
			}
		}
		if (!again)
			return p;
		CHECK_FOR_INTERRUPTS();
	}
}

Micros due_when_free(Db &db, const Pinned &p, JobId id)
{
	journal::Candidate row = p.row;
	journal::Fold fold = p.fold;
	if (row.id != id)
	{
		journal::Segment tables;
		journal::JobRow full;
		ItemPointerData tid;
		if (!tables_at(db, p.segment, &tables))
			return core::kNever;
		Snapshot snapshot = committed_snapshot();
		if (journal::find_job(tables, id, snapshot, false, &full, &tid))
		{
			row = candidate_of(full, tid);
			journal::fold_job(tables, id, snapshot, &fold);
		}
		UnregisterSnapshot(snapshot);
	}
	fold.freed = true;
	Micros due = core::kNever;
	static_cast<void>(state_of(row, fold, wall_now(), &due));
	return due;
}

void raise_being_read(JobId id)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("job %lld is being read in", static_cast<long long>(id)), errhint("Try again.")));
}

} // namespace tq::live
