#include "commit/transaction_end.hpp"

#include "commit/publish.hpp"
#include "dependencies/awaited.hpp"
#include "jobs/changes.hpp"
#include "processes/slots.hpp"
#include "queues/enqueue_limits.hpp"
#include "queues/lanes.hpp"
#include "queues/used_queues.hpp"
#include "residency/loader.hpp"
#include "shmem/grant_changes.hpp"
#include "shmem/waiting.hpp"
#include "transaction/bulks.hpp"
#include "transaction/config_changes.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

// Jobs that this transaction changes, from PRE_COMMIT until it has published or undone the changes. Counts tolerate
// differences up to the sum over all transactions (Db::committing).
int64 committing = 0;

void note_committing()
{
	committing = op_count() + bulk_jobs();
	if (committing > 0)
		current_db()->committing.fetch_add(committing);
}

void forget()
{
	if (committing > 0)
		current_db()->committing.fetch_sub(committing);
	committing = 0;
	forget_ops();
	forget_used_queues();
	forget_config();
	forget_grants();
	forget_changes();
}

// Whether there are enough operations to time their publishing.
bool many() noexcept { return op_count() >= 1000 || has_bulks(); }

// Separate functions in the library, for scripts/check_callbacks: nothing that they call may fail.
pg_noinline void on_commit() noexcept
{
	const bool now_active = database_change_here(QueueEdit::used);
	end_queue_rows(true);
	commit_queue_changes();
	if (now_active)
		request_check(MyDatabaseId);
	// tq_wait in a procedure ends its transactions while it is registered; it registers again.
	wait_end();
	if (op_count() > 0 || has_bulks())
	{
		Db &db = *current_db();
		const Micros began = many() ? steady_now() : 0;
		TQ_WAIT_POINT_NOFAIL("commit-before-publish");
		LWLockAcquire(map_lock(db), LW_SHARED);
		const Counting counting = counting_of(db, GetTopFullTransactionIdIfAny());
		for (Op *op = pending_ops(), *end = op + op_count(); op < end; ++op)
			publish(db, *op, counting);
		TQ_WAIT_POINT_NOFAIL("commit-half-published");
		publish_bulks(db, counting);
		LWLockRelease(map_lock(db));
		if (many())
			core::raise_to(db.longest_publish, steady_now() - began);
		TQ_WAIT_POINT_NOFAIL("commit-after-publish");
	}
	note_after_commit();
	end_dependencies();
	end_enqueue_charges(); // the rest: jobs that were cancelled, or replaced others
	leave_queues();
	leave_lanes(false);
	announce_config();
	publish_grants();
	announce_changes();
	forget();
}

// Undoing changes no counter of live jobs, so it needs no map lock.
pg_noinline void on_abort() noexcept
{
	end_queue_rows(false);
	wait_end();
	if (op_count() > 0)
		TQ_WAIT_POINT_NOFAIL("abort-before-undo");
	for (int i = op_count(); i-- > 0;)
		undo(*current_db(), pending_ops()[i]);
	end_dependencies();
	end_enqueue_charges();
	leave_queues();
	leave_lanes(true);
	abort_queue_changes();
	forget();
}

// XACT_EVENT_PRE_PREPARE has refused all transactions with changes, so this one publishes nothing.
pg_noinline void on_prepare() noexcept
{
	wait_end();
	end_dependencies();
	end_enqueue_charges();
	leave_queues();
	leave_lanes(false);
	abort_queue_changes(); // none is left, but their memory goes with the transaction
	forget();
}

// A job that must be in memory may lack a slot for its group. Frees slots of other groups until it gets one. A slot
// that is free afterwards may have been freed by another process.
void register_or_fail(Db &db, Op &op)
{
	constexpr int kTries = 10;
	const Queue &q = engine.queue(op.queue);
	int tries = 0;
	while (!register_enqueue(db, op))
		if (engine.changes_left(q) == 0 || op.enqueue.group == nullptr ||
			(engine.has_free_group(q) ? ++tries == kTries : !evict_group_slot(&q)))
			ereport(
				ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no room in memory for job %lld", static_cast<long long>(op.id)),
				 errdetail("A job whose time or priority was changed stays in memory. "
						   "Its queue or its database has used up its share of such jobs."),
				 errhint("Raise tq.max_live_jobs or, for jobs of groups, tq.max_groups and restart the server.")));
}

void xact_callback(XactEvent event, void *)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (enqueues_pending())
			{
				for (Op *op = pending_ops(), *end = op + op_count(); op < end; ++op)
					if (op->verb == Verb::enqueue && op->ref == kNil && op->to != State::terminal &&
						op->to != State::blocked)
						register_or_fail(*current_db(), *op);
				TQ_WAIT_POINT("precommit-registered");
			}
			await_before_commit();
			note_committing();
			break;
		case XACT_EVENT_COMMIT:
			on_commit();
			break;
		case XACT_EVENT_ABORT:
			on_abort();
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (op_count() > 0 || queue_rows_pending() || has_bulks() || config_marked() ||
				queue_changes_pending() || grants_noted() || dependencies_pending())
				ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
								errmsg("cannot PREPARE a transaction that has used tq"),
								errdetail("What a prepared transaction did to a queue could not be published when "
										  "another session commits it."),
								errhint("Use COMMIT.")));
			break;
		case XACT_EVENT_PREPARE:
			on_prepare();
			break;
		default: // parallel workers cannot run tq's functions
			break;
	}
}

void subxact_callback(SubXactEvent event, SubTransactionId sub, SubTransactionId parent, void *)
{
	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	const bool commit = event == SUBXACT_EVENT_COMMIT_SUB;
	end_sub_queue_rows(commit, sub, parent);
	if (!commit)
	{
		wait_end(); // the caller may catch the error of a cancelled wait
		end_grants_of(); // an error may have skipped the call that follows begin_grants_of()
	}
	end_sub_queue_changes(commit, sub, parent);
	end_sub_enqueue_charges(commit, sub, parent);
	end_sub_bulks(commit, sub, parent);
	if (commit)
	{
		relabel_ops(sub, parent);
		return;
	}
	if (op_count() > 0)
		TQ_WAIT_POINT_NOFAIL("savepoint-before-undo");
	while (const Op *op = pop_op_of(sub))
	{
		undo(*current_db(), *op);
		// The operation before it on the job is the last one again (Op::more). A claim never has `more`.
		if (op->prev.mark != Verb::none && op->prev.mark != Verb::claim && op->prev.owner == my_proc)
			if (Op *before = last_op_on(op->ref, op->id))
				before->more = false;
	}
}

} // namespace

void register_callbacks()
{
	RegisterXactCallback(xact_callback, nullptr);
	RegisterSubXactCallback(subxact_callback, nullptr);
}

} // namespace tq
