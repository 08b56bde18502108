// tq's clocks: the server's clocks plus the offsets of tq.fake_now, of tq_set_now in this process's database, or of a
// test. Code that decides when something happens to a job uses these, never GetCurrentTimestamp() or SQL's now().
// Regime: PG. Locks: none; the offsets are atomics in shared memory.
#pragma once

#include "pg/prelude.hpp"

namespace tq
{

using core::Micros;

Size clock_size();
// shmem_startup_hook; sets the clock if the server starts with tq.fake_now.
void init_clock();

// Wall clock, for the times that users give (run_at, expires_at, cron) and for the journal.
Micros wall_now() noexcept;
// Monotonic clock, for leases, time limits and rates.
Micros mono_now() noexcept;
// The server's monotonic clock without offsets, for the duration of waits.
Micros steady_now() noexcept;
// For a commit callback: the wall clock at the transaction's commit record.
Micros commit_time() noexcept;

// The monotonic clock of another database.
Micros mono_now_in(const struct Db &db) noexcept;

// How far the wall clock is set ahead of the server's (behind: negative). False if nothing has set it.
bool clock_is_fake(Micros *ahead) noexcept;

// Sets the wall clock of a database, 0: back to the server's. A step forward also advances its monotonic clock.
void set_database_clock(struct Db &db, Micros wall) noexcept;

// For tests: sets the microseconds that every process adds to the clocks, and wakes the schedulers.
void set_clock_offsets(Micros wall, Micros mono) noexcept;

} // namespace tq
