// An executor's claims: as tq_claim, but bound to the process, with the attempt's timeout, and journalled by the same transaction.
//
// Regime: PG; may raise. Locks: queue locks, held only inside.
#include "workers/claiming.hpp"

#include "api/args.hpp"
#include "api/handle.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/bound_leases.hpp"
#include "live/claims.hpp"
#include "live/leases.hpp"
#include "live/policy.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/workers_table.hpp"
#include "workers/session.hpp"
#include "workers/transaction.hpp"

extern "C"
{
#include "utils/typcache.h"
}

namespace tq::workers
{

namespace
{

using live::engine;
using live::Micros;

// The row of the job as the handler gets it, in attempt_context.
Datum row_of(Datum *values, bool *nulls, Oid type)
{
	TupleDesc desc = lookup_rowtype_tupdesc_copy(type, -1);
	HeapTuple tuple = heap_form_tuple(desc, values, nulls);
	const MemoryContext here = MemoryContextSwitchTo(attempt_context);
	const Datum row = heap_copy_tuple_as_datum(tuple, desc);
	MemoryContextSwitchTo(here);
	return row;
}

// The attempt ends when its timeout is over; the lease goes on a little, so that what becomes of it is the executor's to say. Without a
// timeout it lasts as long as the process.
void set_ends(const live::Claimed &c, const journal::JobRow &row, Micros mono, Attempt *a) noexcept
{
	const core::QueueSettings s = live::settings_of(c.queue);
	const Micros timeout = live::timeout_of(row.timeout, s).value;
	a->ends = core::kNever;
	if (timeout <= 0)
		return;
	a->ends = mono + timeout;
	live::lock_queue(c.queue);
	live::Queue &q = engine.queue(c.queue);
	if (engine.is(q, c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.set_limits(q, c.ref, 0, timeout + live::cancel_grace_of(s).value, mono);
	live::unlock_queue(c.queue);
}

} // namespace

bool claim(const WorkerContext &context, Handler *h, Attempt *a)
{
	MemoryContextReset(attempt_context);
	if (!begin_work(context, "tq: claiming"))
		return false;
	flush_this_transaction();
	live::ensure_loaded(*executor_db);
	const Oid job_type = api::job_type_in(context.extension_schema);
	a->function = api::find_handler(h->function, job_type, &a->returns_void);
	TQ_WAIT_POINT("executor-before-claim");
	const live::Queue &q = engine.queue(h->queue);
	const uint32 generation = q.generation;
	std::atomic_thread_fence(std::memory_order_acquire);
	if (q.db != live::index_of(*executor_db) || q.id != h->queue_id) // dropped meanwhile, and the place is another's
	{
		end_work();
		return false;
	}
	char name[core::kNameMax];
	strlcpy(name, q.name, sizeof(name));
	live::require_right(*executor_db, h->queue, name, live::kConsume);
	if (h->has_problem)
		write_problem(*executor_db, *h, nullptr);

	core::Engine::ClaimTerms terms{};
	terms.owner = live::my_proc;
	terms.worker = live::worker_slot(*executor_db, executor_name);
	terms.lease_ms = static_cast<uint32>(api::kLongestLease / 1000);
	terms.default_lease_ms = terms.lease_ms;
	terms.default_timeout_ms = static_cast<uint32>(guc::timeout);
	terms.bound = true;
	terms.kinds = h->kinds;
	terms.nkinds = h->nkinds;
	terms.except = h->except && h->nkinds > 0;
	terms.wall = live::wall_now();
	terms.mono = live::mono_now();
	live::worker_seen(terms.worker, terms.wall, terms.mono);
	live::Claimed c;
	live::ensure_leases(*executor_db);
	live::reserve_ops(1);
	const int first_op = live::op_count();
	bool found = live::take_jobs(h->queue, generation, terms, 1, &c) == 1;
	if (found)
	{
		live::note_bound(c.queue, c.ref, c.id, c.lease);
		if (terms.worker != core::kNil)
			engine.worker(terms.worker).claimed.fetch_add(1, std::memory_order_relaxed);
		journal::Segment tables;
		if (!live::tables_at(*executor_db, c.segment, &tables))
			tables = journal::Segment{};
		journal::JobRow row;
		Datum values[live::kJobColumns] = {};
		bool nulls[live::kJobColumns] = {};
		found = live::claimed_job(*executor_db, c, first_op, terms, tables, values, nulls, &row);
		if (found)
		{
			set_ends(c, row, terms.mono, a);
			TQ_WAIT_POINT("executor-before-claimed");
			live::journal_claim(*executor_db, c);
			a->id = c.id;
			a->lease = c.lease;
			a->job = row_of(values, nulls, job_type);
			a->handler = h;
			attempt_open = 1;
		}
	}
	end_work();
	if (found)
		TQ_WAIT_POINT("executor-after-claim");
	return found;
}

} // namespace tq::workers
