// Notifies the workers of the database at commit that handlers or schedules have changed.
// Regime: PG; nothing here fails. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The open transaction has changed tq.handler.
void mark_handlers() noexcept;

// The open transaction has changed or fired a schedule. Does nothing in the scheduler, which knows its own changes.
void mark_schedules() noexcept;

// For the transaction callbacks.
bool config_marked() noexcept;
void announce_config() noexcept; // at commit
void forget_config() noexcept;	 // at every end

} // namespace tq
