#include "workers/queue_drops.hpp"

#include "live/load.hpp"
#include "pg/owner.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::engine;

// Queue lock held. No enqueue can begin in a closing queue, so what is idle stays idle.
bool is_idle(const live::Queue &q) noexcept
{
	if (q.users > 0 || q.group_loads > 0)
		return false;
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
	{
		const live::Lane &lane = engine.lane(l);
		if (lane.count.live != 0 || lane.loader != core::kNil)
			return false;
		for (const uint32_t n : lane.counts)
			if (n != 0)
				return false;
	}
	return true;
}

bool may_go(const live::Db &db, uint16_t slot) noexcept
{
	const live::Queue &q = engine.queue(slot);
	if (q.state != core::QueueState::closing || q.db != live::index_of(db))
		return false;
	live::lock_queue(slot);
	const bool yes = q.state == core::QueueState::closing && q.db == live::index_of(db) && is_idle(q);
	live::unlock_queue(slot);
	return yes;
}

// True if the row is gone; false if somebody holds it.
bool delete_row(const WorkerContext &context, int32 id)
{
	const pg::OwnerScope scope = pg::enter_owner(context.extension);
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(id)};
	pg::sql(
		"DELETE FROM tq.queue WHERE id = (SELECT id FROM tq.queue WHERE id = $1 AND closing FOR UPDATE SKIP LOCKED)", 1,
		types, values, nullptr, false, 0);
	bool gone = SPI_processed > 0;
	if (!gone)
	{
		pg::sql("SELECT 1 FROM tq.queue WHERE id = $1", 1, types, values, nullptr, true, 1);
		gone = SPI_processed == 0;
	}
	if (gone) // and with it all rights on it, and those of roles that are no more
		pg::sql("DELETE FROM tq.acl a WHERE queue_id = $1 OR NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = a.role)", 1, types, values,
				nullptr, false, 0);
	if (gone)
		pg::sql("DELETE FROM tq.handler WHERE queue_id = $1", 1, types, values, nullptr, false, 0);
	pg::leave_owner(scope);
	return gone;
}

void free_slot(live::Db &db, uint16_t slot, int32 id) noexcept
{
	LWLockAcquire(live::registry_lock(), LW_EXCLUSIVE);
	db.queue_changes.fetch_add(1);
	live::lock_queue(slot);
	live::Queue &q = engine.queue(slot);
	// a job that tq_retry has brought back meanwhile keeps the slot; the next look comes when it has ended
	if (q.state == core::QueueState::closing && q.db == live::index_of(db) && q.id == id && is_idle(q))
		engine.free_queue(q);
	live::unlock_queue(slot);
	LWLockRelease(live::registry_lock());
}

} // namespace

bool finish_drops(const WorkerContext &context, live::Db &db)
{
	// a restore may bring jobs of a closing queue that nobody has counted yet
	if (db.reload.load() || live::copy_is_coming(db) || db.outside_changes.load() != db.outside_counted.load())
		return true;
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		if (!may_go(db, slot))
			continue;
		const int32 id = engine.queue(slot).id;
		TQ_WAIT_POINT("drop-queue-before-row");
		if (!begin_work(context, "tq: dropping a queue"))
			return false;
		const bool gone = delete_row(context, id);
		end_work();
		TQ_WAIT_POINT("drop-queue-after-row");
		if (gone)
			free_slot(db, slot, id);
	}
	return true;
}

} // namespace tq::workers
