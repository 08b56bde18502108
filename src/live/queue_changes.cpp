#include "live/queue_changes.hpp"

#include "live/attach.hpp"
#include "live/queue_settings.hpp"
#include "pg/errors.hpp"

namespace tq::live
{

namespace
{

// In TopTransactionContext, forgotten (not freed) when the transaction ends.
QueueChange *changes = nullptr;
int nchanges = 0;
int changes_room = 0;

// Slots that this transaction named; kept over ROLLBACK TO, because by then it may have counted itself a user of the queue.
struct Reservation
{
	uint16_t queue;
	uint32 generation;
};
Reservation *reservations = nullptr;
int nreservations = 0;
int reservations_room = 0;

Db *changes_db = nullptr;

template <class T>
void make_room(T *&array, int &room, int n)
{
	if (n < room)
		return;
	const int to = std::max(room * 2, 8);
	if (array == nullptr)
		array = static_cast<T *>(MemoryContextAlloc(TopTransactionContext, sizeof(T) * static_cast<Size>(to)));
	else
		array = static_cast<T *>(repalloc(array, sizeof(T) * static_cast<Size>(to)));
	room = to;
}

void forget() noexcept
{
	changes = nullptr;
	reservations = nullptr;
	nchanges = changes_room = nreservations = reservations_room = 0;
	changes_db = nullptr;
}

// Registry lock held.
void apply(const QueueChange &c) noexcept
{
	if (c.edit == QueueEdit::activated)
	{
		changes_db->activations.fetch_add(1);
		changes_db->was_fresh.store(false);
		changes_db->dormant.store(false);
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
				engine.refresh_groups(q); // limits may have become others
				break;
			case QueueEdit::paused:
				engine.set_paused(q, c.lane != core::kNoLane ? &engine.lane(c.lane) : nullptr, c.until);
				break;
			case QueueEdit::closing:
				q.state = core::QueueState::closing;
				break;
			default:
				break;
		}
	unlock_queue(c.queue);
}

// Registry lock held. Whoever waits for a job of it wakes and finds the generation changed.
void free_reserved() noexcept
{
	for (int i = 0; i < nreservations; ++i)
	{
		Queue &q = engine.queue(reservations[i].queue);
		lock_queue(reservations[i].queue);
		if (q.generation == reservations[i].generation && q.state == core::QueueState::reserved)
			engine.free_queue(q);
		unlock_queue(reservations[i].queue);
	}
}

bool reserved_here(uint16_t queue) noexcept
{
	for (int i = 0; i < nreservations; ++i)
		if (reservations[i].queue == queue && reservations[i].generation == engine.queue(queue).generation)
			return true;
	return false;
}

bool changed_here(uint16_t queue, QueueEdit edit) noexcept
{
	for (int i = 0; i < nchanges; ++i)
		if (changes[i].queue == queue && changes[i].edit == edit &&
			changes[i].generation == engine.queue(queue).generation)
			return true;
	return false;
}

} // namespace

void reserve_queue_change(Db &db)
{
	make_room(changes, changes_room, nchanges);
	changes_db = &db;
}

void note_queue_change(const QueueChange &change) noexcept
{
	Assert(nchanges < changes_room);
	QueueChange &c = changes[nchanges++] = change;
	c.sub = GetCurrentSubTransactionId();
	c.generation = engine.queue(c.queue).generation;
}

uint16_t reserve_queue_name(Db &db, const char *name, bool *made)
{
	make_room(reservations, reservations_room, nreservations);
	changes_db = &db;
	const uint16_t slot = name_queue(db, name, core::QueueState::reserved, made);
	if (*made)
		reservations[nreservations++] = Reservation{slot, engine.queue(slot).generation};
	else
		*made =
			engine.queue(slot).state == core::QueueState::reserved && reserved_here(slot) && !queue_created_here(slot);
	return slot;
}

bool queue_created_here(uint16_t queue) noexcept { return changed_here(queue, QueueEdit::created); }
bool queue_closed_here(uint16_t queue) noexcept { return changed_here(queue, QueueEdit::closing); }

bool queue_changed_here(uint16_t queue) noexcept
{
	if (reserved_here(queue))
		return true;
	for (int i = 0; i < nchanges; ++i)
		if (changes[i].queue == queue && changes[i].edit != QueueEdit::activated)
			return true;
	return false;
}

void enter_reserved_queue(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	if (queue_created_here(queue))
		return;
	if (!reserved_here(queue))
	{
		if (q.state != core::QueueState::reserved)
			return; // it has just been committed
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
	engine.queue(queue).settings = c.settings; // what was rolled back may have left its own
	unlock_queue(queue);
	note_queue_change(c);
}

bool queue_changes_pending() noexcept { return nchanges + nreservations > 0; }

void commit_queue_changes() noexcept
{
	if (queue_changes_pending())
	{
		TQ_WAIT_POINT_NOFAIL("queue-change-before-publish");
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		changes_db->queue_changes.fetch_add(1); // before the changes: see read_queues
		for (int i = 0; i < nchanges; ++i)
			apply(changes[i]);
		free_reserved();
		LWLockRelease(registry_lock());
		wake_scheduler(*changes_db);
	}
	forget(); // also where all was rolled back to a savepoint: the memory goes with the transaction
}

void abort_queue_changes() noexcept
{
	if (nreservations > 0)
	{
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		free_reserved();
		LWLockRelease(registry_lock());
	}
	forget();
}

void end_sub_queue_changes(bool commit, SubTransactionId sub, SubTransactionId parent) noexcept
{
	for (int i = nchanges; i-- > 0 && changes[i].sub >= sub;)
	{
		if (commit)
			changes[i].sub = parent;
		else
			--nchanges;
	}
}

} // namespace tq::live
