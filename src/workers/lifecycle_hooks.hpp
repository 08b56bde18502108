// Hooks that take workers out of the way of DDL on databases and on the extension, and ring the launcher when
// it is over.
#pragma once

namespace tq::workers
{

// Install the hooks and the transaction callback. To be called once, from _PG_init, when preloaded.
void install_hooks();

} // namespace tq::workers
