// The janitor's part of unique keys: deletes rows of tq.unique_key whose job has ended.
// Regime: PG; may ereport, and is then retried. Locks: rows, for a batch; never waits.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

// Whether the next pass over the table is due. After a pass that left no row, none is until a row is written.
bool keys_wanted(const Db &db) noexcept;

// Makes a pass over the whole table, in a transaction for each batch. False if the extension is gone.
bool clean_keys(const WorkerContext &context, Db &db);

} // namespace tq
