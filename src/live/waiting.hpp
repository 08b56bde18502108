// Waiting for a job to become startable (R16): register, then check, then sleep on this backend's latch.
// Regime: PG. Locks: queue locks. Registrations are undone by the abort and exit callbacks, tokens passed on (H19).
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

struct Filter
{
	uint64_t kinds[64];
	int nkinds; // 0: any
};

// Registers for up to core::kWaitersPerProc queues.
void wait_begin(const uint16_t *queues, int n, const Filter &filter) noexcept;

// True if one of the queues has something startable for the filter.
bool wait_check(const uint16_t *queues, int n, const Filter &filter) noexcept;

// True if a lane that matches has ready jobs on disk only, that the loader is going to bring.
bool has_backlog(const uint16_t *queues, int n, const Filter &filter) noexcept;

// Ends the registrations; a token is passed on if more is startable. `pass` false: this session is about to claim (tq_wait).
void wait_end(bool pass = true) noexcept;

// Sleeps until the latch is set or until `deadline` (live::steady_now); false when the time is over. Handles interrupts and notices
// a client that is gone.
bool wait_sleep(Micros deadline);

} // namespace tq::live
