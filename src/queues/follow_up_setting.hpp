// The setting and option `follow_up`: the job to enqueue when a job has ended. Checks it before it is stored.
// Regime: PG; may ereport. Locks: see check_follow_up.
#pragma once

#include "queues/queue_settings.hpp"

namespace tq
{

// The value of `follow_up` in a queue's settings or a job's options; null if there is none.
const JsonbValue *follow_up_in(Jsonb *object);

// Whether an event of this type, ending the job of this entry, can have a follow-up.
bool may_follow(const core::Entry &e, journal::EventType type) noexcept;

// `json`: the options of a job of this queue, or the queue's settings. Sets "outcome" to false in its `follow_up`
// unless the current user may read the outcome. Returns `json` itself if nothing changes. Raises 42501 if a queue's
// setting passes payloads on that the current user may not read; `own_payload`: it provides the payload itself.
Jsonb *restrict_follow_up(Db &db, uint16_t queue, Jsonb *json, bool own_payload);

// Checks that the queue of `f` exists and that the current user may enqueue to it. Raises 42501, TQ002.
void check_target(Db &db, const FollowUp &f);

// The same for a queue's settings, before they are stored. Follow-ups must not form a cycle.
void check_follow_up(Db &db, const char *queue, Jsonb *settings);

} // namespace tq
