// The policies of a job and their origin: the job, its queue or the server.
// Regime: PG; may ereport. Locks: the queue's lock while its settings are copied.
#pragma once

#include "queues/policy.hpp"

namespace tq
{

// {"lease": {"from": "queue", "value": "00:00:30"}, ...}. `priority`, `expires_at`: the job's current values.
Jsonb *policies_of(const journal::JobRow &row, int32 priority, TimestampTz expires_at, uint16_t queue);

} // namespace tq
