#include "workers/queue_drops.hpp"

#include "processes/work_transaction.hpp"
#include "shmem/grant_changes.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

// Queue lock held. True if the closing queue is idle. No enqueue can begin in it, so it stays idle.
bool is_idle(const Queue &q) noexcept
{
	if (q.users > 0 || q.group_loads > 0)
		return false;
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
	{
		const Lane &lane = engine.lane(l);
		if (lane.count.live != 0 || lane.loader != core::kNil)
			return false;
		for (const uint32_t n : lane.counts)
			if (n != 0)
				return false;
	}
	return true;
}

bool is_removable(const Db &db, uint16_t slot) noexcept
{
	const Queue &q = engine.queue(slot);
	if (q.state != core::QueueState::closing || q.db != index_of(db))
		return false;
	lock_queue(slot);
	const bool yes = q.state == core::QueueState::closing && q.db == index_of(db) && is_idle(q);
	unlock_queue(slot);
	return yes;
}

// True if the row is gone; false if another transaction holds it. `tidies`: also deletes the rights of roles that no
// longer exist, which reads all rights.
bool delete_row(const WorkerContext &context, int32 id, bool tidies)
{
	const pg::OwnerScope scope = pg::enter_owner(context.extension);
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(id)};
	pg::sql(
		"DELETE FROM tq.queue WHERE id = (SELECT id FROM tq.queue WHERE id = $1 AND closing FOR UPDATE SKIP LOCKED)",
		{types, values}, false, 0);
	bool gone = SPI_processed > 0;
	if (!gone)
	{
		pg::sql("SELECT 1 FROM tq.queue WHERE id = $1", {types, values}, true, 1);
		gone = SPI_processed == 0;
	}
	if (gone)
	{
		begin_grants_of(id);
		pg::sql("DELETE FROM tq.acl WHERE queue_id = $1", {types, values}, false, 0);
		if (tidies)
			pg::sql("DELETE FROM tq.acl a WHERE role::oid <> 0 AND NOT EXISTS"
					" (SELECT FROM pg_roles r WHERE r.oid = a.role)",
					{}, false, 0);
		end_grants_of();
		pg::sql("DELETE FROM tq.handler WHERE queue_id = $1", {types, values}, false, 0);
		if (OidIsValid(get_relname_relid("subscription", get_namespace_oid("tq", false)))) // 0.1.0 has none
		{
			pg::sql("DELETE FROM tq.subscription WHERE queue_id = $1", {types, values}, false, 0);
			pg::sql("DELETE FROM tq.group_setting WHERE queue_id = $1", {types, values}, false, 0);
			pg::sql("DELETE FROM tq.creator WHERE queue_id = $1", {types, values}, false, 0);
		}
	}
	pg::leave_owner(scope);
	return gone;
}

void free_slot(Db &db, uint16_t slot, int32 id) noexcept
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	db.queue_changes.fetch_add(1);
	lock_queue(slot);
	Queue &q = engine.queue(slot);
	// If tq_retry has revived a job meanwhile, the queue keeps its slot. The next check comes when that job has ended.
	if (q.state == core::QueueState::closing && q.db == index_of(db) && q.id == id && is_idle(q))
		engine.free_queue(q);
	unlock_queue(slot);
	LWLockRelease(registry_lock());
}

} // namespace

bool finish_drops(const WorkerContext &context, Db &db)
{
	if (db.reload.load())
		return true;
	constexpr Micros kStep = 20000; // after which the scheduler's other work has its turn
	static uint32 next = 0; // slot at which the next call begins: a queue whose removal fails must not block the others
	const Micros began = steady_now();
	bool tidied = false, progress = false;
	const uint32 n = engine.limits().queues, first = next;
	for (uint32 i = 0; i < n; ++i)
	{
		const auto slot = static_cast<uint16_t>((first + i) % n);
		if (!is_removable(db, slot))
			continue;
		if (tidied && steady_now() >= began + kStep)
		{
			if (progress) // the others follow at once; queues whose rows are locked are tried again later
				wake_scheduler(db);
			break;
		}
		next = (slot + 1U) % n; // before the work, which may raise an error
		const int32 id = engine.queue(slot).id;
		TQ_WAIT_POINT("drop-queue-before-row");
		if (!begin_work(context, "tq: dropping a queue"))
			return false;
		const bool gone = delete_row(context, id, !tidied);
		tidied = true;
		end_work();
		TQ_WAIT_POINT("drop-queue-after-row");
		progress = progress || gone;
		if (gone)
			free_slot(db, slot, id);
	}
	return true;
}

} // namespace tq
