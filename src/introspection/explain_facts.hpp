// What tq_explain knows about a job: its state in memory and in the journal.
// Regime: PG; may ereport unless noexcept. Locks: the job's queue lock while the state in memory is copied;
// AccessShareLock on its segment's tables.
#pragma once

#include "journal/journal.hpp"
#include "shmem/asked_kinds.hpp"

namespace tq
{

constexpr int kFewJobs = 1000; // counts at most this many jobs while it holds the queue's lock

// The state in memory, copied under the lock.
struct MemoryFacts
{
	bool has_entry;
	core::Entry e;
	char queue[core::kNameMax];
	char kind[core::kNameMax];
	char worker[core::kNameMax];
	core::Micros queue_paused, kind_paused, group_paused; // until when; 0: not paused, kNever: until resumed
	core::Micros asked_at;	 // the last claim that could have taken the job; 0: none since the server started
	bool below_watermark;	 // of its lane, or of its group if it has one
	uint32 running;			 // in the queue
	bool share_is_full;		 // pinned entries fill the queue's share of memory, so no job of it may start
	uint32 pinned;			 // entries that cannot be evicted
	int32 max_running;		 // 0: no limit
	core::Micros rate_opens; // monotonic; 0: now
	char group[core::kGroupMax];
	core::Block block; // what keeps its group from starting a job
	bool no_group_slots;	   // its group has no slot, and the queue has used its share of slots
	int32 group_limit;
	bool own_limit, own_rate; // of tq_limit_group, not the queue's
	uint32 group_running;
	core::Micros group_opens; // monotonic, if the group's rate limit blocks the group
	core::JobId blocker;	  // the job of the group that keeps it from starting one; 0: none found
	bool waited_for;		  // a call waits for such a job now
	uint64 asked_by[2]; // hashed names of the workers that asked last, for the job's kind and for any (Lane::asked_by)
	char draining[core::kNameMax]; // the name of one of these if it is draining, and so gets no jobs; empty: none
	AskedKinds others;			   // kinds that claims have asked for, of which the queue has no jobs
	int ahead;					   // jobs of its kind that come before it in memory, at most kFewJobs
};

// The state in the journal.
struct JournalFacts
{
	journal::JobRow row;
	pg::Array<journal::EventRow> events;
	journal::Fold fold;
	State state; // of a job that has not ended; without meaning if it has
	core::Micros due;
};

// Copies the job's entry and the relevant state of its queue. False without an entry. A placeholder counts only with a
// mark: then a transaction changes an ended job. Without one, a loader has not read the job's state yet.
bool copy_entry(const Db &db, core::JobId id, MemoryFacts *f) noexcept;
// The same for a job without an entry: only the state of its queue. False if the queue does not exist.
bool copy_queue_of(const Db &db, core::JobId id, const JournalFacts &rec, MemoryFacts *f);
// Reads the job's row and events. False if this transaction has enqueued the job: the snapshot does not see its own
// changes. Raises TQ004.
bool read_record(Db &db, core::JobId id, JournalFacts *rec);

} // namespace tq
