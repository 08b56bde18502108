// Follow-up jobs. The transaction that ends a job enqueues its follow-up, which the queue's setting or the job's option
// `follow_up` defines. The role that requested the follow-up must still have the right to enqueue it
// (queues/requester.hpp). A follow-up that fails to enqueue is counted and logged; the job still ends.
// Regime: PG. Locks: those of an enqueue.
#pragma once

namespace tq
{

void register_follow_ups(); // from _PG_init

} // namespace tq
