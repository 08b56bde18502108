#include "live/xact.hpp"

#include "guc.hpp"
#include "live/admission.hpp"
#include "live/attach.hpp"
#include "live/dependencies.hpp"
#include "live/load.hpp"
#include "live/loader.hpp"
#include "live/publish.hpp"
#include "live/queue_changes.hpp"
#include "live/schedule_changes.hpp"
#include "live/waiting.hpp"
#include "pg/errors.hpp"

namespace tq::live
{

namespace
{

// All in TopTransactionContext, forgotten (not freed) when the transaction ends.
Op *ops = nullptr;
int nops = 0;
int ops_room = 0;
Bulk *bulks = nullptr;
int nbulks = 0;
int bulks_room = 0;
int nenqueued = 0; // individual enqueue operations among ops
bool bulk_mode = false;
bool reload_at_commit = false;
bool handlers_at_commit = false;
const char *last_group = nullptr;
uint16_t *used_queues = nullptr;
int nused = 0;
int used_room = 0;

// Rows of tq.queue that this transaction wrote itself.
struct Row
{
	uint16_t queue;
	SubTransactionId sub;
};
Row *rows = nullptr;
int nrows = 0;
int rows_room = 0;

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
			current_db()->queue_rows.store(true); // somebody else may have enqueued to it
	}
	unlock_queue(queue);
}

template <class T> void grow(T *&array, int &room, int need)
{
	if (need <= room)
		return;
	int to = std::max(room * 2, 16);
	while (to < need)
		to *= 2;
	const Size bytes = mul_size(sizeof(T), static_cast<Size>(to));
	if (array == nullptr)
		array = static_cast<T *>(MemoryContextAllocHuge(TopTransactionContext, bytes));
	else
		array = static_cast<T *>(repalloc_huge(array, bytes));
	room = to;
}

void forget()
{
	ops = nullptr;
	bulks = nullptr;
	used_queues = nullptr;
	rows = nullptr;
	nops = ops_room = nbulks = bulks_room = nenqueued = nused = used_room = nrows = rows_room = 0;
	bulk_mode = reload_at_commit = handlers_at_commit = false;
	forget_schedules();
	last_group = nullptr;
}

void leave_queues() noexcept
{
	for (int i = 0; i < nused; ++i)
		engine.queue(used_queues[i]).users.fetch_sub(1);
	nused = 0;
}

void add_bulk(const Op &op)
{
	const bool delayed = op.due != core::kNever && !op.blocked;
	for (int i = nbulks; i-- > 0 && i >= nbulks - 4;)
	{
		Bulk &b = bulks[i];
		if (b.count > 0 && b.sub == op.sub && b.queue == op.queue && b.lane == op.lane && b.segment == op.segment &&
			b.grouped == (op.group != nullptr) && b.blocked == op.blocked)
		{
			++b.count;
			b.least = std::min(b.least, Key{op.priority, op.id});
			b.ndelayed += delayed;
			if (delayed)
				b.least_due = std::min(b.least_due, op.due);
			return;
		}
	}
	grow(bulks, bulks_room, nbulks + 1);
	bulks[nbulks++] = Bulk{op.sub, op.queue, op.lane, op.segment, 1, delayed ? 1 : 0, Key{op.priority, op.id}, op.due,
						   op.group != nullptr, op.blocked};
}

// From here on, enqueued jobs are only summed; those that were changed since are not what their rows say, and stay.
void go_bulk()
{
	int kept = 0;
	nenqueued = 0;
	for (int i = 0; i < nops; ++i)
	{
		if (ops[i].verb == Verb::enqueue && !ops[i].edited)
		{
			add_bulk(ops[i]);
			continue;
		}
		for (int k = i + 1; ops[i].edited && k < nops; ++k)
			if (ops[k].target == i)
				ops[k].target = kept;
		nenqueued += ops[i].verb == Verb::enqueue;
		ops[kept++] = ops[i];
	}
	nops = kept;
	bulk_mode = true;
}

