// The record of a job that has ended, as an open transaction takes it out of the books: tq_purge, and tq_retry_many to another queue.
// Regime: PG; may ereport.
#pragma once

#include "live/loader.hpp"
#include "live/verbs.hpp"

namespace tq::api
{

enum class Taken : uint8
{
	taken,	 // nobody else can retry, move or purge it before this transaction has ended
	skipped, // another transaction is changing it, or it is not in such a state any more
	no_room,
};

// Takes a job that has ended in one of `states` (bits of FoldState). Room for one operation must be reserved. The caller appends
// purged_event(), and nothing else of that step.
Taken take_ended(live::Db &db, core::JobId id, uint32 states, live::Pinned *pinned);

journal::EventRow purged_event(const live::Pinned &pinned, const char *reason) noexcept;

} // namespace tq::api
