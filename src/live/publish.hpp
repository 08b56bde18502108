// Turning what a transaction did into live state: the steps of PRE_COMMIT, COMMIT and ABORT for one operation each.
// Regime: PG, but nothing here raises an error, allocates or waits (other than for a lock). Locks: queue locks.
#pragma once

#include "live/counting.hpp"
#include "live/xact.hpp"

namespace tq::live
{

// The sum of many enqueued jobs of one lane and segment.
struct Bulk
{
	SubTransactionId sub;
	uint16_t queue;
	uint16_t lane;
	uint16_t segment;
	int64 count;
	int64 ndelayed;
	Key least; // least key of all of them
	Micros least_due;
	bool grouped; // all of them have a group_key
	bool blocked; // all of them wait for their parents
};

// PRE_COMMIT: gives an enqueued job an entry in state committing, so that no loader that can see its row before we publish it takes
// it (H2). Without room, or with a backlog on disk before it, the job stays on disk: publish() then sinks the watermark. False if
// there is no room and the job must be in memory, because its key is not its row's.
bool register_enqueue(Db &db, Op &op) noexcept;

// COMMIT.
void publish(Db &db, const Op &op, Counting counting) noexcept;
void publish_bulk(Db &db, const Bulk &bulk, Counting counting) noexcept;

// ABORT of the transaction or of a savepoint.
void undo(Db &db, const Op &op) noexcept;

// Queue lock held, inside Engine::change: a running job that is asked to stop keeps its lease for so long at most.
void limit_cancelled(const Queue &q, Entry &e) noexcept;

} // namespace tq::live
