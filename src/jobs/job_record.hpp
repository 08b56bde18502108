// Marks the record of an ended job as purged in an open transaction: for tq_purge, and for tq_retry_many to another
// queue.
// Regime: PG; may ereport.
#pragma once

#include "jobs/search.hpp"
#include "jobs/verbs.hpp"
#include "residency/loader.hpp"

namespace tq
{

enum class Taken : uint8
{
	taken,	 // no other transaction can retry, move or purge it before this one has ended
	skipped, // another transaction is changing it, or its state is not one of `states`
	memory_full,
};

// Locks out other changes of a job that has ended in one of `states` (bits of FoldState). The caller must have reserved
// memory for one operation. The caller appends purged_event(), and no other event of that step.
Taken take_record(Db &db, core::JobId id, uint32 states, FetchedJob *pinned);

// Purges at most `max` of the jobs that were found in one segment, if they are still in one of its states. The caller
// has called keep_segment(). Adds to *done; returns false if memory is full. Raises 55P03 for a running job, if these
// are purged as well, that another transaction is changing.
bool purge_found(Db &db, const Search &found, int64 max, int64 *done);
[[noreturn]] void raise_memory_full_for_purge();

journal::EventRow purged_event(const FetchedJob &pinned, const char *reason) noexcept;

} // namespace tq
