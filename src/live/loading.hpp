// What the loaders of lanes, timers and groups have in common: the four steps of R12 (live/loader.hpp) for a batch of candidates.
// Regime: PG; may ereport unless noexcept. Locks: queue locks, briefly.
#pragma once

#include "live/loader.hpp"

namespace tq::live
{

constexpr int kLoadBatch = 2000;

struct LoadItem
{
	journal::Candidate c;
	uint16_t queue;
	uint16_t lane;
	Ref ref; // its placeholder, kNil if it has none
};

// What a loader must take back if it is stopped by an error or by the end of its process.
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

// Queue lock held. Is this process still the loader of a group? Its queue may have been dropped meanwhile.
bool still_loads(Ref group, uint16_t queue) noexcept;

// The segments that have unfinished jobs, in memory of the current context.
struct LoadSegments
{
	journal::Segment *tables;
	int *slots;
	int n;
};
LoadSegments segments_to_load(const Db &db);

// Step 3, segment by segment: the journal's word on each item that has a placeholder.
journal::Fold *ask_journal(const LoadSegments &segments, const LoadItem *items, int n, Snapshot snapshot);

// Steps 3 and 4: asks with a new snapshot, then makes entries; returns how many.
int settle_load(Db &db, const LoadSegments &segments, LoadItem *items, int n, Source source);

// The groups of a queue that want to be read in, and those that have no slot (live/group_loader.cpp); returns how many entries it made.
int refill_groups(Db &db, uint16_t queue);

} // namespace tq::live
