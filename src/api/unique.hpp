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

// Gives an ended job that is to be retried its key again, if it has one. False if another job has it: *holder. *unended: it has a key and had
// not ended; if it has by now, this must be called again.
bool win_key_again(live::Db &db, core::JobId id, core::JobId *holder, bool *unended);

// Jobs with keys that one call is to retry. It does so in the order of their keys, as tq_enqueue_many does, so that such calls do not wait
// for each other; of several jobs with one key the youngest comes first.
struct KeyedJob
{
	core::JobId id;
	text *key;
};
struct KeyedJobs
{
	MemoryContext context;
	KeyedJob *jobs;
	int64 n;
	int64 room;
};
bool postpone_keyed(const live::Db &db, core::JobId id, KeyedJobs *jobs); // false if it has no key
void sort_keyed(KeyedJobs *jobs) noexcept;

// Byte by byte, as the table has them.
int compare_keys(const text *a, const text *b) noexcept;

} // namespace tq::api
