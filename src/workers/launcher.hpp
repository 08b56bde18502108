// The launcher: one process per server that keeps the right workers running in the right databases.
#pragma once

namespace tq
{

// Registers the launcher as a static background worker. Does nothing unless _PG_init calls it while
// shared_preload_libraries are loaded, and nothing in a binary upgrade.
void register_launcher();

} // namespace tq
