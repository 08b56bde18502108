#include "queues/near_queues.hpp"

#include "queues/rights.hpp"
#include "pg/errors.hpp"
#include "pg/near_words.hpp"

namespace tq
{

const char *perhaps_queue(const Db &db, const char *name)
{
	if (MyBackendType == B_BG_WORKER) // nobody reads its hints
		return "";
	const Rights &mine = rights(db);
	pg::Nearest near{name};
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		char other[core::kNameMax];
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		if (q.state == core::QueueState::free || q.db != index_of(db))
			continue;
		LWLockAcquire(registry_lock(), LW_SHARED); // a slot gets its name under this lock
		const bool shown = q.state != core::QueueState::free && q.db == index_of(db) &&
						   q.state != core::QueueState::closing && mine.may(q, kQueueRights);
		strlcpy(other, shown ? q.name : "", sizeof(other));
		LWLockRelease(registry_lock());
		if (strcmp(other, name) == 0)
			return "";
		pg::consider(&near, other);
	}
	return pg::perhaps(near);
}

void no_such_queue(const Db &db, const char *name)
{
	ereport(ERROR,
			(errcode(kErrNoSuchQueue), errmsg("queue \"%s\" does not exist", name),
			 errdetail("The queue was never created, or it is being dropped."),
			 errhint("%sQueues are created by tq_create_queue, or by the first enqueue if tq.auto_create_queues is on.",
					 perhaps_queue(db, name))));
}

} // namespace tq
