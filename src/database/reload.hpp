// Asks for a recount of this session's database, because its tables were changed from outside (R6).
// Regime: PG; nothing here fails or waits. Locks: none.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Asks at once.
void request_reload() noexcept;

// Asks at the end of the open transaction (the reload triggers).
void mark_reload() noexcept;
bool reload_marked() noexcept;
void forget_reload() noexcept; // at every end of a transaction

} // namespace tq
