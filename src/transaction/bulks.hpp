// Sums of the jobs that a large transaction enqueues: one for each subtransaction, lane and segment, and one for each
// group. So the cost of COMMIT grows with the number of sums, not of jobs.
// Regime: PG; add_to_bulks and take_from_bulks may allocate, is_in_bulk reads the journal, the rest cannot fail.
// Locks: none.
#pragma once

#include "transaction/pending.hpp"

namespace tq
{

// A sum of enqueued jobs, of one of two kinds. Without `group`: the jobs of a lane and segment, for the counters and
// watermarks. With `group`: those of them in that group that may start, for the group's watermark only; `count` is 0.
struct Bulk
{
	SubTransactionId sub;
	uint16_t queue;
	uint16_t lane;
	uint16_t segment;
	int64 count;
	int64 ndelayed;
	Key least; // least key of all of them,
	JobId least_id; // and least id
	Micros least_due;
	Micros least_expiry; // of those that wait for no parents
	bool grouped; // all of them have a group_key
	bool blocked; // all of them wait for their parents
	const char *group; // null: a sum of a lane and segment; "": of all further groups of the queue
};

// Adds an enqueued job to the sums, or removes one that was added before.
void add_to_bulks(const Op &op, SubTransactionId sub);
void take_from_bulks(const Op &op, SubTransactionId sub);

bool has_bulks() noexcept;
int64 bulk_jobs() noexcept; // how many they sum

// Whether this transaction enqueued the job and has only summed it.
bool is_in_bulk(const Db &db, JobId id);

// The sums, for COMMIT. Their order may be changed, because nothing is added any more.
pg::Array<Bulk> &pending_bulks() noexcept;

// Called at the end of a subtransaction: moves its sums to its parent, or drops them.
void end_sub_bulks(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept;

// Called at the end of the transaction.
void forget_bulks() noexcept;

} // namespace tq
