// The metrics of queues in tq_metrics.
// Regime: PG; may raise. Locks: queue locks, held only inside.
#pragma once

#include "introspection/metrics_text.hpp"
#include "queues/rights.hpp"

namespace tq
{

struct QueueNumbers;

// The queues that the caller may monitor, by name.
QueueNumbers *collect(const Db &db, const Rights &mine, int *n);

// Writes their metric families; writes nothing if there are no queues.
void queue_families(Text *t, const QueueNumbers *list, int n);

} // namespace tq
