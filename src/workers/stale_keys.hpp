// The janitor's part of unique keys: rows of tq.unique_key whose job has ended.
// Regime: PG; may ereport, and remains to be done then. Locks: rows, for a batch; it waits for nobody.
#pragma once

#include "live/shared.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

// Is it time to look through the table again?
bool keys_wanted(const live::Db &db) noexcept;

// Looks through all of it; false if the extension is gone.
bool clean_keys(const WorkerContext &context, live::Db &db);

} // namespace tq::workers
