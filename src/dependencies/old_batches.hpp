// Deletes the records of batches together with the rows of their callbacks.
// Regime: PG, in separate transactions, after the deletion of those rows. An error is reported, and resolver.cpp finds
// the records later when it reads the whole table. Locks: rows of tq.batch.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// Deletes the batches whose callbacks have these ids. A callback that was moved to segment 0 keeps its record. So
// does a batch some of whose jobs have not ended.
void delete_batches_of_range(const WorkerContext &context, const Db &db, core::JobId first, core::JobId last);

// Deletes the batches of these callbacks.
void delete_batches(const WorkerContext &context, const Db &db, const core::JobId *ids, int n);

} // namespace tq
