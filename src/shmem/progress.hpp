// Progress that heartbeats report of running jobs: short texts in shared memory, in a table of tq.max_progress slots. A
// slot belongs to one running job; the engine returns it when the attempt ends (Platform::end_progress).
// Regime: PG, but nothing here raises an error, allocates or waits. Locks: the lock of the job's queue protects the
// text; slots are taken and returned without a lock.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

constexpr Size kProgressMax = 1000; // bytes

Size progress_size(); // of the shared memory
void init_progress();

// Queue lock held: replaces the running job's text, at most kProgressMax bytes; false if all slots, or the queue's
// share of them, are used.
bool set_progress(Entry &e, const char *text, Size length) noexcept;

// Queue lock held: copies the text with a final zero to `out` (kProgressMax + 1 bytes); false if there is none.
bool copy_progress(const Entry &e, char *out) noexcept;

// Queue lock held: forgets the text.
void clear_progress(Entry &e) noexcept;

// Returns a slot.
void end_progress(uint16_t slot) noexcept;

} // namespace tq
