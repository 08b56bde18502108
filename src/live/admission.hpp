// What keeps a runaway producer out: max_depth and enqueue_rate of a queue.
// Regime: PG. Locks: the queue's, briefly.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// Lets this transaction enqueue n more jobs to a queue, or raises TQ003; with max_depth, TQ009 if the load lasts. For max_depth live jobs count, and those that open transactions
// have been let in for, until they end. For enqueue_rate a call is let in while the bucket is not empty, and takes n out of it: a large one
// overdraws it, and later ones are refused until that is paid back. A rollback does not pay back. `replacing`: so many of them take the place
// of a job that waits, and do not make the queue any longer. `overdraw`: nobody could call again, so the bucket is not asked.
void admit(uint16_t queue, int64 n, int64 replacing = 0, bool overdraw = false);

// Takes n jobs that were let in, and are not enqueued after all, off the queue's enqueue_rate.
void unpay(uint16_t queue, int64 n) noexcept;

// Queue lock held, while n jobs of this transaction are published: they are counted as live ones from here on. -1: one has ended that makes
// way for one of them, which has its room.
void publish_admitted(Queue &q, uint16_t queue, int64 n) noexcept;

// Waits until admit() can count, for who is about to lock what others wait for. Raises TQ009.
void await_admission(Db &db, uint16_t queue);

// The open transaction was let in (room in its list is made first); at its end, or at that of a savepoint, it counts no more.
void end_admissions() noexcept;
void end_sub_admissions(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept;

} // namespace tq::live
