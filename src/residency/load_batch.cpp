#include "residency/load_batch.hpp"

#include "guc.hpp"
#include "segments/segments.hpp"

namespace tq
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
		if (still_loads(engine.lane(g->lane)))
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

int finish_load_batch(Db &db, const LoadSegments &segments, LoadItem *items, int n, Source source)
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
		JobRead job{.c = it.c,
					.fold = fold,
					.slot = segments.slots[it.c.segment],
					.queue = it.queue,
					.lane = it.lane,
					.ref = it.ref,
					.source = source};
		it.ref = kNil; // nothing can fail from here on
		Micros due = core::kNever;
		if (fold.terminal())
			drop_placeholder(db, it.queue, job.ref, false);
		else
		{
			// The index may have an outdated time; install_job decides by the journal.
			if (source == Source::timer && (state_of(it.c, fold, 0, &due) == State::running || due != it.c.due))
				job.source = Source::stale_timer;
			made += install_job(db, job) == Installed::in_memory;
		}
		if ((i & 255) == 0)
			CHECK_FOR_INTERRUPTS();
	}
	pfree(folds);
	return made;
}

} // namespace tq
