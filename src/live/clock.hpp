// What tq takes for the time: the server's clocks, and what tq.fake_now or a test adds to them. Everything that decides when something
// happens to a job asks these, never GetCurrentTimestamp() or SQL's now().
// Regime: PG. Locks: none; the offsets are atomics in shared memory.
#pragma once

#include "pg/prelude.hpp"

namespace tq::live
{

using core::Micros;

Size clock_size();
void init_clock(); // shmem_startup_hook; sets the clock if the server starts with tq.fake_now

// Wall clock: what users say (run_at, expires_at, cron) and what the journal keeps.
Micros wall_now() noexcept;
// Monotonic clock: leases, time limits, rates.
Micros mono_now() noexcept;
// The server's monotonic clock, whatever was added to the others: how long a call waits.
Micros steady_now() noexcept;
// In a commit callback: the wall clock as the transaction's commit record has it.
Micros commit_time() noexcept;

// How far tq.fake_now has put the wall clock ahead of the server's (behind: negative). False if it is not set.
bool clock_is_fake(Micros *ahead) noexcept;

// For tests: microseconds to add, in every process; wakes the schedulers.
void set_clock_offsets(Micros wall, Micros mono) noexcept;

} // namespace tq::live
