#include "queues/reserved_queues.hpp"

#include "queues/queue_names.hpp"
#include "queues/queue_rows.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/errors.hpp"

namespace tq
{

uint16_t reserve_queue_name(Db &db, const char *name, bool *made)
{
	reserve_reservation(db);
	const uint16_t slot = name_queue(db, name, core::QueueState::reserved, made);
	if (*made)
		note_reservation(slot);
	else
		*made = engine.queue(slot).state == core::QueueState::reserved && queue_reserved_here(slot) &&
				!queue_created_here(slot);
	return slot;
}

void enter_reserved_queue(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	if (queue_created_here(queue))
		return;
	if (!queue_reserved_here(queue))
	{
		if (q.state != core::QueueState::reserved)
			return; // already committed
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						errmsg("queue \"%s\" is being created by another transaction", q.name),
						errhint("Try again when that transaction has ended.")));
	}
	reserve_queue_change(db);
	if (!insert_queue_row(db, queue, nullptr))
		ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("queue \"%s\" has been created meanwhile", q.name),
						errhint("Try again.")));
	QueueChange c{};
	c.edit = QueueEdit::created;
	c.queue = queue;
	lock_queue(queue);
	engine.queue(queue).settings = c.settings; // a rolled-back creation may have left its settings
	unlock_queue(queue);
	note_queue_change(c);
}

} // namespace tq
