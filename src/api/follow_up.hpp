// Jobs that follow others: enqueued in the transaction that ends a job, as its queue's setting or its option `follow_up` says.
// Regime: PG. Locks: as an enqueue's.
#pragma once

#include "live/queue_settings.hpp"

namespace tq::api
{

// Whether anything may follow a job whose entry this is, ended by such an event.
bool may_follow(const core::Entry &e, journal::EventType type) noexcept;

// After the events have been appended, their jobs still being marked by this transaction: enqueues what follows those that have ended.
// What cannot be enqueued is counted and logged, and does not keep the jobs from ending.
void follow_up(live::Db &db, const journal::EventRow *rows, int n);

// For who wants `f`: its queue is there and the current user may enqueue to it. Raises 42501, TQ002.
void check_target(live::Db &db, const live::FollowUp &f);

// The same for a queue's settings, which are to be written to its row: jobs must not follow each other in a circle.
void check_follow_up(live::Db &db, const char *queue, Jsonb *settings);

} // namespace tq::api
