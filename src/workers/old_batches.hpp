// The records of batches go with the rows of their callbacks.
// Regime: PG, in transactions of their own, after those rows have gone; what fails is reported, and left for the look through the whole
// table (resolver.cpp), which finds it one day. Locks: rows of tq.batch.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Those whose callbacks had these ids. Who was moved to segment 0 keeps its record, and so does a batch that goes on without its callback.
void let_batches_of_range_go(const WorkerContext &context, const live::Db &db, core::JobId first, core::JobId last);

// Those whose callbacks were in a segment that is to be dropped, and nowhere else; returns how many. To be asked before, with its tables
// locked; the list is in the current context.
int batches_of_segment(const live::Db &db, const journal::Segment &segment, core::JobId **ids);

// Those of these callbacks.
void let_batches_go(const WorkerContext &context, const live::Db &db, const core::JobId *ids, int n);

} // namespace tq::workers
