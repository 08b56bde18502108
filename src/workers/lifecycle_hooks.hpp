// Hooks that stop workers for DDL on databases and on the extension, and that wake the launcher after the DDL.
#pragma once

#include "pg/prelude.hpp"

namespace tq
{

// Installs the hooks and the transaction callback. _PG_init calls it once, when preloaded.
void install_hooks();

// Stops the workers of a database and keeps the launcher from starting others until the transaction ends. Waits until
// they have left, for as long as core would wait.
void lock_out_workers(Oid database);

} // namespace tq
