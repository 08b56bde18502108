#include "live/loading.hpp"

#include "guc.hpp"
#include "live/segments.hpp"

namespace tq::live
{

bool still_loads(Ref group, uint16_t queue) noexcept
{
	const core::Group &g = engine.group(group);
	return engine.owns(engine.queue(queue), group) && g.loader == my_proc;
}

void clean_up_load(int, Datum arg)
{
	auto *g = reinterpret_cast<LoadGuard *>(DatumGetPointer(arg));
	for (int i = 0; i < g->n; ++i)
		if (g->items[i].ref != kNil)
			drop_placeholder(*g->db, g->items[i].queue, g->items[i].ref, true);
	if (g->timers)
		g->db->timer_loader.store(0);
	if (g->lane != core::kNoLane)
	{
		lock_queue(g->queue);
		engine.lane(g->lane).loader = kNil;
		unlock_queue(g->queue);
	}
	if (g->group != kNil)
	{
		lock_queue(g->queue);
		if (still_loads(g->group, g->queue))
			engine.end_group_load(engine.queue(g->queue), g->group, true);
		unlock_queue(g->queue);
	}
}

LoadSegments segments_to_load(const Db &db)
{
	LoadSegments s{};
	const auto max = static_cast<Size>(guc::max_segments);
	s.tables = static_cast<journal::Segment *>(palloc(sizeof(journal::Segment) * max));
	s.slots = static_cast<int *>(palloc(sizeof(int) * max));
	s.n = live_segments(db, s.tables, s.slots, guc::max_segments);
	return s;
}

// Step 3 for a batch, segment by segment: folds[i] for each item that has a placeholder.
journal::Fold *ask_journal(const LoadSegments &segments, const LoadItem *items, int n, Snapshot snapshot)
{
	auto *folds = static_cast<journal::Fold *>(palloc(sizeof(journal::Fold) * static_cast<Size>(n)));
	auto *ids = static_cast<int64 *>(palloc(sizeof(int64) * static_cast<Size>(n)));
	auto *some = static_cast<journal::Fold *>(palloc(sizeof(journal::Fold) * static_cast<Size>(n)));
	auto *from = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(n)));
	for (int s = 0; s < segments.n; ++s)
	{
		int k = 0;
		for (int i = 0; i < n; ++i)
			if (items[i].ref != kNil && items[i].c.segment == s)
			{
				ids[k] = items[i].c.id;
				from[k++] = i;
			}
		if (k > 0)
			journal::fold_seen_jobs(segments.tables[s], ids, k, snapshot, some);
		while (k-- > 0)
			folds[from[k]] = some[k];
	}
	pfree(from);
	pfree(some);
	pfree(ids);
	return folds;
}

// Steps 3 and 4 for a batch: ask the journal with a new snapshot, then make entries.
int settle_load(Db &db, const LoadSegments &segments, LoadItem *items, int n, Source source)
{
	if (n == 0)
		return 0;
	int made = 0;
	Snapshot snapshot = committed_snapshot();
	journal::Fold *folds = ask_journal(segments, items, n, snapshot);
	UnregisterSnapshot(snapshot);
	for (int i = 0; i < n; ++i)
	{
		LoadItem &it = items[i];
		if (it.ref == kNil)
			continue;
		const journal::Fold &fold = folds[i];
		const Ref ref = it.ref;
		it.ref = kNil; // from here on it cannot fail
		if (fold.terminal())
			drop_placeholder(db, it.queue, ref, false);
		else if (source == Source::timer)
		{
			Micros due = core::kNever;
			const State to = state_of(it.c, fold, 0, &due);
			// an index entry that is not the job's time any more: it goes where the journal says it is
			const bool stale = to == State::running || due != it.c.due;
			made += place_job(db, it.c, segments.slots[it.c.segment], fold, it.queue, it.lane, ref,
							  stale ? Source::stale_timer : source) == Place::in_memory;
		}
		else
			made += place_job(db, it.c, segments.slots[it.c.segment], fold, it.queue, it.lane, ref, source) ==
					Place::in_memory;
		if ((i & 255) == 0)
			CHECK_FOR_INTERRUPTS();
	}
	pfree(folds);
	return made;
}

} // namespace tq::live
