// Shared by the verbs: find a job's entry, mark it for the open transaction, take its step.
// Regime: PG. Locks: queue locks, held only inside.
#pragma once

#include "residency/loader.hpp"
#include "transaction/pending.hpp"

namespace tq
{

enum class Marked : uint8
{
	ok,
	lost,	   // the lease is not (or no longer) the live one; without a lease: the job is in another state
	done,	   // this transaction has already ended it
	not_found, // no entry: only on disk, ended, or never enqueued
	busy,	   // marked by another transaction
	cancel_requested,	   // cancel: the job runs, and was asked to stop
	memory_full, // its queue may have no more jobs that cannot be evicted
};

// Marks the running job `id` for a verb of its lease holder, takes its next step and notes the operation. The holder
// may have noted a checkpoint earlier in this transaction. `entry` receives a copy of the entry from before, with the
// step taken in `step`. The caller has reserved memory for the operation.
Marked mark_leased(Db &db, JobId id, LeaseNo lease, Verb verb, Op *op, Entry *entry) noexcept;

constexpr uint32 bit_of(State s) noexcept { return 1U << static_cast<int>(s); }

struct MarkTerms
{
	JobId id;
	Verb verb;
	uint32 states; // in which the job may be: bits 1 << State
	int32 step = 0; // the job's next step, else Marked::busy; 0: any
};

// The same for the verbs that need no lease (cancel, retry, reschedule). The entry must be in one of the states; if
// this transaction has changed it, its pending state must be. *found receives that state. A cancel only asks a
// running job to stop, if State::running is among the states: the job gets no mark, and the operation is noted unless
// the job was asked before (entry->flags). A purge ends a running job in that case.
Marked mark_job(const FetchedJob &pinned, const MarkTerms &terms, Op *op, Entry *entry, State *found) noexcept;

// Notes that a newer job has the unique key of a running job, which keeps its mark. It takes a step, also if another
// transaction is ending the attempt. Marked::lost: the job does not run. The caller has reserved memory for the
// operation.
Marked note_superseded(const Db &db, JobId id, Op *op, Entry *entry) noexcept;

// Marks an ended job for a new life; `pinned` is its kept placeholder.
void mark_ended(const FetchedJob &pinned, Op *op, Entry *entry) noexcept;

// Marks an ended job for a verb that leaves it ended (move, erase, forget), so that no transaction gives it a new life
// meanwhile. `pinned` is its kept placeholder; the caller has reserved memory for the operation. `new_segment`: the
// slot of the job's new segment.
void mark_record(const FetchedJob &pinned, Verb verb, int new_segment) noexcept;

// The operation by which this transaction enqueued a job; null if it did not. No other transaction sees the job, so it
// must not be pinned. A job that was only summed gets a separate operation. May raise.
Op *own_job(Db &db, JobId id);

// The operation that enqueues a job with this row; the caller sets its queue, lane, segment and position. `by_itself`:
// keep it separate even after the transaction began to sum its jobs.
Op enqueue_of(const journal::JobRow &row, Micros now, bool by_itself = false);

// Raises the error for a failed mark_leased: TQ001, TQ004, 55P03. Reads the journal to tell a lost lease from a job
// that never existed.
[[noreturn]] void raise_unmarked(Db &db, Marked marked, JobId id, LeaseNo lease);

[[noreturn]] void raise_no_job(JobId id);
[[noreturn]] void raise_busy(JobId id);

bool job_exists(Db &db, JobId id);

// Copies the job's entry if it shows the current state. That excludes an entry under construction, and one that this
// transaction has changed: then the journal has its events and is newer. A claim appends no event, so it is read
// from the entry, also if another transaction made it. A checkpoint changes nothing else.
bool copy_current_entry(const Db &db, JobId id, Entry *out) noexcept;

// The most attempts of a job: its own number, else its queue's, else the server's.
int32 attempts_allowed(int32 own, uint16_t queue) noexcept;

// The retry policy from a job's row, null if it has none. Reads the row, and may raise.
Jsonb *own_retry(Db &db, const Entry &entry);

// The name of the worker that holds an entry; null if there is none.
const char *worker_name(uint32_t worker) noexcept;

// An event of this attempt, without the fields of the verb.
journal::EventRow event_of(const Entry &entry, journal::EventType type, TimestampTz now) noexcept;

// Appends events, each to the segment of its job (slots in the map, parallel to the rows); sorts them by segment. *at
// is the slot of the last segment that it began, for a caller that catches its error.
struct EventBatch
{
	journal::EventRow *rows;
	const uint16_t *slots;
	int n;
	int *at = nullptr;
};
void append_by_segment(Db &db, const EventBatch &batch);

// The same for the events of the operations from `first_op` on. The journal decides: if it already has another event
// for one of these steps, memory was wrong. Then a loader reads the jobs again, and `refuse` raises an error, given the
// first row. Without `refuse` the unique_violation is raised.
using Refuse = void (*)(Db &db, const journal::EventRow &row);
void append_or_distrust(Db &db, const EventBatch &batch, int first_op, Refuse refuse);

} // namespace tq
