// Names of queues for rows of functions that show jobs. queues/queue_names.hpp finds queues by name.
// Regime: PG, but nothing here raises. Locks: the registry lock, briefly.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// Names of queues by tq.queue.id. Keeps the last one, since neighbouring rows mostly share their queue.
struct QueueNames
{
	const Db *db;
	int32 id = -1;
	bool known = false;
	uint16_t slot = kNoQueue;
	char name[core::kNameMax] = {};

	const char *of(int32 queue_id) noexcept
	{
		if (queue_id != id)
		{
			id = queue_id;
			LWLockAcquire(registry_lock(), LW_SHARED);
			slot = queue_of_id(*db, queue_id);
			known = slot != kNoQueue;
			if (known)
				strlcpy(name, engine.queue(slot).name, sizeof(name));
			LWLockRelease(registry_lock());
		}
		return known ? name : nullptr;
	}
};

} // namespace tq
