// An executor's claims: like tq_claim, but bound to the process, with the attempt's timeout, and journalled by the
// same transaction.
//
// Regime: PG; may raise. Locks: queue locks, held only inside.
#include "handlers/claiming.hpp"

#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "handlers/calling.hpp"
#include "handlers/session.hpp"
#include "jobs/claims.hpp"
#include "processes/work_transaction.hpp"
#include "queues/policy.hpp"
#include "queues/rights.hpp"
#include "residency/bound_leases.hpp"
#include "shmem/leases.hpp"
#include "shmem/workers_table.hpp"

namespace tq
{

namespace
{

// The job's row as the handler gets it, in attempt_context.
Datum row_of(pg::RowValues &values, const pg::RowType &type)
{
	HeapTuple tuple = pg::form_row(type, values.values, values.nulls);
	const MemoryContext here = MemoryContextSwitchTo(self.attempt_context);
	const Datum row = heap_copy_tuple_as_datum(tuple, type.desc);
	MemoryContextSwitchTo(here);
	return row;
}

// The attempt ends when its timeout is over. The lease lasts a little longer, so that the executor can record the
// outcome. Without a timeout the lease lasts as long as the process.
void set_ends(const Claimed &c, const journal::JobRow &row, Micros mono, Attempt *a) noexcept
{
	const core::QueueSettings s = settings_of(c.queue);
	const Micros timeout = timeout_of(row.timeout, s).value;
	a->ends = core::kNever;
	if (timeout <= 0)
		return;
	a->ends = mono + timeout;
	lock_queue(c.queue);
	Queue &q = engine.queue(c.queue);
	if (engine.is(q, c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.set_limits(q, c.ref, 0, timeout + cancel_grace_of(s).value, mono);
	unlock_queue(c.queue);
}

} // namespace

bool claim(const WorkerContext &context, Handler *h, Attempt *a)
{
	MemoryContextReset(self.attempt_context);
	a->judgment = {};
	if (!begin_work(context, "tq: claiming"))
		return false;
	flush_this_transaction();
	ensure_loaded(*self.db);
	a->handler = h;
	const pg::RowType row_type = pg::row_of_type(job_type_in(context.extension_schema), kJobShape);
	check_function(context, a);
	TQ_WAIT_POINT("executor-before-claim");
	const Queue &q = engine.queue(h->queue);
	const uint32 generation = q.generation;
	std::atomic_thread_fence(std::memory_order_acquire);   // pairs with Engine::init_queue
	if (q.db != index_of(*self.db) || q.id != h->queue_id) // dropped meanwhile; another queue has the slot
	{
		end_work();
		return false;
	}
	char name[core::kNameMax];
	strlcpy(name, q.name, sizeof(name));
	require_right(*self.db, h->queue, name, kConsume);
	if (h->has_problem)
		write_problem(*self.db, *h, nullptr);

	core::ClaimTerms terms{};
	terms.owner = my_proc;
	terms.worker = own_slot(context);
	terms.lease_ms = static_cast<uint32>(kLongestLease / 1000);
	terms.default_lease_ms = terms.lease_ms;
	terms.default_timeout_ms = static_cast<uint32>(guc::timeout);
	terms.binding = core::Binding::session;
	terms.kinds = h->kinds;
	terms.nkinds = h->nkinds;
	terms.except = h->except && h->nkinds > 0;
	terms.wall = wall_now();
	terms.mono = mono_now();
	worker_seen(terms.worker, terms.wall, terms.mono);
	Claimed c;
	ensure_leases(*self.db);
	reserve_ops(1);
	ClaimBatch batch{.terms = terms, .first_op = op_count()};
	bool found = take_jobs(h->queue, generation, terms, 1, &c) == 1;
	if (found)
	{
		note_bound(c.queue, c.ref, c.id, c.lease);
		if (terms.worker != core::kNil)
			engine.worker(terms.worker).claimed.fetch_add(1, std::memory_order_relaxed);
		journal::JobRow row;
		pg::RowValues values;
		found = claimed_job(*self.db, &batch, c, &values, &row);
		if (found)
		{
			set_ends(c, row, terms.mono, a);
			TQ_WAIT_POINT("executor-before-claimed");
			journal_claim(*self.db, c);
			a->id = c.id;
			a->lease = c.lease;
			a->job = row_of(values, row_type);
			self.attempt_open = 1;
		}
	}
	end_work();
	if (found)
		TQ_WAIT_POINT("executor-after-claim");
	return found;
}

} // namespace tq
