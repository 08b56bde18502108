// What tq_metrics says of queues.
// Regime: PG; may raise. Locks: queue locks, held only inside.
#pragma once

#include "api/metrics_text.hpp"
#include "live/rights.hpp"

namespace tq::api
{

struct QueueFigures;

// The queues that the caller may monitor, by name.
QueueFigures *collect(const live::Db &db, const live::Rights &mine, int *n);

// Their families; nothing without queues.
void queue_families(Text *t, const QueueFigures *list, int n);

} // namespace tq::api
