// Claims jobs in memory and reads their rows as tq_job. tq_claim and the executors share it.
// Regime: PG. Locks: queue locks, held only inside.
#pragma once

#include "jobs/verbs.hpp"
#include "pg/rows.hpp"

namespace tq
{

struct Claimed
{
	Ref ref;
	JobId id;
	LeaseNo lease;
	ItemPointerData tid;
	uint16_t segment;
	uint16_t queue;
	uint16_t attempt;
	uint16_t max_attempts;
	int32 priority;
	Micros wall; // when it was claimed, by both clocks
	Micros mono;
	// from the claim on
	struct Limits
	{
		Micros lease;
		Micros attempt; // kNever: no timeout
	} limits;
	bool has_checkpoint;
	int op; // index of its operation
	int worker; // set by the caller
};

// Claims up to `max` jobs of one queue, unless its slot belongs to another queue by now. Notes the operations, for
// which the caller has reserved memory. While other waiters are awake it takes only its share (Engine::claim_share).
// Sets the times of the terms under the queue's lock, so a lease has its full length although this process was delayed
// before, and no job starts before it was enqueued.
int take_jobs(uint16_t queue, uint32 generation, core::ClaimTerms &terms, int max, Claimed *out) noexcept;

// Claims up to `max` jobs of one queue that this transaction has enqueued (tq.claim_own). Skips jobs that are only
// summed, blocked or not due. The caller has reserved memory for the operations.
int take_own_jobs(Db &db, uint16_t queue, core::ClaimTerms &terms, int max, Claimed *out);

// Sets the times of the terms to now.
void read_clocks(core::ClaimTerms &terms) noexcept;

extern const pg::RowShape kJobShape; // the type tq_job

// The claims of one call, whose rows are read.
struct ClaimBatch
{
	const core::ClaimTerms &terms;
	int first_op;			   // an error is charged to the operation of its job only
	int slot = -1;			   // the segment of the last job,
	journal::Segment tables{}; // and its tables
};

// Reads the row of a claimed job into the columns of tq_job. Applies the lease and the timeout that the job itself
// sets. Returns false if the row is missing; then the job is dropped.
bool claimed_job(Db &db, ClaimBatch *batch, const Claimed &claimed, pg::RowValues *out, journal::JobRow *row);

// Writes the claim into the journal within the claiming transaction, not later (R15). So the attempt is recorded even
// if the job crashes the server.
void journal_claim(Db &db, const Claimed &claimed);

// Waits until the scheduler has written the claims of careful queues (Queue::careful) into the journal, in its own
// transaction. So the attempt is recorded even if the job crashes the server within the claiming transaction. Gives up
// if that takes too long, as when a segment is locked.
void journal_first(const Db &db, const Claimed *claimed, int n);

} // namespace tq
