// Shared by the loaders of lanes, timers and groups: steps of R12 (residency/loader.hpp) for a batch of candidates.
// Regime: PG; may ereport unless noexcept. Locks: queue locks, briefly.
#pragma once

#include "residency/loader.hpp"

namespace tq
{

constexpr int kLoadBatch = 2000;
constexpr int kTimerBatch = 500; // smaller, because other timers wait for a batch

struct LoadItem
{
	journal::Candidate c;
	uint16_t queue;
	uint16_t lane;
	Ref ref; // its placeholder, kNil if it has none
};

// What to undo if an error or the end of the process stops a loader, which resets each field when nothing is left to
// undo.
struct LoadGuard
{
	Db *db;
	LoadItem *items;
	int n;
	uint16_t queue;	  // of the lane or group below
	uint16_t lane;	  // kNoLane if none
	Ref group = kNil;
	bool timers = false; // it is the database's timer loader
};
void clean_up_load(int code, Datum guard); // for PG_ENSURE_ERROR_CLEANUP

// Queue lock held. Whether this process is still the loader of a group or a lane, whose queue may have been dropped.
bool still_loads(Ref group, uint16_t queue) noexcept;
inline bool still_loads(const Lane &lane) noexcept { return lane.loader == my_proc; }

// The segments that have unfinished jobs, allocated in the current memory context.
struct LoadSegments
{
	journal::Segment *tables;
	int *slots;
	int n;
};
LoadSegments segments_to_load(const Db &db);

// Step 3: reads the journal for each item with a placeholder, by segment. The result is parallel to the items.
journal::Fold *ask_journal(const LoadSegments &segments, const LoadItem *items, int n, Snapshot snapshot);

// Steps 3 and 4: reads the journal with a new snapshot, then makes entries; returns how many.
int finish_load_batch(Db &db, const LoadSegments &segments, LoadItem *items, int n, Source source);

// Reads in a queue's waiting groups and gives slots to groups without one (residency/group_loader.cpp). Returns the
// number of entries made.
int refill_groups(Db &db, uint16_t queue, Between between);

} // namespace tq
