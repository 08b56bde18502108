// Regime: PG. Locks: AccessShareLock on a segment while it is read; keep_segment takes RowExclusiveLock on its events.
#include "api/search.hpp"

#include "live/loader.hpp"

namespace tq::api
{

namespace
{

void collect(const journal::Candidate &c, const journal::Fold &fold, void *arg)
{
	Search &s = *static_cast<Search *>(arg);
	if (c.queue_id != s.queue_id || (s.kind != nullptr && (!c.has_kind || strcmp(c.kind, s.kind) != 0)))
		return;
	core::Micros due = core::kNever;
	if (fold.terminal() ? (s.ended & bit_of(fold.state)) == 0
						: (s.waiting & live::bit_of(live::state_of(c, fold, s.now, &due))) == 0)
		return;
	const TimestampTz at = fold.ended_at != journal::kNoTime ? fold.ended_at : c.enqueued_at;
	if (s.since != journal::kNoTime && at < s.since)
		return;
	if (s.n == s.room)
	{
		s.room = std::max<int64>(1024, s.room * 2);
		const Size bytes = sizeof(int64) * static_cast<Size>(s.room);
		s.ids = static_cast<int64 *>(s.ids == nullptr ? MemoryContextAllocHuge(s.context, bytes)
													  : repalloc_huge(s.ids, bytes));
	}
	s.ids[s.n++] = c.id;
}

} // namespace

void search_segment(Search *s, const live::SegmentView &segment)
{
	if (segment.state == live::SegmentState::free || segment.state == live::SegmentState::dropping ||
		(s->ended == 0 && segment.state == live::SegmentState::finished))
		return;
	const int64 before = s->n;
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	// when a job ended is wanted only to compare it
	journal::scan_segment(segment.tables, snapshot, s->ended != 0, collect, s, s->since != journal::kNoTime);
	UnregisterSnapshot(snapshot);
	std::sort(s->ids + before, s->ids + s->n);
}

live::SegmentView *segments_of(const live::Db &db, int *n)
{
	LWLockAcquire(live::map_lock(db), LW_SHARED);
	const int room = db.nsegments;
	LWLockRelease(live::map_lock(db));
	auto *list = static_cast<live::SegmentView *>(palloc(sizeof(live::SegmentView) * static_cast<Size>(room)));
	*n = live::view_segments(db, list, room);
	return list;
}

bool keep_segment(const live::SegmentView &segment)
{
	LockRelationOid(segment.tables.event, RowExclusiveLock);
	return SearchSysCacheExists1(RELOID, ObjectIdGetDatum(segment.tables.event)) &&
		   SearchSysCacheExists1(RELOID, ObjectIdGetDatum(segment.tables.job));
}

} // namespace tq::api
