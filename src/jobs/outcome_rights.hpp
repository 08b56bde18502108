// Decides which roles get the outcome of a job: its result, its error, and the detail of either. Only this module
// decides this (docs/adr/0013-access-to-outcomes.md).
//
// A role reads the outcomes of a queue if it holds consume or inspect on it (Rights::may_read). A job that waits for a
// parent gets the parent's outcome in two cases: the role that makes it wait may read the parent's queue, or that role
// has itself enqueued both in this transaction. A role is the current user at the time of the call, so a SECURITY
// DEFINER function counts as its owner. The decision is made once, when the dependency is created, and kept in
// tq.dependency.shown.
// Regime: PG; may raise. Locks: those of reading the journal.
#pragma once

#include "queues/rights.hpp"

namespace tq
{

// The current user enqueues job `id` and provides its contents. Not for copies of jobs or follow-ups: other roles wrote
// their payloads. Ids come in ascending order.
void note_enqueuer(JobId id);

// Whether the current user enqueued this job itself, in this transaction.
bool enqueued_by_user(JobId id) noexcept;

// Whether `child` gets the outcome of `parent`.
enum class Passes : uint8
{
	nothing,
	own,	 // since the current user has enqueued both: not the outcome of a job that replaces the parent
	outcome, // since the current user may read the queue
};
// `child` 0: a job that the current user is about to enqueue.
Passes passes_outcome(Db &db, JobId parent, JobId child = 0);

} // namespace tq
