// What an open transaction changes about queues (tq_create_queue, tq_alter_queue, tq_pause and so on): the rows of tq.queue change with
// the transaction, the slots in shared memory at its commit, savepoints included.
// Regime: PG. Locks: registry and queue locks in the callbacks, which can neither fail nor allocate.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

enum class QueueEdit : uint8
{
	created,   // the queue comes into being, with `settings`
	settings,  // ... has other settings
	paused,	   // ... or one lane of it is paused until `until` (0: resumed, kNever: until resumed)
	closing,   // ... takes no more jobs and goes
	activated, // of the database: schedules and executors are held no longer
};

struct QueueChange
{
	QueueEdit edit;
	uint16_t queue;
	uint16_t lane = core::kNoLane; // paused: kNoLane means the whole queue
	Micros until = 0;
	core::QueueSettings settings;
	SubTransactionId sub = InvalidSubTransactionId; // filled in
	uint32 generation = 0;							// filled in
};

// Makes room, so that note_queue_change cannot fail after the row has been changed.
void reserve_queue_change(Db &db);
void note_queue_change(const QueueChange &change) noexcept;

// For tq_create_queue: finds the queue's slot, or names one for this transaction alone; at its end the slot is the queue's, or free
// again. `made` tells whether this transaction has the name to itself.
uint16_t reserve_queue_name(Db &db, const char *name, bool *made);

// Has this transaction created the queue, or closed it, or changed anything about it?
bool queue_created_here(uint16_t queue) noexcept;
bool queue_closed_here(uint16_t queue) noexcept;
bool queue_changed_here(uint16_t queue) noexcept;

// Raises 55P03 if a queue is being created by another open transaction; writes the row if this one has rolled back to before it.
void enter_reserved_queue(Db &db, uint16_t queue);

// Called by the transaction callbacks.
bool queue_changes_pending() noexcept;
void commit_queue_changes() noexcept;
void abort_queue_changes() noexcept;
void end_sub_queue_changes(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept;

} // namespace tq::live
