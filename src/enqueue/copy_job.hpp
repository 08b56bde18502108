// Copies ended jobs into another queue, for tq_retry_many.
// Regime: PG; may ereport.
#pragma once

#include "jobs/job_control.hpp"

namespace tq
{

struct CopyTarget
{
	uint16_t queue;
	const char *name; // null: no other queue
};

// Copies one job that has ended in one of `states` (bits of FoldState), and marks the origin as purged, so that a
// second call does not find it. The history of each names the other. enqueue_rate can refuse the first copy of a call;
// the other copies overdraw it.
Verdict retry_elsewhere(Db &db, core::JobId id, uint32 states, const CopyTarget &to, bool first);

} // namespace tq
