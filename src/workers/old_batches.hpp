// The records of batches go with the rows of their callbacks.
// Regime: PG, in transactions of their own, after those rows have gone; what fails is reported, and left for the look through the whole
// table (resolver.cpp), which finds it one day. Locks: rows of tq.batch.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Those whose callbacks were in a segment with these ids. Who was moved to segment 0 keeps its record, and so does a batch that goes on
// without its callback.
void let_batches_of_segment_go(const WorkerContext &context, const live::Db &db, core::JobId first, core::JobId last);

// Those whose callbacks were in segment 0.
void let_batches_go(const WorkerContext &context, const live::Db &db, const core::JobId *ids, int n);

} // namespace tq::workers
