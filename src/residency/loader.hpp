// The only way from the journal into memory (R12): candidates, placeholders, a new snapshot, the journal's state,
// entries. Refills lanes and timers, and pins single jobs.
// Regime: PG; may ereport (and then drops its placeholders). Locks: queue locks, briefly.
#pragma once

#include "core/placement.hpp"
#include "shmem/shared.hpp"

namespace tq
{

enum class Installed : uint8
{
	in_memory,
	on_disk,
	known, // it had an entry
	// It must be in memory (a running job, an override), and memory is full.
	memory_full,
	// It must be in memory, and its group gets no slot.
	no_slot,
};
enum class Source : uint8
{
	first_load,
	lane,
	timer,
	stale_timer, // found by the timers at an outdated time
	pin, // stays in memory regardless of watermarks
};
struct JobRead
{
	const journal::Candidate &c;
	const journal::Fold &fold;
	int slot; // of its segment
	uint16_t queue;
	uint16_t lane;
	Ref ref; // its placeholder; kNil makes an entry at once (first load, when no session can have ended the job)
	Source source;
};
// Reads an unfinished job of the journal into memory. Called without locks; takes the queue's. If the job gets no
// entry, drops the placeholder and lowers the watermark that covered the job.
Installed install_job(Db &db, const JobRead &job) noexcept;

// The limits that decide whether a job of the lane stays in memory: it does if it is due soon, or if no job on disk
// precedes it. Queue lock held.
core::Vouched vouched_at(const Db &db, const Lane &l, Micros now) noexcept;

// Registers a new snapshot without this transaction's own changes, because uncommitted jobs are not offered.
Snapshot committed_snapshot();

// Fills an entry from the row and the journal, without state, key and timer.
void fill_entry(Entry &e, const journal::Candidate &c, int slot, const journal::Fold &fold) noexcept;

// The state of a job by the journal: State::ready, delayed (sets `due`), blocked or running.
State state_of(const journal::Candidate &c, const journal::Fold &fold, Micros now, Micros *due) noexcept;

// Whether no attempt and no retry has come since the job's enqueue, or since it was blocked again. It may have been
// freed, and its priority or time may have changed.
inline bool has_not_begun(const journal::Fold &fold) noexcept
{
	return fold.state == journal::FoldState::fresh ||
		   (fold.state == journal::FoldState::waiting && fold.waits_again);
}

// Whether it is blocked.
inline bool waits_for_parents(const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	return c.has_parents && has_not_begun(fold) && !fold.freed;
}

// Reads in jobs of dry lanes; returns the number of entries made. Needs a READ COMMITTED transaction and takes its own
// snapshots. Sets `starved` if memory was too full for an empty lane, because no wakeup follows when memory is free
// again. Calls `between` now and then, without locks.
using Between = void (*)(Db &db) noexcept;
int refill(Db &db, bool *starved = nullptr, Between between = nullptr);

// Requests a new read of a queue's dry lanes and groups. Those that found memory full get no wakeup.
void ask_again(Db &db, uint16_t queue) noexcept;

// Whether more entries are free than the reserve for pins.
bool memory_available() noexcept;
int refill_lane(Db &db, uint16_t queue, uint16_t lane, int want);

// The lane or group that needs entries. The default is a single job that must have one.
constexpr uint16_t kNoQueueAsks = UINT16_MAX;
struct Asker
{
	uint16_t queue = kNoQueueAsks;
	uint16_t lane = core::kNoLane;
	bool for_group = false;
};

// Evicts up to `want` waiting jobs from the queue with most of them; returns how many. For a lane or group, evicts only
// from queues, and other holders of its own queue, that have half as many more.
int evict_entries(int want, const Asker &asker = Asker{}) noexcept;

// Evicts jobs until `want` entries are free beyond the reserve; returns how many of these are. Call it before reading
// from disk.
int free_entries_for(int want, const Asker &asker) noexcept;

// Frees a group's slot for a job that must be in memory, by evicting another group's waiting jobs; false if no group
// can be evicted. If the queue `asks` has used its share of slots, evicts from that queue.
bool evict_group_slot(const Queue *asks = nullptr) noexcept;

// take_group_slot moves a slot from a queue above its share to this queue, which is below its share; false if there is
// none. may_take_group_slots: whether to try.
bool take_group_slot(const Queue &q) noexcept;
bool may_take_group_slots(const Queue &q) noexcept;

// Whether another queue of the database, which is below its share of slots, should search for its groups first. If so,
// requests a refill of that queue.
bool yields_group_search(const Queue &q) noexcept;

// Ensures that a job which will stay in memory (an override) leaves the entries reserved for pins free. False if all
// other entries are running or will stay, too.
bool may_stay_in_memory(const Db &db, JobId id) noexcept;

// Reads in delayed jobs due before the horizon. If memory is full, sets `starved`, and the first job left becomes the
// timers' watermark.
int refill_timers(Db &db, bool *starved = nullptr, Between between = nullptr);

enum class Fetch : uint8
{
	// An entry was found or made. Another transaction may have marked it; the verb checks.
	found,
	terminal, // ended, by the journal; FetchedJob::fold tells how
	absent,	  // no such job
	memory_full,
	busy, // another process has been reading it for a second
};
struct FetchedJob
{
	Fetch result;
	uint16_t queue;
	uint16_t lane;
	Ref ref;
	int segment;		 // slot
	journal::Fold fold;	 // if it was read
	journal::Candidate row; // if it was read
};
enum class For : uint8
{
	server, // tq's own work, beyond any share
	// A user changes the record of an ended job. Its placeholder may be in the lane of jobs without a kind.
	record,
	// A user changes the job, which may begin a new life in the lane of its kind.
	verb,
};
// Gives an unfinished job an entry if it has none (R10). Returns its queue and ref, or why it has none.
// `keep_terminal`: an ended job keeps its placeholder, which the caller must mark or drop (tq_retry marks it). For a
// user, pins a job only if its queue may have another pinned entry.
FetchedJob fetch_job(Db &db, JobId id, bool keep_terminal, For what = For::server);
// A blocked job that is freed now.
struct Freed
{
	Micros due = core::kNever;		  // may start from this time, by a committed reschedule or its row; kNever: at once
	Micros expires_at = core::kNever; // by its queue, since its row has no such time
};
Freed when_free(Db &db, const FetchedJob &p, JobId id);
// Raises 55P03 for a job whose fetch_job() result is Fetch::busy.
[[noreturn]] void raise_being_read(JobId id);

// Drops a placeholder. Lowers the watermarks if the job is unfinished.
void drop_placeholder(Db &db, uint16_t queue, Ref ref, bool unfinished) noexcept;

// The parts of a row that the live state keeps.
journal::Candidate candidate_of(const journal::JobRow &row, const ItemPointerData &tid) noexcept;

// Whether a waiting job can no longer start in time. It expires when the scheduler handles it or a loader reads it.
inline bool is_overdue(int attempt, Micros expires_at, Micros now) noexcept
{
	return attempt == 0 && expires_at != journal::kNoTime && expires_at <= now;
}

} // namespace tq
