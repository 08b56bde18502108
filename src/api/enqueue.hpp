// Enqueueing for whoever has parsed its arguments: the functions, tq_inbox, tq_retry_many to another queue.
// Regime: PG.
#pragma once

#include "live/shared.hpp"

namespace tq::api
{

constexpr int32 kDefaultPriority = 100;

struct EnqueueItem
{
	journal::JobRow row; // id, enqueued_at and queue_id are filled in
	const char *kind;
};

// Appends the jobs and notes them for publication; ids[i] receives the id of items[i].
void enqueue(live::Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids);

void check_payload(const Jsonb *payload);
void check_headers(Jsonb *headers);
int32 default_priority(uint16_t queue) noexcept;

} // namespace tq::api
