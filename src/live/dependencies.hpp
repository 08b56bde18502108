// Jobs that wait for others. The registry tq.dependency has a row for each (parent, child): inserted by whoever enqueues the child, written
// by nobody but the scheduler's resolver after that. Here is how the resolver learns in time that a parent has ended, or that a child
// has come whose parents may have ended before anybody knew of it (H17):
//
// - A filter in shared memory has a bit for each parent. Whoever enqueues a child sets it before its transaction commits; whoever ends a
//   job tests it when his has committed, and notes the job for the resolver.
// - When the child's transaction has committed, it is noted as well: parents that ended before their bits were set are found by that look,
//   all later ones by their own notes. Parents enqueued by the same transaction cannot have ended before.
// - What cannot be noted (too many at once, a restart, rows written by hand) makes the resolver look through the whole table.
//
// Regime: PG. What runs in callbacks is noexcept and takes no lock.
#pragma once

#include "live/shared.hpp"
#include "pg/owner.hpp"

namespace tq::live
{

// A job that others wait for, as it was when it was looked at.
struct Outcome
{
	bool exists;
	bool ended;
	bool succeeded;
	const char *state;	// how it ended
	const char *error;	// why, if not successfully
	Jsonb *result;		// if successfully
	int32 queue_id;
};

// By the journal as committed; what this transaction has done does not count.
Outcome outcome_of(const Db &db, JobId id);

// Statements on tq.dependency and tq.batch: as pg::enter_owner, by their indexes, and not taken for changes from outside.
pg::OwnerScope enter_registry(const Db &db);
void leave_registry(const pg::OwnerScope &scope);

// --- for whoever enqueues a child

// Counts this transaction as one that looks at parents, before it does: until it has ended no record of a job is thrown away.
void look_at_parents(Db &db) noexcept;

// To be called by a transaction that has inserted rows: from its end on their parents are awaited.
void await_parent(JobId parent);
// ... and when it has committed, the resolver looks at a parent, or at a child (the fewer of them).
void note_at_commit(JobId parent_or_minus_child);

// --- callbacks

bool dependencies_pending() noexcept; // PREPARE is refused then
void await_before_commit() noexcept;
void note_after_commit() noexcept;
void end_dependencies() noexcept; // commit and abort

// A job has ended, and its transaction has committed.
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

// Takes what was noted; returns how many, at most kNoted.
int take_noted(Db &db, JobId *out) noexcept;

// Empties the filter. The caller looks through the whole table afterwards, with a snapshot from after it.
void empty_filter(Db &db) noexcept;

// For a slot that is given to a database.
void forget_awaited(Db &db) noexcept;

// --- for the janitor

// Does anybody wait for jobs of this range of ids whose end is not recorded yet, or may begin to? Takes a new snapshot; nobody can end or
// revive the jobs meanwhile. With a segment, whose tables the caller has locked, only of those that are in it.
bool are_awaited(const Db &db, JobId first, JobId last, const journal::Segment *within = nullptr);

} // namespace tq::live
