// Regime: PG. Locks: AccessShareLock on a segment while it is read; keep_segment takes RowExclusiveLock on its events.
#include "jobs/search.hpp"

#include "residency/loader.hpp"

namespace tq
{

namespace
{

void collect(const journal::Candidate &c, const journal::Fold &fold, const journal::Values &, void *arg)
{
	Search &s = *static_cast<Search *>(arg);
	if ((s.queue_id != 0 && c.queue_id != s.queue_id) ||
		(s.kind != nullptr && (!c.has_kind || strcmp(c.kind, s.kind) != 0)))
		return;
	core::Micros due = core::kNever;
	if (fold.terminal() ? (s.ended & bit_of(fold.state)) == 0
						: (s.waiting & bit_of(state_of(c, fold, s.now, &due))) == 0)
		return;
	const TimestampTz at = fold.ended_at != journal::kNoTime ? fold.ended_at : c.enqueued_at;
	if (s.since != journal::kNoTime && at < s.since)
		return;
	s.ids.append(s.context, c.id);
}

} // namespace

void search_segment(Search *s, const SegmentView &segment)
{
	// an open transaction cannot have ended jobs of a finished segment, so the map knows all its ends
	if (segment.state == SegmentState::free || segment.state == SegmentState::dropping ||
		!may_have_ended(segment, s->ended))
		return;
	const int64 before = s->ids.n;
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	// the time at which a job ended is needed only if `since` is given
	journal::scan_segment(segment.tables, snapshot, s->ended != 0, collect, s, s->since != journal::kNoTime);
	UnregisterSnapshot(snapshot);
	std::sort(s->ids.begin() + before, s->ids.end());
}

bool keep_segment(const SegmentView &segment)
{
	LockRelationOid(segment.tables.event, RowExclusiveLock);
	return SearchSysCacheExists1(RELOID, ObjectIdGetDatum(segment.tables.event)) &&
		   SearchSysCacheExists1(RELOID, ObjectIdGetDatum(segment.tables.job));
}

} // namespace tq
