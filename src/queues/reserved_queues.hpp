// Queues that the open transaction is creating (tq_create_queue). Other transactions cannot use them before the commit.
// Regime: PG; may ereport. Locks: the registry lock, and under it a queue's.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// For tq_create_queue: finds the queue's slot, or names one for this transaction alone and sets `made`. When the
// transaction ends, the queue keeps the slot, or the slot is free again.
uint16_t reserve_queue_name(Db &db, const char *name, bool *made);

// Raises 55P03 if another open transaction is creating the queue. Writes the row if this transaction named the queue
// and rolled back its creation.
void enter_reserved_queue(Db &db, uint16_t queue);

} // namespace tq
