#include "queues/used_queues.hpp"

#include "transaction/queue_changes.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

struct Row
{
	uint16_t queue;
	SubTransactionId sub;
};

// Of the open transaction: in TopTransactionContext, forgotten (not freed) when it ends.
pg::Array<uint16_t> used;
pg::Array<Row> rows; // rows of tq.queue that it wrote

void end_row(uint16_t queue, bool written) noexcept
{
	lock_queue(queue);
	Queue &q = engine.queue(queue);
	if (q.writer == my_proc + 1)
	{
		q.writer = 0;
		if (written)
		{
			q.persisted = true;
			if (q.state == core::QueueState::creating)
				q.state = core::QueueState::active;
		}
		else
			current_db()->queue_rows.store(true); // another session may have enqueued to it
	}
	unlock_queue(queue);
}

} // namespace

bool use_queue(uint16_t queue)
{
	if (queue_closed_here(queue))
		return false;
	if (queue_used_here(queue))
		return true;
	used.reserve(TopTransactionContext, 1); // first, because it may fail
	Queue &q = engine.queue(queue);
	q.users.fetch_add(1);
	std::atomic_thread_fence(std::memory_order_seq_cst);
	const bool open = q.state == core::QueueState::active || q.state == core::QueueState::creating ||
					  (q.state == core::QueueState::reserved && queue_created_here(queue));
	if (open)
		used.push(queue);
	else
		q.users.fetch_sub(1);
	return open;
}

bool queue_used_here(uint16_t queue) noexcept
{
	return std::find(used.begin(), used.end(), queue) != used.end();
}

void note_queue_row(uint16_t queue)
{
	rows.reserve(TopTransactionContext, 1);
	lock_queue(queue);
	engine.queue(queue).writer = my_proc + 1;
	unlock_queue(queue);
	rows.push(Row{queue, GetCurrentSubTransactionId()});
}

void leave_queues() noexcept
{
	for (const uint16_t queue : used)
		engine.queue(queue).users.fetch_sub(1);
	used.n = 0;
}

void end_queue_rows(bool commit) noexcept
{
	while (rows.n > 0)
		end_row(rows[--rows.n].queue, commit);
}

void end_sub_queue_rows(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept
{
	for (int64 i = rows.n; i-- > 0 && rows[i].sub >= sub;)
	{
		if (commit)
			rows[i].sub = parent;
		else
			end_row(rows[--rows.n].queue, false);
	}
}

bool queue_rows_pending() noexcept { return rows.n > 0; }

void forget_used_queues() noexcept
{
	used.forget();
	rows.forget();
}

} // namespace tq
