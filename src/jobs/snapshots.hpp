// Waits without a snapshot, which would hold back vacuum in the whole database (H20).
// Regime: PG. Locks: none.
#pragma once

#include "core/types.hpp"
#include "pg/prelude.hpp"

namespace tq
{

// Whether a procedure was called in a transaction block or from an atomic context, so that it may not commit.
bool is_atomic(FunctionCallInfo fcinfo) noexcept;

// Releases every snapshot that this call of a procedure can release.
void drop_snapshots(bool atomic);

// The end of a wait of this length (core::kNever: none), by steady_now(). Call it after drop_snapshots: where a
// snapshot or a write remains, tq.max_pinned_wait limits the wait.
core::Micros end_of_wait(core::Micros timeout) noexcept;

} // namespace tq
