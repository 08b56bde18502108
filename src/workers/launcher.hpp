// The launcher: one process per server that keeps the right workers running in the right databases.
#pragma once

namespace tq::workers
{

// Register the launcher as a static background worker. Does nothing unless called from _PG_init while
// shared_preload_libraries are loaded, nor in a binary upgrade.
void register_launcher();

} // namespace tq::workers
