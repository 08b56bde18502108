// The janitor's part of tq_changes: deletes changes whose transaction ended longer ago than change_retention.
// Regime: PG; may ereport, and is then retried. Locks: rows, for a batch.
#pragma once

#include "processes/worker.hpp"
#include "shmem/shared.hpp"

namespace tq
{

bool changes_wanted(const Db &db) noexcept;

// False if the extension is gone.
bool delete_old_changes(const WorkerContext &context, Db &db);

} // namespace tq