// Takes back the change of an operation that is still in the list.
void undo_edit(const Op &op) noexcept
{
	Op &enqueue = ops[op.target];
	const SubTransactionId sub = enqueue.sub;
	enqueue = op;
	enqueue.verb = Verb::enqueue;
	enqueue.target = -1;
	enqueue.sub = sub;
}

void publish_handlers() noexcept
{
	for (int i = 0; preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
		{
			db_at(i).handler_changes.fetch_add(1);
			wake_scheduler(db_at(i));
		}
}

// By themselves in the library, for scripts/check_callbacks: nothing that they call may fail.
pg_noinline void on_commit() noexcept
{
	while (nrows > 0)
		end_row(rows[--nrows].queue, true);
	commit_queue_changes();
	wait_end(); // tq_wait in a procedure ends its transactions while it is registered: it registers again
	if (nops + nbulks > 0)
	{
		Db &db = *current_db();
		TQ_WAIT_POINT_NOFAIL("commit-before-publish");
		LWLockAcquire(map_lock(db), LW_SHARED);
		const Counting counting = counting_of(db, GetTopFullTransactionIdIfAny());
		for (int i = 0; i < nops; ++i)
			if (ops[i].target < 0)
				publish(db, ops[i], counting);
		TQ_WAIT_POINT_NOFAIL("commit-half-published");
		for (int i = 0; i < nbulks; ++i)
			publish_bulk(db, bulks[i], counting);
		LWLockRelease(map_lock(db));
		TQ_WAIT_POINT_NOFAIL("commit-after-publish");
	}
	if (reload_at_commit) // before the resolver is told, which asks what has come from outside
		request_reload();
	note_after_commit();
	end_dependencies();
	end_admissions(); // what is left: those that were taken back, or replaced others
	leave_queues();
	if (handlers_at_commit)
		publish_handlers();
	announce_schedules();
	forget();
}

pg_noinline void on_abort() noexcept
{
	while (nrows > 0)
		end_row(rows[--nrows].queue, false);
	wait_end();
	if (nops > 0)
		TQ_WAIT_POINT_NOFAIL("abort-before-undo");
	for (int i = nops; i-- > 0;)
		if (ops[i].target < 0)
			undo(*current_db(), ops[i]);
	end_dependencies();
	end_admissions();
	leave_queues();
	abort_queue_changes();
	if (reload_at_commit)
		request_reload(); // memory has opened segments for us that are finished as before
	forget();
}

// With nothing of ours to publish; what was allocated goes with the transaction.
pg_noinline void on_prepare() noexcept
{
	wait_end();
	end_dependencies();
	end_admissions();
	leave_queues();
	forget();
}

// One that is to stay in memory may need a slot for its group, which others give up.
void register_or_fail(Db &db, Op &op)
{
	while (!register_enqueue(db, op))
		if (op.group == nullptr || engine.has_free_group() || !free_slot())
			ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
							errmsg("no room in memory for job %lld", static_cast<long long>(op.id)),
							errdetail("A job whose time or priority was changed is kept in memory."),
							errhint("Raise tq.max_live_jobs or, for jobs of groups, tq.max_groups and restart the server.")));
}

void xact_callback(XactEvent event, void *)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (nenqueued > 0)
			{
				for (int i = 0; i < nops; ++i)
					if (ops[i].verb == Verb::enqueue && !ops[i].revoked && !ops[i].blocked)
						register_or_fail(*current_db(), ops[i]);
				TQ_WAIT_POINT("precommit-registered");
			}
			await_before_commit();
			break;
		case XACT_EVENT_COMMIT:
			on_commit();
			break;
		case XACT_EVENT_ABORT:
			on_abort();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (nops + nbulks + nrows > 0 || reload_at_commit || handlers_at_commit || queue_changes_pending() || schedules_marked() ||
				dependencies_pending())
				ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
								errmsg("cannot PREPARE a transaction that has used tq"),
								errdetail("What a prepared transaction did to a queue could not be published when "
										  "another session commits it."),
								errhint("Use COMMIT.")));
			break;
		case XACT_EVENT_PREPARE:
			on_prepare();
			break;
		default: // parallel workers cannot run tq's functions; PREPARE is refused before
			break;
	}
}

