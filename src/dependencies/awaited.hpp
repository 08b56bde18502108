// Jobs that wait for others. The registry tq.dependency has a row for each (parent, child). The transaction that
// enqueues or retries the child inserts it. After that only the scheduler's resolver writes it, except that closing a
// batch writes the row of the batch with parent 0. This file notifies the resolver that a parent has ended, or that a
// new child's parents may have ended before (H17):
//
// - A filter in shared memory has a bit for each parent, by a hash: a bit that another parent has set costs only a
//   check. The transaction that enqueues a child sets it before it commits. A transaction that ends a job tests it
//   after it has committed, and notes the job for the resolver.
// - When the child's transaction has committed, the child is noted as well. This finds parents that ended before
//   their bits were set; later ones are noted themselves. Parents enqueued by the same transaction cannot have ended
//   before.
// - If notes are missing (too many at once, a restart, rows written by hand) the resolver reads the whole table.
// - A note is the id of a parent, or minus the id of a child.
//
// Regime: PG. Functions for callbacks are noexcept and take no lock.
#pragma once

#include "shmem/shared.hpp"
#include "pg/owner.hpp"

namespace tq
{

constexpr Size kMostOutcome = 4194304; // largest result in bytes that a child gets

// The state of a parent at the time of the check.
struct ParentOutcome
{
	bool exists;
	bool ended;
	bool again;			// it has begun again after an end
	bool succeeded;
	const char *state;	// how it ended
	const char *error;	// why, unless it succeeded
	Jsonb *result;		// if it succeeded
	bool left_out;		// the result, since it is larger than kMostOutcome
	int32 queue_id;
	JobId replaced_by;	// if it was cancelled to make way for another job; else 0
};

// Reads the committed journal; changes of this transaction do not count. Without `texts`, leaves out what may be large:
// the error, the result and the job that replaces it.
ParentOutcome outcome_of(const Db &db, JobId id, bool texts = true);

// Whether an open transaction is giving an ended job a new life. Such a job has a placeholder with a mark.
bool is_being_retried(const Db &db, JobId id) noexcept;

// Whether the janitor deletes the record of an ended job, or checks whether it may. The janitor marks the record, then
// looks for transactions that check parents (are_awaited). Call it after keep_parents(): if there is no mark, the
// record is kept until the transaction ends.
bool is_being_erased(const Db &db, JobId id) noexcept;

// The detail of the event that cancels a job for a newer one with its unique key. The jobs that wait for the cancelled
// job then wait for the newer one.
Jsonb *replaced_by(JobId newer);

// Brackets statements on tq.dependency and tq.batch: they run as in pg::enter_owner, use the indexes, and do not count
// as external changes.
pg::OwnerScope enter_registry(const Db &db);
void leave_registry(const pg::OwnerScope &scope);

// --- for a transaction that enqueues a child

// Counts this transaction as one that checks parents; call it before the check. Until it ends, no record of a job is
// removed.
void keep_parents(Db &db) noexcept;

// Called by a transaction that has inserted rows: once it ends, their parents are awaited.
void await_parent(JobId parent);
// Makes the resolver check a parent or a child after the commit; the caller passes the fewer.
void note_at_commit(JobId parent_or_minus_child);

// --- callbacks

bool dependencies_pending() noexcept; // if so, PREPARE is refused
void await_before_commit() noexcept;
void note_after_commit() noexcept;
void end_dependencies() noexcept; // at commit and abort

// A job has ended, or an ended job has begun again, and the transaction has committed: notes it if another job waits
// for it.
void note_if_awaited(Db &db, JobId id) noexcept;
inline void note_ended(Db &db, JobId id) noexcept
{
	if (db.awaited.bits.load() != 0)
		note_if_awaited(db, id);
}

// --- for the resolver

void await_now(Db &db, JobId parent) noexcept;
void note_for_resolver(Db &db, JobId parent_or_minus_child) noexcept;
void note_all(Db &db) noexcept;

// Takes the notes; returns how many there were, at most kNoted.
int take_noted(Db &db, JobId *out) noexcept;

// Empties the filter. The caller then reads the whole table with a newer snapshot.
void empty_filter(Db &db) noexcept;

// --- for the janitor

// Whether a job waits, or may begin to wait, for a job of this range of ids whose end is not recorded yet. Takes a new
// snapshot. The caller ensures that no session ends or revives these jobs meanwhile.
bool are_awaited(const Db &db, JobId first, JobId last);

} // namespace tq
