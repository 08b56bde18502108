// Which policies apply to a job, and from where: its own, its queue's or the server's.
// Regime: PG; may ereport. Locks: the queue's lock while its settings are copied.
#pragma once

#include "live/policy.hpp"

namespace tq::api
{

// {"lease": {"from": "queue", "value": "00:00:30"}, ...}. `priority`: as it is now.
Jsonb *policies_of(const journal::JobRow &row, int32 priority, uint16_t queue);

} // namespace tq::api
