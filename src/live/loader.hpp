// The one way from the journal into memory (R12): candidates, placeholders, a new snapshot, the journal's word, entries. Refill of lanes,
// timers, pins of single jobs.
// Regime: PG; may ereport (placeholders are then taken back). Locks: queue locks, briefly.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// Puts a job that the journal knows as unfinished into memory. `ref` is its placeholder, or kNil to make an entry now (first load, when
// nobody can have finished it meanwhile). Called with no lock held; takes the queue's. With a placeholder that is not turned into an
// entry, the placeholder is dropped and the watermark that vouches for the job sunk.
enum class Place : uint8
{
	in_memory,
	on_disk,
	known, // it had an entry
	no_room, // it must be in memory (a running job, an override) and cannot
	no_slot, // ... for want of a slot for its group
};
enum class Source : uint8
{
	first_load,
	lane,
	timer,
	stale_timer, // found by the timers at a time that is not its own any more
	pin, // keeps it in memory wherever the watermarks are
};
Place place_job(Db &db, const journal::Candidate &c, int segment_slot, const journal::Fold &fold, uint16_t queue,
				uint16_t lane, Ref ref, Source source) noexcept;

// A registered snapshot of now, in which this transaction's own changes do not show: what is not committed is nobody's yet.
Snapshot committed_snapshot();

// What an entry takes from the row and the journal, but for state, key and timer.
void fill_entry(Entry &e, const journal::Candidate &c, int slot, const journal::Fold &fold) noexcept;

// Where a job stands by the journal's word: State::ready, delayed (due is set), blocked or running.
State state_of(const journal::Candidate &c, const journal::Fold &fold, Micros now, Micros *due) noexcept;

// ... blocked: nothing has happened to it since it was enqueued, but that its priority or time may have been changed.
inline bool waits_for_parents(const journal::Candidate &c, const journal::Fold &fold) noexcept
{
	return c.has_parents && fold.state == journal::FoldState::fresh && !fold.freed;
}

// Reads jobs of lanes that run dry; returns how many entries it made. Needs a transaction (READ COMMITTED), makes its own
// snapshots. `starved` is set if a lane found no room in memory: nobody rings when there is some.
int refill(Db &db, bool *starved = nullptr);

// Has lanes and groups of a queue read again that could use more; nobody rings for those that found no room.
void ask_again(Db &db, uint16_t queue) noexcept;

// Is there more than what is kept for pins?
bool room_in_memory() noexcept;
int refill_lane(Db &db, uint16_t queue, uint16_t lane, int want);

// Frees entries for others by sending those of the lane that is most above its share back to disk; never from `spare`.
int make_room(Db &db, int want, uint16_t spare) noexcept;

// Sends one job back to disk, whatever its lane's share; false if none can go.
bool free_one(Db &db) noexcept;

// Frees a group's slot for a job that must be in memory, by sending the waiting jobs of another group back to disk; false if none can go.
bool free_slot() noexcept;

// For a queue that has less than its share of the slots, and of whose groups one finds none: frees one of a queue that has more; false if
// there is none. Whether that is worth trying.
bool take_slot(const Queue &q) noexcept;
bool may_take_slots(const Queue &q) noexcept;

// Is it another queue's turn to find its groups, since it has less than its share of the slots?
bool gives_way(const Queue &q) noexcept;

// Makes sure that a job which is going to stay in memory (an override) leaves the entries kept for pins alone; false if all others are
// running or are to stay as well.
bool room_to_stay(Db &db, JobId id) noexcept;

// Reads delayed jobs that fall due before the horizon. `starved` is set if one found no room; the timers' watermark is then its time.
int refill_timers(Db &db, bool *starved = nullptr);

// Gives a job an entry if it is unfinished and has none; see R10. Result: its entry's queue and ref, or why not.
enum class Pin : uint8
{
	pinned,	  // entry found or made; may be marked by somebody: the verb looks
	terminal, // in the journal, ended; *fold tells how
	absent,	  // no such job
	no_room,
	busy, // somebody else has been reading it in for a second
};
struct Pinned
{
	Pin result;
	uint16_t queue;
	uint16_t lane;
	Ref ref;
	int segment;		 // slot
	journal::Fold fold;	 // if it was read
	journal::Candidate row; // if it was read
};
// `keep_terminal`: a job that has ended keeps its placeholder (for tq_retry, which marks it); the caller must mark or drop it.
Pinned pin(Db &db, JobId id, bool keep_terminal);
// When a blocked job may start once it is free: what a reschedule said, or its row; kNever: at once. As committed.
Micros due_when_free(Db &db, const Pinned &p, JobId id);
// What to say to a user if it is busy.
[[noreturn]] void raise_being_read(JobId id);

// Takes a placeholder back; the job is unfinished (its watermark sinks) or ended.
void drop_placeholder(Db &db, uint16_t queue, Ref ref, bool unfinished) noexcept;

// What the live state keeps of a row.
journal::Candidate candidate_of(const journal::JobRow &row, const ItemPointerData &tid) noexcept;

// Whether a waiting job's time to be started is over: then it ends as expired, when the scheduler comes to it or it is read in.
inline bool is_overdue(int attempt, Micros expires_at, Micros now) noexcept
{
	return attempt == 0 && expires_at != journal::kNoTime && expires_at <= now;
}

// The queue slot of a tq.queue id; kNoQueue if unknown.
uint16_t queue_of_id(const Db &db, int32 id) noexcept;

} // namespace tq::live
