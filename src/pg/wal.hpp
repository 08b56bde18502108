// Regime: PG; may raise. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Flushes all WAL that any session has inserted so far to disk.
void flush_wal();

// Whether the server that used this data directory last was shut down. For the shmem_startup_hook: later the control
// file tells of this server.
bool was_shut_down();

} // namespace tq::pg
