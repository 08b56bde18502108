// Hooks that stop workers for DDL on databases and on the extension, and that wake the launcher after the DDL.
#pragma once

namespace tq
{

// Installs the hooks and the transaction callback. _PG_init calls it once, when preloaded.
void install_hooks();

} // namespace tq