void subxact_callback(SubXactEvent event, SubTransactionId sub, SubTransactionId parent, void *)
{
	for (int i = nrows; i-- > 0 && rows[i].sub >= sub;)
	{
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			rows[i].sub = parent;
		else if (event == SUBXACT_EVENT_ABORT_SUB)
			end_row(rows[--nrows].queue, false);
	}
	if (event == SUBXACT_EVENT_ABORT_SUB)
		wait_end(); // a cancelled wait may be caught
	if (event == SUBXACT_EVENT_COMMIT_SUB || event == SUBXACT_EVENT_ABORT_SUB)
	{
		end_sub_queue_changes(event == SUBXACT_EVENT_COMMIT_SUB, sub, parent);
		end_sub_admissions(event == SUBXACT_EVENT_COMMIT_SUB, sub, parent);
	}
	if (nops + nbulks == 0)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		// those of inner subtransactions were relabelled or undone before, so ours are the tail
		for (int i = nops; i-- > 0 && ops[i].sub == sub;)
			ops[i].sub = parent;
		for (int i = nbulks; i-- > 0 && bulks[i].sub == sub;)
			bulks[i].sub = parent;
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		TQ_WAIT_POINT_NOFAIL("savepoint-before-undo");
		while (nops > 0 && ops[nops - 1].sub >= sub)
		{
			const Op &op = ops[--nops];
			if (op.target >= 0)
			{
				undo_edit(op);
				continue;
			}
			if (op.verb == Verb::enqueue)
				--nenqueued;
			undo(*current_db(), op);
			if (op.prev_mark != Verb::none && op.prev_mark != Verb::claim && op.prev_owner == my_proc)
				if (Op *before = last_op_on(op.ref, op.id))
					before->more = false;
		}
		while (nbulks > 0 && bulks[nbulks - 1].sub >= sub)
			--nbulks;
	}
}

} // namespace

void register_callbacks()
{
	RegisterXactCallback(xact_callback, nullptr);
	RegisterSubXactCallback(subxact_callback, nullptr);
}

void mark_reload() noexcept { reload_at_commit = true; }

void mark_handlers_changed() noexcept { handlers_at_commit = true; }

uint32 owner_here() noexcept { return my_proc; }

void reserve_ops(int n) { grow(ops, ops_room, nops + n); }

Op &push_op(const Op &op) noexcept
{
	Assert(nops < ops_room);
	ops[nops] = op;
	ops[nops].sub = GetCurrentSubTransactionId();
	return ops[nops++];
}

int op_count() noexcept { return nops; }

void charge_only(int first, JobId id) noexcept
{
	for (int i = first; i < nops; ++i)
		if (ops[i].verb == Verb::claim)
			ops[i].charge = ops[i].id == id ? 3 : 0;
}

void note_wait(int index, Micros waited) noexcept
{
	if (ops[index].verb == Verb::claim && ops[index].prev_step == 1)
		ops[index].waited = std::max<Micros>(waited, 0);
}

void distrust(int first) noexcept
{
	for (int i = first; i < nops; ++i)
		ops[i].stale = ops[i].verb != Verb::enqueue && ops[i].verb != Verb::claim;
}

Op &last_op() noexcept { return ops[nops - 1]; }

void set_pending(const Op &op) noexcept
{
	lock_queue(op.queue);
	if (engine.is(engine.queue(op.queue), op.ref, op.id) && engine.entry(op.ref).owner == my_proc)
		engine.entry(op.ref).pending = op.to;
	unlock_queue(op.queue);
}

