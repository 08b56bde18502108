// The server's WAL, and how the server ended last. Regime: PG; may raise. Locks: the page of a sequence.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Flushes all WAL that any session has inserted so far to disk.
void flush_wal();

// Flushes the WAL up to the last record of a sequence, which any session may have written. The caller's transaction has
// called nextval, so it has locked the sequence.
void flush_sequence(Oid sequence);

// Whether the server that used this data directory last was shut down. Call it in the shmem_startup_hook: later this
// server writes its own state into the control file.
bool was_shut_down();

} // namespace tq::pg
