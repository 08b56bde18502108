// Regime: PG; may raise. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Flushes all WAL that any session has inserted so far to disk.
void flush_wal();

} // namespace tq::pg
