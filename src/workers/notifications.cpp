#include "workers/notifications.hpp"

extern "C"
{
#include "catalog/pg_database.h"
#include "commands/async.h"
#include "utils/json.h"
}

#include "introspection/queue_counts.hpp"
#include "guc.hpp"
#include "queues/queue_settings.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"
#include "processes/work_transaction.hpp"

namespace tq
{

namespace
{

// Of this process, by slot: the queue's last notification.
struct Sent
{
	Micros at; // monotonic
	uint32 generation;
};
Sent *sent = nullptr;
Micros blocked_until = 0; // another transaction's NOTIFY was about to commit

struct Message
{
	uint16_t slot;
	uint32 generation;
	int32 queue_id;
	core::NotifyCounts counts;
	int64 ready;
};
constexpr int kBatch = 64;
Message messages[kBatch];
int nmessages = 0; // taken from their queues, not yet known to be sent

// Queue lock held.
bool is_of(const Message &m, const core::Queue &q) noexcept
{
	return q.generation == m.generation && q.state != core::QueueState::free;
}

void take(uint16_t slot) noexcept
{
	Message &m = messages[nmessages++];
	lock_queue(slot);
	core::Queue &q = engine.queue(slot);
	m = Message{slot, q.generation, q.id, q.unsent, 0};
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
		m.ready += counts_of(engine.lane(l)).ready;
	q.unsent = core::NotifyCounts{};
	q.has_unsent.store(false);
	unlock_queue(slot);
}

// A NOTIFY holds this lock while its transaction commits, which may wait for a standby.
bool lock_notifications()
{
	LOCKTAG tag;
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	return LockAcquire(&tag, AccessExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

void notify(const Message &m, const char *queue, const char *channel)
{
	StringInfoData s;
	initStringInfo(&s);
	appendStringInfoString(&s, "{\"queue\":");
	escape_json(&s, queue);
	appendStringInfo(&s, ",\"enqueued\":%u,\"finished\":%u,\"dead\":%u,\"ready\":%lld}", m.counts.enqueued,
					 m.counts.finished, m.counts.dead, static_cast<long long>(m.ready));
	Async_Notify(channel, s.data);
	pfree(s.data);
}

// Names and channels are in the rows.
void notify_all(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum ids[kBatch];
	for (int i = 0; i < nmessages; ++i)
		ids[i] = Int32GetDatum(messages[i].queue_id);
	const Oid types[] = {INT4ARRAYOID};
	const Datum values[] = {
		PointerGetDatum(construct_array(ids, nmessages, INT4OID, sizeof(int32), true, TYPALIGN_INT))};
	pg::sql("SELECT id, name, settings FROM tq.queue WHERE id = ANY ($1)", {types, values}, true, 0);
	for (uint64 row = 0; row < SPI_processed; ++row)
	{
		const int32 id = pg::spi_int4(row, "id");
		const char *name = pg::spi_text(row, "name");
		Jsonb *settings = pg::spi_jsonb(row, "settings");
		const char *channel = settings != nullptr ? channel_of(settings) : nullptr;
		for (int i = 0; name != nullptr && channel != nullptr && i < nmessages; ++i)
			if (messages[i].queue_id == id)
				notify(messages[i], name, channel);
	}
	pg::leave_owner(scope);
}

} // namespace

void return_notifications() noexcept
{
	for (; nmessages > 0; --nmessages)
	{
		const Message &m = messages[nmessages - 1];
		lock_queue(m.slot);
		core::Queue &q = engine.queue(m.slot);
		if (is_of(m, q))
		{
			q.unsent.enqueued += m.counts.enqueued;
			q.unsent.finished += m.counts.finished;
			q.unsent.dead += m.counts.dead;
			q.has_unsent.store(true);
		}
		unlock_queue(m.slot);
	}
}

Micros notification_due(uint16_t slot, const core::Queue &q) noexcept
{
	if (!q.has_unsent.load() || !q.settings.notifies)
		return core::kNever;
	const bool first = sent == nullptr || sent[slot].generation != q.generation;
	return std::max(first ? 0 : sent[slot].at + guc::notify_interval * Micros{1000}, blocked_until);
}

bool send_notifications(const WorkerContext &context, Db &db)
{
	return_notifications();
	if (sent == nullptr)
		sent = static_cast<Sent *>(MemoryContextAllocZero(TopMemoryContext, sizeof(Sent) * engine.limits().queues));
	const Micros now = mono_now();
	uint16_t due[kBatch];
	int n = 0;
	for_queues(db, [&](uint16_t slot, const core::Queue &q) {
		if (n < kBatch && notification_due(slot, q) <= now)
			due[n++] = slot;
	});
	if (n == 0)
		return true;
	if (!begin_work(context, "tq: sending notifications"))
		return false;
	if (lock_notifications())
	{
		for (int i = 0; i < n; ++i)
			take(due[i]);
		notify_all(db);
	}
	else
		blocked_until = now + guc::notify_interval * Micros{1000};
	TQ_WAIT_POINT("notifications-before-commit");
	end_work(true);
	TQ_WAIT_POINT("notifications-after-commit");
	for (; nmessages > 0; --nmessages)
		sent[messages[nmessages - 1].slot] = Sent{now, messages[nmessages - 1].generation};
	return true;
}

} // namespace tq
