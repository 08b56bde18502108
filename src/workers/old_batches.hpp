// The records of batches go with the rows of their callbacks.
// Regime: PG, in a worker's transaction. Locks: rows of tq.batch.
#pragma once

#include "live/shared.hpp"

namespace tq::workers
{

// Those whose callbacks were in a segment with these ids, which is being dropped. Who was moved to segment 0 keeps its record, and so does
// a batch that goes on without its callback: the look through the whole table (resolver.cpp) finds it one day.
void let_batches_of_segment_go(const live::Db &db, core::JobId first, core::JobId last);

// Those whose callbacks are about to be deleted from segment 0.
void let_batches_go(const live::Db &db, const core::JobId *ids, int n);

} // namespace tq::workers
