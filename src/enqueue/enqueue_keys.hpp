// Unique keys of jobs that are enqueued: which job gets a key, and the effect on the other jobs.
// Regime: PG; may ereport (TQ008, 55P03, 40001, 40P01). Locks: as unique/unique_keys.hpp.
#pragma once

#include "enqueue/enqueue.hpp"
#include "unique/retry_keys.hpp"

namespace tq
{

// Whether another job has the item's key and this item must yield. If so, *answer is the result of its enqueue (0:
// null). Raises TQ008 if the item's mode is error. Writes nothing.
bool is_duplicate(Db &db, uint16_t queue, EnqueueItem &item, core::JobId *answer);

// Gives the item's key to job `id`, which is about to be enqueued. True if the key is free, or if this call supersedes
// the running job that has it, or cancels the waiting one; then it stores the cancelled job's id as the item's origin.
// Otherwise as is_duplicate. Waits for other transactions that want the key.
bool take_key(Db &db, uint16_t queue, EnqueueItem *item, core::JobId id, core::JobId *answer);

// The row for the key of `item` if job `id` gets it.
KeyRow key_row(const EnqueueItem &item, core::JobId id) noexcept;

} // namespace tq
