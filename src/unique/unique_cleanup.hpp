// The janitor's part of unique keys: deletes rows of tq.unique_key whose job has ended.
// Regime: PG; may ereport, and is then retried. Locks: rows, for a batch; never waits.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// Is the next pass over the table due?
bool keys_wanted(const Db &db) noexcept;

// Checks the whole table. False if the extension is gone.
bool clean_keys(const WorkerContext &context, Db &db);

} // namespace tq
