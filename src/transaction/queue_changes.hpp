// Changes of queues by the open transaction (tq_create_queue, tq_alter_queue, tq_pause and so on). The rows of tq.queue
// change with the transaction, the slots in shared memory at its commit, savepoints included.
// Regime: PG. Locks: registry and queue locks in the callbacks, which can neither fail nor allocate.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

enum class QueueEdit : uint8
{
	created,  // the queue is created with `settings`
	settings, // the queue gets other settings
	// The queue, one of its lanes or one of its groups is paused until `until` (0: resumed, kNever: until resumed).
	paused,
	limited,   // one of its groups gets group_max_running and group_rate of `settings`
	closing,   // the queue takes no more jobs and is being dropped
	used,	   // the database: it becomes active, by its first use or by tq_activate
	switched,  // the database: tq_activate or tq_deactivate was called
};

struct QueueChange
{
	QueueEdit edit;
	uint16_t queue;
	uint16_t lane = core::kNoLane; // paused: kNoLane means the whole queue
	const char *group = nullptr;   // paused, limited: its group_key, in TopTransactionContext
	bool holds = false;			   // the group's slot is kept until the change is applied or undone
	Micros until = 0;
	core::QueueSettings settings;
	SubTransactionId sub = InvalidSubTransactionId; // set by note_queue_change
	uint32 generation = 0;							// set by note_queue_change
};

// Reserves memory, so that note_queue_change cannot fail after the row has been changed.
void reserve_queue_change(Db &db);
void note_queue_change(const QueueChange &change) noexcept;

// The same for a change of the whole database.
void note_database_change(QueueEdit edit) noexcept;
bool database_change_here(QueueEdit edit) noexcept;

// Notes that this transaction has reserved the queue's slot by naming it: at its end the slot belongs to the queue, or
// is free again. Call reserve_reservation first; it allocates memory.
void reserve_reservation(Db &db);
void note_reservation(uint16_t queue) noexcept;
bool queue_reserved_here(uint16_t queue) noexcept;

// Whether this transaction has created the queue, closed it, or changed anything about it.
bool queue_created_here(uint16_t queue) noexcept;
bool queue_closed_here(uint16_t queue) noexcept;
bool queue_changed_here(uint16_t queue) noexcept;

// Called by the transaction callbacks.
bool queue_changes_pending() noexcept;
void commit_queue_changes() noexcept;
void abort_queue_changes() noexcept;
void end_sub_queue_changes(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept;

} // namespace tq
