// Rows of tq.queue: reads them into their slots, and writes a queue's first row.
// Regime: PG; may ereport unless noexcept. Locks: those of queue_names.hpp.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Reads tq.queue (all rows, or the row with that name) with a latest snapshot and installs them; returns the number.
int read_queues(Db &db, const char *name);

// Ensures that the queue's row exists: asks the scheduler and waits for its commit, or inserts the row in this
// transaction if no scheduler runs.
void write_queue_row(Db &db, uint16_t queue);

// The same, also for a queue that this transaction creates. The queue's number does not change afterwards.
void ensure_queue_row(Db &db, uint16_t queue);

// Inserts a queue's row as the extension's owner, with its creator's rights; null settings: none. Returns false if a
// row with that name exists and the slot lacks its number (read_queues). If another queue has the slot's number, the
// slot gets a new one.
bool insert_queue_row(const Db &db, uint16_t queue, Jsonb *settings);

// For the scheduler: writes rows of queues in state creating in the current transaction; returns how many. The caller
// calls rows_written() after the commit.
int write_new_rows(Db &db, uint16_t *queues, int max);
void rows_written(Db &db, const uint16_t *queues, int n) noexcept;

} // namespace tq
