#include "transaction/queue_changes.hpp"

#include "shmem/waiting.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

// In TopTransactionContext, forgotten (not freed) when the transaction ends.
pg::Array<QueueChange> changes;

// Slots that this transaction named. ROLLBACK TO keeps them, because by then this transaction may have counted itself
// as a user of the queue.
struct Reservation
{
	uint16_t queue;
	uint32 generation;
};
pg::Array<Reservation> reservations;

Db *changes_db = nullptr;

void forget() noexcept
{
	changes.forget();
	reservations.forget();
	changes_db = nullptr;
}

// Queue lock held.
void change_group(Queue &q, const QueueChange &c) noexcept
{
	const Ref g = engine.group_for(q, c.group, false);
	if (g == kNil)
		return;
	core::GroupSettings own = engine.group(g).own;
	if (c.edit == QueueEdit::paused)
		own.paused_until = c.until;
	else
	{
		own.max_running = c.settings.group_max_running;
		own.rate = c.settings.group_rate;
	}
	engine.set_group(q, g, own);
	if (c.holds)
		engine.hold_group(q, g, -1);
}

bool is_of_database(QueueEdit edit) noexcept { return edit == QueueEdit::used || edit == QueueEdit::switched; }

// Registry lock held.
void apply(const QueueChange &c) noexcept
{
	if (is_of_database(c.edit))
	{
		if (c.edit == QueueEdit::used)
			changes_db->set_active();
		return;
	}
	Queue &q = engine.queue(c.queue);
	lock_queue(c.queue);
	if (q.generation == c.generation && q.state != core::QueueState::free)
		switch (c.edit)
		{
			case QueueEdit::created:
				q.settings = c.settings;
				q.persisted = true;
				q.state = core::QueueState::active;
				engine.refresh_groups(q);
				break;
			case QueueEdit::settings:
				q.settings = c.settings;
				engine.refresh_groups(q); // limits may have changed
				break;
			case QueueEdit::paused:
				if (c.group != nullptr)
					change_group(q, c);
				else
					engine.set_paused(q, c.lane != core::kNoLane ? &engine.lane(c.lane) : nullptr, c.until);
				break;
			case QueueEdit::limited:
				change_group(q, c);
				break;
			case QueueEdit::closing:
				q.state = core::QueueState::closing;
				break;
			default:
				break;
		}
	unlock_queue(c.queue);
}

// A change of a group that is rolled back gives its slot back.
void revert(const QueueChange &c) noexcept
{
	if (!c.holds)
		return;
	Queue &q = engine.queue(c.queue);
	lock_queue(c.queue);
	const Ref g =
		q.generation == c.generation && q.state != core::QueueState::free ? engine.group_for(q, c.group, false) : kNil;
	if (g != kNil)
		engine.hold_group(q, g, -1);
	unlock_queue(c.queue);
}

// Registry lock held. A session that waits for a job of the queue wakes and finds the generation changed.
void free_reserved() noexcept
{
	for (const Reservation &r : reservations)
	{
		Queue &q = engine.queue(r.queue);
		lock_queue(r.queue);
		if (q.generation == r.generation && q.state == core::QueueState::reserved)
			engine.free_queue(q);
		unlock_queue(r.queue);
	}
}

bool changed_here(uint16_t queue, QueueEdit edit) noexcept
{
	for (const QueueChange &c : changes)
		if (c.queue == queue && c.edit == edit &&
			c.generation == engine.queue(queue).generation)
			return true;
	return false;
}

} // namespace

void reserve_queue_change(Db &db)
{
	changes.reserve(TopTransactionContext, 1);
	changes_db = &db;
}

void note_queue_change(const QueueChange &change) noexcept
{
	QueueChange &c = changes.push(change);
	c.sub = GetCurrentSubTransactionId();
	c.generation = engine.queue(c.queue).generation;
}

void note_database_change(QueueEdit edit) noexcept
{
	QueueChange c{};
	c.edit = edit;
	note_queue_change(c);
}

bool database_change_here(QueueEdit edit) noexcept
{
	return std::any_of(changes.begin(), changes.end(), [edit](const QueueChange &c) { return c.edit == edit; });
}

void reserve_reservation(Db &db)
{
	reservations.reserve(TopTransactionContext, 1);
	changes_db = &db;
}

void note_reservation(uint16_t queue) noexcept
{
	reservations.push(Reservation{queue, engine.queue(queue).generation});
}

bool queue_reserved_here(uint16_t queue) noexcept
{
	for (const Reservation &r : reservations)
		if (r.queue == queue && r.generation == engine.queue(queue).generation)
			return true;
	return false;
}

bool queue_created_here(uint16_t queue) noexcept { return changed_here(queue, QueueEdit::created); }
bool queue_closed_here(uint16_t queue) noexcept { return changed_here(queue, QueueEdit::closing); }

bool queue_changed_here(uint16_t queue) noexcept
{
	if (queue_reserved_here(queue))
		return true;
	for (const QueueChange &c : changes)
		if (c.queue == queue && !is_of_database(c.edit))
			return true;
	return false;
}

bool queue_changes_pending() noexcept { return changes.n + reservations.n > 0; }

void commit_queue_changes() noexcept
{
	if (queue_changes_pending())
	{
		TQ_WAIT_POINT_NOFAIL("queue-change-before-publish");
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		// Counted before the changes, so that install_queue refuses rows that were read before.
		changes_db->queue_changes.fetch_add(1);
		for (const QueueChange &c : changes)
			apply(c);
		free_reserved();
		LWLockRelease(registry_lock());
		for (const QueueChange &c : changes)
			if (c.edit == QueueEdit::created)
				wake_for_name(*changes_db, engine.queue(c.queue).name);
		wake_scheduler(*changes_db);
		if (database_change_here(QueueEdit::switched))
			wake_database(); // sessions that wait for jobs
	}
	// Also after all was rolled back to a savepoint: the memory is freed with the transaction.
	forget();
}

void abort_queue_changes() noexcept
{
	for (const QueueChange &c : changes)
		revert(c);
	if (reservations.n > 0)
	{
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		free_reserved();
		LWLockRelease(registry_lock());
	}
	forget();
}

void end_sub_queue_changes(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept
{
	for (int64 i = changes.n; i-- > 0 && changes[i].sub >= sub;)
	{
		if (commit)
			changes[i].sub = parent;
		else
		{
			revert(changes[i]);
			--changes.n;
		}
	}
}

} // namespace tq
