// The segment map of a database: the ids of each segment, and drawing ids.
// Regime: PG. Locks: map lock.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Reads the list of segments from the catalog into the map, once.
void ensure_mapped(Db &db);

// Reads the least and the greatest id of each segment; both are 0 if it has no rows or is incomplete. Returns the
// greatest of all. Raises 55000 if the ids of two numbered segments are not apart: an id determines its segment.
int64 read_bounds(const pg::Array<journal::SegmentTables> &list, int64 *low, int64 *high);

// Draws up to n consecutive ids of one segment; Drawn::count says how many. The caller keeps RowExclusiveLock on the
// segment's job table until its transaction ends, so that the segment is not finished or dropped before the rows are
// published.
struct Drawn
{
	int64 first;
	int count;
	int slot; // in the segment map
	journal::Segment tables;
};
Drawn draw_ids(Db &db, int n);

// The slot whose range includes the id, if any, then segment 0. Returns the count.
constexpr int kMostSlots = 2;
int slots_of_id(const Db &db, int64 id, int *slots);

// Whether segment 0 has taken jobs as the open segment, because there is no other yet.
bool zero_takes_jobs(const Db &db) noexcept;

// The tables of a slot; false if it is free.
bool tables_at(const Db &db, int slot, journal::Segment *tables);

// Calls visit(tables, slot) for the segments that may have a job, in the order of slots_of_id(), until it returns true.
// Returns whether it did.
template <class Visit>
bool find_in_segments(const Db &db, int64 id, Visit &&visit)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	journal::Segment tables;
	for (int i = 0; i < n; ++i)
		if (tables_at(db, slots[i], &tables) && visit(tables, slots[i]))
			return true;
	return false;
}

// The same with a snapshot that take() registers after the slots are known: visit(tables, snapshot).
template <class Visit>
bool find_in_segments(const Db &db, int64 id, Snapshot (*take)(), Visit &&visit)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	journal::Segment tables;
	bool found = false;
	Snapshot snapshot = take();
	for (int i = 0; i < n && !found; ++i)
		found = tables_at(db, slots[i], &tables) && visit(tables, snapshot);
	UnregisterSnapshot(snapshot);
	return found;
}

inline Snapshot latest_snapshot() { return RegisterSnapshot(GetLatestSnapshot()); }

// Locks a segment's event table to the end of the transaction, as an append or (`reads`) a read does; with `rows`, also
// its job table, as a read does. Does not wait: returns false if another session holds or awaits a conflicting lock.
enum class Events : uint8
{
	reads,
	appends,
};
bool try_lock_segment(const Db &db, int slot, Events events, bool rows);

// All readable segments that may hold live jobs (open and sealed), ascending by number; copied under the lock.
int live_segments(const Db &db, journal::Segment *tables, int *slots, int max);
// The same with damaged segments; the caller holds the lock.
int live_segments_locked(const Db &db, journal::Segment *tables, int *slots, int max) noexcept;
// The greatest possible id in these segments, which come from live_segments().
void last_ids(const Db &db, const journal::Segment *tables, const int *slots, int n, int64 *ids) noexcept;

// Adds a segment that the janitor created. It accepts jobs, and the former open one is sealed. Nothing happens if the
// map is full or has it already.
void add_segment(Db &db, const journal::Segment &tables, TimestampTz opened_at);

// Widens the range of a segment whose ids were unknown when it was mapped, because it was damaged.
void widen_segment(Db &db, int slot, const journal::Segment &tables, int64 first_id, int64 last_id);

// SegmentSlot::dead of a segment that was not read: some, but unknown how many. Retries and purges leave it unknown.
constexpr int64 kDeadUnknown = int64{1} << 40;
constexpr bool dead_known(int64 dead) noexcept { return dead < kDeadUnknown / 2; }

// Subtracts dead jobs from a finished segment's count; does nothing if the segment was reopened.
void forget_dead(Db &db, int slot, int64 dead);

// A segment in the map.
struct SegmentView
{
	int slot;
	journal::Segment tables;
	SegmentState state;
	uint8 ended;
	int64 first_id;
	int64 last_id;
	int64 rows;
	int64 live;
	int64 dead;
	TimestampTz opened_at;
	TimestampTz sealed_at;
	TimestampTz finished_at;
	TimestampTz looked_at;
	Micros again_at;
	int64 noted_live;
	Micros noted_at;
	Micros future_since;
	bool damaged;
};
// A copy of the map in the current memory context, segment 0 first, ascending by number.
pg::Array<SegmentView> view_segments(const Db &db);

// Whether the segment may have jobs that ended in these states (bits of journal::FoldState). True until it is finished.
constexpr bool may_have_ended(const SegmentView &s, uint32 states) noexcept
{
	return s.state != SegmentState::finished || (s.ended & states) != 0;
}

// Stores SegmentSlot::ended in tq.segment, so that a restart does not lose it. The caller is in an owner's scope.
void record_ends(int32 number, uint8 ended);

// Marks a segment that could not be read, so that loads and the janitor leave it out. Logs the error that was caught.
void mark_damaged(Db &db, int slot, const ErrorData &error);

// Changes a segment's state if it is `from`; false otherwise. It becomes finished only if no job lives in it.
bool change_segment(Db &db, int slot, SegmentState from, SegmentState to, TimestampTz at);

// Removes a segment whose tables are gone.
void remove_segment(Db &db, int slot);

} // namespace tq
