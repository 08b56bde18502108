// The schedules of the scheduler's database, in its memory. The list holds the next time of each; the job's contents
// are read when it fires. So a schedule costs about half a kilobyte, whatever its payload.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "pg/prelude.hpp"

extern "C"
{
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "utils/hsearch.h"
}

#include "schedules/schedule.hpp"
#include "processes/worker.hpp"

namespace tq
{

// Selects the row of a schedule's newest job in tq.schedule_fire. Does not go by time: if the clock was set back,
// that row may have a future time.
#define TQ_JOB_BEFORE "job_id IS NOT NULL AND outcome IN ('fired', 'manual') ORDER BY job_id DESC LIMIT 1"

struct ScheduleLane;

// What a schedule is listed in.
enum class ListedIn : uint8
{
	none,  // it does not fire
	lane,  // the heap of its lane: it waits for its time, or its turn
	retry, // ScheduleList::retries: it waits for retry_at, after a failure
	taken, // ScheduleList::taken: the open transaction has its turn
};

// A schedule in the scheduler's memory.
struct Planned
{
	char name[core::kNameMax]; // key of the hash table
	ScheduleLane *lane;		   // of its owner and queue
	TransactionId version;	   // of the row that was read
	uint32 pass;			   // last pass over the table that has seen it
	int64 revision;
	core::Recurrence times;
	Micros late;
	int max_catch_up;
	core::CatchUp catch_up;
	ListedIn listed_in;
	bool unread;	 // the row must be read at its turn
	bool unreadable; // reading the row has failed
	bool invalid;	 // the row has a mistake
	bool fires;		 // valid and not paused
	bool may_wait;	 // to enqueue its job, it may have to wait for other transactions
	bool has_error;	 // last_error of its row is set
	bool to_prune;
	Micros base; // last time that has been handled
	Micros next; // time after it; kNever if there is none, or if it does not fire
	Micros turn; // since when it is due: `next`, or when its row changed
	int64 rows;	 // in tq.schedule_fire
	// what the open transaction will set
	Micros new_base;
	int new_rows;
	// after an error
	int failures;
	int sqlstate;	 // of the last one
	Micros retry_at; // monotonic; 0: the last turn succeeded
	Micros pause;	 // its length
	pairingheap_node in_heap; // of its lane, or ScheduleList::retries
	dlist_node in_all;
	dlist_node in_taken;
	dlist_node in_prune;
};

// What contains this node of a list or a heap; the server's macros for it are for C alone.
template <class T, class Node>
T *holder(Node *node, size_t offset) noexcept
{
	return reinterpret_cast<T *>(reinterpret_cast<char *>(node) - offset);
}

struct ScheduleList
{
	MemoryContext context; // null: nothing is known
	HTAB *by_name;
	HTAB *lanes_by_key;
	HTAB *owners_by_oid;
	dlist_head all;
	dlist_head lanes;
	dlist_head due; // owners whose lanes are due
	dlist_head taken;
	dlist_head prune;
	pairingheap retries;
	int n;
	int invalid; // of these
};

void make_list(ScheduleList *list);
void free_list(ScheduleList *list);

// A pass over the table: reads up to kPage rows, starting after a name. New and changed rows are to be read when
// their turn comes; with `afresh`, all rows are. False at the end of the table; then the schedules that the pass has
// not seen are removed.
constexpr int kPage = 500;
struct Pass
{
	uint32 number;
	bool afresh;
	char from[core::kNameMax]; // names after it are still to be read
	int seen;
};
bool read_page(const Db &db, ScheduleList *list, Pass *pass);

// Reads the row and how far the schedule has got; sets `next` after that. False if the row is gone. An invalid row
// (written by hand) is logged and does not fire.
bool read_planned(const Db &db, ScheduleList *list, Planned *p);

// Reads the current row, to enqueue its job. `before` is the previous job, 0 if there is none or if it does not
// matter. False if the row is gone or has changed since it was read.
bool read_definition(const Db &db, const Planned &p, Schedule *out, core::JobId *before);

void remove_planned(ScheduleList *list, Planned *p);

// Sets `next` to the time after `base`.
void plan_next(Planned *p) noexcept;

} // namespace tq