const char *keep_group_key(const text *key, bool by_itself)
{
	if (key == nullptr)
		return nullptr;
	if (bulk_mode && !by_itself)
		return "";
	const auto *bytes = VARDATA_ANY(key);
	const Size n = VARSIZE_ANY_EXHDR(key);
	// neighbours mostly share it
	if (last_group == nullptr || strlen(last_group) != n || memcmp(last_group, bytes, n) != 0)
		last_group = static_cast<char *>(memcpy(MemoryContextAllocZero(TopTransactionContext, n + 1), bytes, n));
	return last_group;
}

void note_enqueue(const Op *list, int n)
{
	const SubTransactionId sub = GetCurrentSubTransactionId();
	if (!bulk_mode && nenqueued + n > guc::publish_limit)
		go_bulk();
	if (bulk_mode)
	{
		for (int i = 0; i < n; ++i)
		{
			Op op = list[i];
			op.sub = sub;
			add_bulk(op);
		}
		return;
	}
	reserve_ops(n);
	for (int i = 0; i < n; ++i)
		push_op(list[i]);
	nenqueued += n;
}

bool use_queue(uint16_t queue)
{
	if (queue_closed_here(queue))
		return false;
	if (queue_used_here(queue))
		return true;
	grow(used_queues, used_room, nused + 1); // before it is counted: this may fail
	Queue &q = engine.queue(queue);
	q.users.fetch_add(1);
	std::atomic_thread_fence(std::memory_order_seq_cst);
	const bool open = q.state == core::QueueState::active || q.state == core::QueueState::creating ||
					  (q.state == core::QueueState::reserved && queue_created_here(queue));
	if (open)
		used_queues[nused++] = queue;
	else
		q.users.fetch_sub(1);
	return open;
}

bool queue_used_here(uint16_t queue) noexcept
{
	return std::find(used_queues, used_queues + nused, queue) != used_queues + nused;
}

void note_queue_row(uint16_t queue)
{
	grow(rows, rows_room, nrows + 1);
	lock_queue(queue);
	engine.queue(queue).writer = my_proc + 1;
	unlock_queue(queue);
	rows[nrows++] = Row{queue, GetCurrentSubTransactionId()};
}

Op *pending_enqueue(JobId id) noexcept
{
	for (int i = nenqueued > 0 ? nops : 0; i-- > 0;)
		if (ops[i].verb == Verb::enqueue && ops[i].id == id)
			return &ops[i];
	return nullptr;
}

Op &edit_enqueue(Op &enqueue, Verb verb) noexcept
{
	const auto index = static_cast<int32>(&enqueue - ops);
	Op before = enqueue;
	before.verb = verb;
	before.target = index;
	push_op(before);
	ops[index].edited = true;
	return ops[index];
}

bool has_bulks() noexcept { return nbulks > 0; }

Op &take_from_bulk(const Op &op)
{
	grow(bulks, bulks_room, nbulks + 1);
	reserve_ops(1);
	Bulk less{GetCurrentSubTransactionId(), op.queue, op.lane, op.segment, -1, op.due != core::kNever && !op.blocked ? -1 : 0,
			  core::kMaxKey, core::kNever, op.group != nullptr, op.blocked};
	bulks[nbulks++] = less;
	++nenqueued;
	return push_op(op);
}

bool asked_here(Ref ref, LeaseNo lease) noexcept
{
	for (int i = nops; i-- > 0;)
		if (ops[i].ref == ref && ops[i].lease == lease && is_ask(ops[i]))
			return true;
	return false;
}

Op *last_op_on(Ref ref, JobId id) noexcept
{
	for (int i = nops; i-- > 0;)
		if (ops[i].ref == ref && ops[i].id == id && ops[i].verb != Verb::enqueue && !is_ask(ops[i]))
			return &ops[i];
	return nullptr;
}

} // namespace tq::live
