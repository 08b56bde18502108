// Unique keys of jobs that are enqueued or retried: who gets a key, and what becomes of the others.
// Regime: PG; may ereport (TQ008, 55P03, 40001, 40P01). Locks: as live/unique.hpp.
#pragma once

#include "api/enqueue.hpp"
#include "live/unique.hpp"

namespace tq::api
{

// Looks whether another job has the item's key, and this one has to yield. If so, *answer is what its enqueue returns (0: null). Raises
// TQ008 if that is what the item wants. Writes nothing.
bool must_yield(live::Db &db, uint16_t queue, const EnqueueItem &item, core::JobId *answer);

// Gives the item's key to job `id`, which is about to be enqueued; true if it was free by then or could be taken from a waiting job, which
// is cancelled: the item is told where it comes from. Else as must_yield. Waits for other transactions that want the key.
bool win_key(live::Db &db, uint16_t queue, EnqueueItem *item, core::JobId id, core::JobId *answer);

// What the row of a key that job `id` gets by this item says.
live::KeyRow key_row(const EnqueueItem &item, core::JobId id) noexcept;

// Gives an ended job that is to be retried its key again, if it has one. False if another job has it: *holder.
bool win_key_again(live::Db &db, core::JobId id, core::JobId *holder);

} // namespace tq::api
