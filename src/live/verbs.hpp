// What the verbs have in common: finding a job's entry, marking it for the open transaction, taking its step.
// Regime: PG. Locks: queue locks, held only inside.
#pragma once

#include "live/loader.hpp"
#include "live/xact.hpp"

namespace tq::live
{

enum class Hold : uint8
{
	ok,
	lost,	   // the lease is not (or no longer) the live one
	done,	   // this transaction has already ended it
	not_found, // no entry: only on disk, ended, or never there
	busy,	   // marked by another transaction
	asked,	   // cancel: it runs, and was asked to stop
};

// Marks the running job `id` for a verb of its lease's holder (which may have noted a checkpoint before in this transaction), takes its next step and notes the operation. `entry` receives a copy
// from before, with `step` being the step taken. Room for the operation must be reserved.
Hold hold_lease(Db &db, JobId id, LeaseNo lease, Verb verb, Op *op, Entry *entry) noexcept;

// The same for the verbs that need no lease (cancel, retry, reschedule): the entry must be in one of `states` (bits 1 << State), or,
// if this transaction has changed it, be about to be. `wrong` receives the state found when it is not. A running job that is to be
// cancelled is only asked, if State::running is among the states: no mark; the operation is noted unless it was asked before
// (entry->flags).
Hold hold_job(Db &db, Ref ref, uint16_t queue, JobId id, uint32 states, Verb verb, Op *op, Entry *entry,
			  State *wrong) noexcept;

constexpr uint32 bit_of(State s) noexcept { return 1U << static_cast<int>(s); }

// Marks a job that has ended for a new life: `pinned` is its kept placeholder.
void hold_ended(const Pinned &pinned, Op *op, Entry *entry) noexcept;

// Marks a job that has ended for a verb that leaves it ended (move, erase, forget): nobody gives it a new life meanwhile. `pinned` is its
// kept placeholder; room for the operation must be reserved. `new_segment`: the slot it is moved to.
void hold_record(const Pinned &pinned, Verb verb, int new_segment) noexcept;

// The enqueue of a job by this transaction ("New": no other may see it, so it must not be pinned); null if it is not its own. One that
// was only summed becomes an operation of its own. May raise.
Op *own_job(Db &db, JobId id);

// The operation that enqueues a job with this row; its queue, lane, segment and place are for the caller. `by_itself`: also if so many are
// enqueued that they are only summed.
Op enqueue_of(const journal::JobRow &row, Micros now, bool by_itself = false);

// Raises what a failed hold_lease means: TQ001, TQ004, 55P03. Looks into the journal to tell a lost lease from a job that never was.
[[noreturn]] void raise_hold(Db &db, Hold hold, JobId id, LeaseNo lease);

[[noreturn]] void raise_no_job(JobId id);
[[noreturn]] void raise_busy(JobId id);

bool job_exists(Db &db, JobId id);

// How often a job may be tried: its own number, else its queue's, else the server's.
int32 attempts_allowed(int32 own, uint16_t queue) noexcept;

// The retry policy of the row of a job, null if it has none. Reads the row, and may raise.
Jsonb *own_retry(Db &db, const Entry &entry);

// Name of the worker that holds an entry, null if none.
const char *worker_name(uint32_t worker) noexcept;

// An event of this attempt with everything filled in but what the verb knows.
journal::EventRow event_of(const Entry &entry, journal::EventType type, TimestampTz now) noexcept;

// Appends events, each to the segment of its job (slots in the map, parallel to the rows); sorts them by segment. *at
// is the slot of the last one that it came to, for who catches its error.
void append_by_segment(Db &db, journal::EventRow *rows, const uint16_t *slots, int n, int *at = nullptr);

} // namespace tq::live
