// Uses and changes an existing map: finds the tables of an id; adds, changes and removes segments.
#include "guc.hpp"
#include "segments/segments.hpp"

namespace tq
{

int slots_of_id(const Db &db, int64 id, int *slots)
{
	int n = 0, zero = -1;
	LWLockAcquire(map_lock(db), LW_SHARED);
	for (int i = 0; i < db.nsegments && (n == 0 || zero < 0); ++i)
	{
		const SegmentSlot &s = segment_at(db, i);
		if (s.state == SegmentState::free || s.state == SegmentState::dropping)
			continue;
		if (s.number == 0)
			zero = i;
		else if (id >= s.first_id && id <= s.last_id)
			slots[n++] = i;
	}
	LWLockRelease(map_lock(db));
	if (zero >= 0)
		slots[n++] = zero;
	return n;
}

bool tables_at(const Db &db, int slot, journal::Segment *tables)
{
	LWLockAcquire(map_lock(db), LW_SHARED);
	const SegmentSlot &s = segment_at(db, slot);
	const bool ok = slot < db.nsegments && s.state != SegmentState::free;
	*tables = tables_of(s);
	LWLockRelease(map_lock(db));
	return ok;
}

bool try_lock_segment(const Db &db, int slot, Events events, bool rows)
{
	journal::Segment tables;
	if (!tables_at(db, slot, &tables))
		return true; // nothing to lock; the code that reads the segment handles it
	return ConditionalLockRelationOid(tables.event, events == Events::appends ? RowExclusiveLock : AccessShareLock) &&
		   (!rows || ConditionalLockRelationOid(tables.job, AccessShareLock));
}

bool zero_takes_jobs(const Db &db) noexcept
{
	LWLockAcquire(map_lock(db), LW_SHARED);
	const SegmentSlot &s = segment_at(db, db.open);
	const bool yes = db.open < db.nsegments && s.state == SegmentState::open && s.number == 0 && s.rows.load() > 0;
	LWLockRelease(map_lock(db));
	return yes;
}

int live_segments_locked(const Db &db, journal::Segment *tables, int *slots, int max) noexcept
{
	int n = 0;
	for (int i = 0; i < db.nsegments && n < max; ++i)
		if (const SegmentState state = segment_at(db, i).state;
			state == SegmentState::open || state == SegmentState::sealed)
			slots[n++] = i;
	// slots are reused, so they are in no order
	std::sort(slots, slots + n, [&db](int a, int b) noexcept {
		return segment_at(db, a).number < segment_at(db, b).number;
	});
	std::transform(slots, slots + n, tables, [&db](int slot) noexcept { return tables_of(segment_at(db, slot)); });
	return n;
}

int live_segments(const Db &db, journal::Segment *tables, int *slots, int max)
{
	LWLockAcquire(map_lock(db), LW_SHARED);
	const int n = live_segments_locked(db, tables, slots, max);
	LWLockRelease(map_lock(db));
	int readable = 0;
	for (int i = 0; i < n; ++i)
		if (!segment_at(db, slots[i]).damaged.load())
		{
			tables[readable] = tables[i];
			slots[readable++] = slots[i];
		}
	return readable;
}

void last_ids(const Db &db, const journal::Segment *tables, const int *slots, int n, int64 *ids) noexcept
{
	LWLockAcquire(map_lock(db), LW_SHARED);
	for (int i = 0; i < n; ++i)
	{
		const SegmentSlot &s = segment_at(db, slots[i]);
		const bool known = s.number == tables[i].number && s.number != 0; // segment 0 has jobs of other segments
		ids[i] = known ? s.last_id : PG_INT64_MAX;
	}
	LWLockRelease(map_lock(db));
}

void add_segment(Db &db, const journal::Segment &tables, TimestampTz opened_at)
{
	int slot = -1;
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	bool known = false;
	for (int i = 0; i < db.nsegments; ++i)
	{
		const SegmentSlot &s = segment_at(db, i);
		if (s.state == SegmentState::free)
			slot = slot < 0 ? i : slot;
		else if (s.number == tables.number && s.job == tables.job)
			known = true;
	}
	if (slot < 0 && db.nsegments < guc::max_segments)
		slot = db.nsegments;
	if (slot >= 0 && !known)
	{
		// H8: the new range starts at the next id that any session can draw. Draws may raise next_id above id_limit.
		const int64 next = std::min(db.next_id.load(), db.id_limit.load());
		SegmentSlot &old = segment_at(db, db.open);
		old.state = SegmentState::sealed;
		old.last_id = next - 1;
		old.sealed_at = opened_at;
		SegmentSlot &s = segment_at(db, slot);
		s.number = tables.number;
		s.job = tables.job;
		s.event = tables.event;
		s.opened_at = s.sealed_at = opened_at;
		s.finished_at = 0;
		s.forget_counts();
		s.first_id = next;
		s.last_id = PG_INT64_MAX;
		s.state = SegmentState::open;
		db.open = slot;
		if (slot == db.nsegments)
			++db.nsegments;
	}
	LWLockRelease(map_lock(db));
}

void widen_segment(Db &db, int slot, const journal::Segment &tables, int64 first_id, int64 last_id)
{
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	SegmentSlot &s = segment_at(db, slot);
	if (s.number == tables.number && s.job == tables.job && s.number != 0 && s.state != SegmentState::free)
	{
		const bool was_empty = s.last_id < s.first_id;
		s.first_id = was_empty ? first_id : std::min(first_id, s.first_id);
		s.last_id = was_empty ? last_id : std::max(last_id, s.last_id);
	}
	LWLockRelease(map_lock(db));
}

pg::Array<SegmentView> view_segments(const Db &db)
{
	pg::Array<SegmentView> out;
	out.reserve(CurrentMemoryContext, guc::max_segments);
	LWLockAcquire(map_lock(db), LW_SHARED);
	for (int i = 0; i < db.nsegments; ++i)
	{
		const SegmentSlot &s = segment_at(db, i);
		if (s.state == SegmentState::free)
			continue;
		out.push(SegmentView{i,
							 tables_of(s),
							 s.state,
							 s.ended.load(),
							 s.first_id,
							 s.last_id,
							 s.rows.load(),
							 s.live.load(),
							 s.dead.load(),
							 s.opened_at,
							 s.sealed_at,
							 s.finished_at,
							 s.looked_at.load(),
							 s.again_at.load(),
							 s.noted_live.load(),
							 s.noted_at.load(),
							 s.future_since.load(),
							 s.damaged.load()});
	}
	LWLockRelease(map_lock(db));
	std::sort(out.begin(), out.end(), [](const SegmentView &a, const SegmentView &b) noexcept {
		return a.tables.number < b.tables.number;
	});
	return out;
}

bool change_segment(Db &db, int slot, SegmentState from, SegmentState to, TimestampTz at)
{
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	SegmentSlot &s = segment_at(db, slot);
	const bool ok = s.state == from && (to != SegmentState::finished || s.live.load() == 0);
	if (ok)
	{
		s.state = to;
		if (to == SegmentState::finished)
			s.finished_at = at;
	}
	LWLockRelease(map_lock(db));
	return ok;
}

void mark_damaged(Db &db, int slot, const ErrorData &error)
{
	SegmentSlot &s = segment_at(db, slot);
	if (!s.damaged.exchange(true))
		ereport(LOG, (errcode(error.sqlerrcode), errmsg("tq: segment %d cannot be read and is left out", s.number),
					  errdetail("%s", error.message),
					  errhint("Repair tq.job_%d and tq.event_%d, or drop both, and call tq_reload(). All other jobs "
							  "can be processed.", s.number, s.number)));
}

void forget_dead(Db &db, int slot, int64 dead)
{
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	SegmentSlot &s = segment_at(db, slot);
	if (s.state == SegmentState::finished)
		s.dead.fetch_sub(dead);
	LWLockRelease(map_lock(db));
}

void remove_segment(Db &db, int slot)
{
	LWLockAcquire(map_lock(db), LW_EXCLUSIVE);
	segment_at(db, slot).state = SegmentState::free;
	LWLockRelease(map_lock(db));
}

} // namespace tq
