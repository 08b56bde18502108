// tq.edge: which job has waited for which. The resolver moves a child's rows there from tq.dependency when it frees or
// cancels the child. The rows of a parent go with the parent's record.
// Regime: PG; may ereport. Locks: rows of tq.edge, for which no session waits.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// False with the SQL of 0.1.0, which lacks the table.
bool has_edges();

// The jobs that wait, or have waited, for a job, in ascending order; at most `capacity`. Call it between
// enter_registry and leave_registry.
int children_of(core::JobId parent, core::JobId *out, int capacity);
// Of them, with ids above `after`: those that wait, and those that were freed although the job had failed.
int waiters_of(core::JobId parent, core::JobId after, core::JobId *out, int capacity);

// For the janitor: deletes the rows of parents whose records it deletes in this transaction. For a segment, these are
// the rows of parents recorded only there. A child may be freed after its parent's record has gone, so rows of
// unrecorded parents with ids below all other segments go, too. The caller has locked the segment's tables.
void delete_edges(const Db &db, const core::JobId *ids, int n);
void delete_edges_of_segment(const Db &db, const journal::Segment &segment, core::JobId first, core::JobId last);

} // namespace tq
