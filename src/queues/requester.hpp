// The role that requested a follow-up. Its right to produce is checked when the follow-up is enqueued
// (docs/adr/0010-deferred-work-authorization.md).
//
// A job's end enqueues the follow-up, in the scheduler or in the session of a worker that may not enqueue to that
// queue. So the key "by" of `follow_up` records the requesting role, and replaces a value given by the caller. It holds
// the id of a row of tq.requester, because jsonb has no type for a role that survives a dump.
// Regime: PG; may raise. Locks: rows of tq.requester; waits for no other session.
#pragma once

#include "queues/queue_settings.hpp"

namespace tq
{

// `json`: the settings of a queue or the options of a job. Returns it with the current user recorded in its follow-up,
// or `json` itself if it has no follow-up.
Jsonb *record_requester(const Db &db, Jsonb *json);

// Raises 42501 unless the role that requested the follow-up may enqueue to this queue. A follow-up from before 0.2.0
// records no role, and passes.
void check_requester(Db &db, const FollowUp &f, uint16_t queue);

} // namespace tq
