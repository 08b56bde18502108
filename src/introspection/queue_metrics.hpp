// The metrics of queues in tq_metrics.
// Regime: PG; may raise. Locks: queue locks, held only inside.
#pragma once

#include "introspection/metrics_text.hpp"
#include "queues/rights.hpp"

namespace tq
{

// Writes the metric families of the queues that the caller may monitor; writes nothing if there are none.
void queue_families(Text *t, const Db &db, const Rights &mine);

} // namespace tq
