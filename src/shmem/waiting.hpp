// Waits for a job to become startable (R16): register, then check, then sleep on this backend's latch. A wait for a few
// queues stands in their lists of waiters; a wait for more queues, or for all, sets a bit in each (core/watchers.cpp).
// The same for queues that do not exist yet.
// Regime: PG. Locks: queue locks. The abort and exit callbacks undo registrations and pass tokens on (H19).
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

struct Filter
{
	uint64_t kinds[64];
	int nkinds; // 0: any
};

// A queue whose jobs a session waits for. A list of them has each queue once.
struct Wanted
{
	uint16_t queue;
	int nkinds; // 0: any
	const uint64_t *kinds;
};

// The most kinds of n queues, together with the number of queues that list them. A few queues may list as many as a
// claim does.
constexpr int most_pairs(int n) noexcept
{
	constexpr int kFew = core::kWaitersPerProc, kEach = lengthof(Filter::kinds);
	return n > kFew ? static_cast<int>(core::kWatcherPairs) : kFew * (kEach + 1);
}

// Registers for these queues, whose kinds are at most most_pairs(n). `workers`: bits of the workers that it claims for.
// May raise (out of memory).
void wait_begin(const Wanted *queues, int n, uint64 workers = 0);

// Also registers for the name of a queue that does not exist, or of a worker that may be drained, until wait_end(). The
// caller then looks for the queue. May raise (out of memory).
void wait_for_name(const Db &db, const char *name);
// Wakes the sessions that wait for this name. The queue can be found by now. No lock held.
void wake_for_name(const Db &db, const char *name) noexcept;

// Registers for every queue of the database, also for new ones. May raise (out of memory).
void wait_begin_all(const Db &db);

// True if one of the queues has a startable job that matches; the queue of this session's token is checked first.
bool wait_check(const Wanted *queues, int n) noexcept;
bool wait_check_all(const Db &db) noexcept;

// True if a matching lane has ready jobs on disk only, which the loader will read in.
bool has_backlog(const Wanted *queues, int n) noexcept;

// Ends the registrations and passes a token on if another job is startable. `pass` false: it claims next (tq_wait).
void wait_end(bool pass = true) noexcept;

// Whether this session's waiter has a token of the queue. Queue lock held.
bool has_token(uint16_t queue) noexcept;

// Registers for the end of jobs, whichever of tq's commits ends them; wait_end() ends it. May raise (out of memory).
void wait_begin_jobs(const Db &db, const JobId *ids, int n);
// Wakes the sessions that wait for the end of a job, or of another job with the same hash. Call it while the job's
// queue is locked.
void wake_for_end(const Db &db, JobId id) noexcept;

// The same for changes of a queue that records them; kNoQueue: of any queue (jobs/changes.hpp). Register before the
// snapshot that the changes are read with. Wake after the commit is visible, for the queue and for kNoQueue.
void wait_begin_changes(const Db &db, uint16_t queue);
void wake_for_changes(const Db &db, uint16_t queue) noexcept;

// Sleeps until the latch is set or until `deadline` (steady_now); false at the deadline. Handles interrupts and
// raises FATAL if the client is gone.
bool wait_sleep(Micros deadline);

} // namespace tq
