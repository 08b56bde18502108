// Records in shared memory which queues' rows of tq.acl have changed, so that a session need not read its rights again
// after grants on other queues. Each commit that changes rights takes the next number of a server-wide clock and stores
// it at its queue, or at "all" if the queue is unknown.
// Regime: PG; noexcept. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Between these two calls, the trigger of tq.acl records changes of this queue; otherwise of all queues. An error ends
// it, too.
void begin_grants_of(int32 queue_id) noexcept;
void end_grants_of() noexcept;

// Records that the open transaction has changed rights: until it ends, grants_unchanged_since() is false here.
void note_grants() noexcept;

// For the transaction callbacks.
bool grants_noted() noexcept;
void publish_grants() noexcept; // at commit
void forget_grants() noexcept;	// at every end of a transaction

// The clock's time; read it before the rows. 0 while the open transaction has changed rights.
uint64 grant_clock() noexcept;
// Whether no commit since then has changed rights on all queues, or on this queue.
bool grants_unchanged_since(uint64 then) noexcept;
bool grants_unchanged_since(uint64 then, uint16_t slot) noexcept;

// Shared memory.
Size grants_size() noexcept;
void init_grants();

} // namespace tq
