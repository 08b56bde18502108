// Taking jobs from memory and reading their rows as tq_job: what tq_claim and the executors share.
// Regime: PG. Locks: queue locks, held only inside.
#pragma once

#include "live/verbs.hpp"

namespace tq::live
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
	Micros lasts; // until the lease ends, from the claim on
	bool has_checkpoint;
	int op; // its operation
};

// Pops up to `max` jobs of one queue, unless its slot is another's by now, and notes the operations, which were reserved.
int take_jobs(uint16_t queue, uint32 generation, const Engine::ClaimTerms &terms, int max, Claimed *out) noexcept;

constexpr int kJobColumns = 13; // of the type tq_job

// The row of a claimed job as the columns of tq_job; `nulls` was cleared. Gives it the lease and the timeout that it has of its own.
// False if its row is gone: then the job is dropped. `first_op`: where the operations of the batch begin, of which only this one is
// charged with an error.
bool claimed_job(Db &db, const Claimed &claimed, int first_op, const Engine::ClaimTerms &terms, const journal::Segment &tables,
				 Datum *values, bool *nulls, journal::JobRow *row);

// Writes the claim into the journal with the transaction that makes it, instead of some time after it (R15): should the job take the server
// down, its attempt is known.
void journal_claim(Db &db, const Claimed &claimed);

} // namespace tq::live
