// Records changes of jobs in queues with `change_retention`, for tq_changes, and wakes its readers at commit.
// Regime: PG; recording may ereport. Locks: RowExclusiveLock on tq.change, to the end of the transaction; queue locks,
// briefly.
#pragma once

#include "transaction/pending.hpp"

namespace tq
{

inline bool records_changes(uint16_t queue) noexcept
{
	return queue < engine.limits().queues && engine.queue(queue).settings.change_retention_ms > 0;
}

// Call them after the rows are appended, and the operations are noted.
void record_enqueues(Db &db, uint16_t queue, const journal::JobRow *rows, const Op *ops, int n);
void record_events(Db &db, const journal::EventRow *rows, int n);

// For the transaction callbacks.
void announce_changes() noexcept; // at commit
void forget_changes() noexcept;	  // at every end

} // namespace tq
