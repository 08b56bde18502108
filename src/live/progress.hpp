// What heartbeats report of running jobs: short texts in shared memory, in a table of tq.max_progress slots. A slot belongs to one
// running job; the engine gives it back when the attempt ends (Platform::end_progress).
// Regime: PG, but nothing here raises an error, allocates or waits. Locks: the text is by the lock of the job's queue; slots are taken
// and given back without a lock.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

constexpr Size kProgressMax = 1000; // bytes

Size progress_size(); // of the shared memory
void init_progress();

// Queue lock held: keeps a text of at most kProgressMax bytes for a running job in place of its last one; false if all slots are taken.
bool set_progress(Entry &e, const char *text, Size length) noexcept;

// Queue lock held: copies what was reported, with a final zero; false if nothing was. `out` has kProgressMax + 1 bytes.
bool copy_progress(const Entry &e, char *out) noexcept;

// Queue lock held: forgets it.
void clear_progress(Entry &e) noexcept;

// Gives a slot back.
void end_progress(uint16_t slot) noexcept;

} // namespace tq::live
