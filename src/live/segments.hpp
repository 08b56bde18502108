// The segment map of a database: which ids lie where, drawing ids.
// Regime: PG. Locks: map lock.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// Reads the list of segments from the catalog into the map, once; cheap when that is done.
void ensure_mapped(Db &db);

// Whether tq.segment has a segment. Who made one has written so there; of tables from a dump it comes with the rows.
bool is_recorded(const Db &db, int32 number);

// Draws up to n consecutive ids together with the segment that takes them; returns how many. Leaves the caller with RowExclusiveLock on
// the segment's jobs to the end of its transaction, so that it is neither finished nor dropped before what is written there is published.
struct Drawn
{
	int64 first;
	int count;
	int slot; // in the segment map
	journal::Segment tables;
};
Drawn draw_ids(Db &db, int n);

// Makes the next drawn id greater than this one (ids written by hand or restored).
void raise_ids(Db &db, int64 above);

// The same for all rows that came from outside since somebody looked, so that the range of a segment which is opened now begins above them.
void raise_ids(Db &db);

// The slots whose ranges have the id, the one that ends first before others, then segment 0; returns the count, at most kMostSlots. More than
// one range has it only where rows were written by hand, were it in a transaction that was rolled back: nothing says which range is wider
// than it should be. Of more than there is room for, some that end last are left out, but not the one that begins last: one that has grown
// upwards begins before those that it reaches into.
constexpr int kMostSlots = 64;
int slots_of_id(const Db &db, int64 id, int *slots);

// The parts of a segment's range that no other has; returns how many, at most kMostSlots. What is left out is let go by those who look at all.
struct IdRange
{
	int64 first, last;
};
int ids_of_its_own(const Db &db, int slot, IdRange *ranges);

// Whether a segment with this table of jobs is in the map.
bool is_mapped(const Db &db, Oid job);

// Tables of a slot; false if it is free.
bool tables_at(const Db &db, int slot, journal::Segment *tables);

// Every slot in use that may hold live jobs (open and sealed ones), ascending by number; copied under the lock.
int live_segments(const Db &db, journal::Segment *tables, int *slots, int max);
int live_segments_locked(const Db &db, journal::Segment *tables, int *slots, int max) noexcept; // the caller has the lock

// Adds a segment to the map (created by the janitor, or adopted) and, if `open`, makes it the one that takes jobs: the former open one
// is sealed. Returns its slot, -1 if the map is full or it is there already.
int add_segment(Db &db, const journal::Segment &tables, int64 first_id, int64 last_id, bool open, TimestampTz opened_at);

// What came from outside may lie beyond the range that a segment had when it was mapped: the range grows up to there, though others may
// have these ids, too (an id is looked up in each of them).
void widen_segment(Db &db, int slot, const journal::Segment &tables, int64 first_id, int64 last_id);

// SegmentSlot::dead of a segment that nobody has read: some, but not known how many. It stays so while some of them are retried or purged.
constexpr int64 kDeadUnknown = int64{1} << 40;
constexpr bool dead_known(int64 dead) noexcept { return dead < kDeadUnknown / 2; }

// Takes so many dead letters off a finished segment's count; nothing if it has been opened again.
void forget_dead(Db &db, int slot, int64 dead);

// A snapshot of the map for the janitor.
struct SegmentView
{
	int slot;
	journal::Segment tables;
	SegmentState state;
	int64 first_id;
	int64 last_id;
	int64 rows;
	int64 live;
	int64 dead;
	TimestampTz opened_at;
	TimestampTz sealed_at;
	TimestampTz finished_at;
	TimestampTz looked_at;
};
int view_segments(const Db &db, SegmentView *out, int max); // ascending by number

// Changes a segment's state if it is `from`; false otherwise. To finished: also only if nothing lives in it.
bool change_segment(Db &db, int slot, SegmentState from, SegmentState to, TimestampTz at);

// Forgets a segment whose tables are gone.
void remove_segment(Db &db, int slot);

} // namespace tq::live
