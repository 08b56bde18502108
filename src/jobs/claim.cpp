// tq_claim, tq_claim_any, tq_claim_for, tq_claim_next: claim jobs in memory and read their rows. A claim writes
// nothing in its transaction (R15); tq_claim_next first completes jobs.
// Regime: PG; may ereport. Locks: queue locks, one at a time.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "jobs/claim_arguments.hpp"
#include "jobs/claims.hpp"
#include "jobs/finish.hpp"
#include "jobs/verbs.hpp"
#include "jobs/worker_leases.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "residency/bound_leases.hpp"
#include "residency/loader.hpp"
#include "residency/skipped.hpp"
#include "segments/segments.hpp"
#include "shmem/asked_kinds.hpp"
#include "shmem/leases.hpp"
#include "shmem/waiting.hpp"
#include "shmem/workers_table.hpp"
#include "transaction/pending.hpp"
#include "pg/function.hpp"

extern "C"
{
#include "common/pg_prng.h"
}

namespace tq
{

namespace
{

// How long a claim without `wait` waits for the next jobs of its queue while they are being read from disk.
constexpr core::Micros kBacklogWait = 250000;
// How soon a waiting claim of a draining worker notices tq_undrain.
constexpr core::Micros kDrainingWait = core::kSecond;
// How soon a waiting claim tries again if the scheduler must end expired jobs of its queue first.
constexpr core::Micros kOverdueWait = 100000;

// The most jobs to claim under one hold of the queue's lock.
constexpr int kAtOnce = 1000;

// Claims up to `want` jobs of a queue. Reserves more lease numbers when they run out.
int take(Db &db, uint16_t queue, uint32 generation, core::ClaimTerms &terms, int want, Claimed *out)
{
	int n = 0;
	while (n < want)
	{
		const int some = std::min(want - n, kAtOnce);
		const int taken = take_jobs(queue, generation, terms, some, out + n);
		n += taken;
		if (leases_used_up(db))
			ensure_leases(db);
		else if (taken < some)
			break;
		CHECK_FOR_INTERRUPTS();
	}
	return n;
}

// The result of a call: rows of tq_job, or of a worker and a tq_job.
struct Output
{
	pg::RowSet rows;
	bool with_worker;
	pg::RowType job;
};

// Reads the rows of the claimed jobs and adds them to the result; returns how many. A row that was deleted by hand is
// left out (R6). Keeps one row at a time in memory.
int emit(Db &db, ClaimBatch *batch, const Claimed *claimed, int n, const Claimant *workers, const Output &out)
{
	int rows = 0;
	const MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(each);
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(each);
		journal::JobRow row;
		pg::RowValues values;
		if (!claimed_job(db, batch, claimed[i], &values, &row))
			continue;
		if (out.with_worker)
		{
			pg::RowValues outer;
			outer.add_text(workers[claimed[i].worker].name);
			outer.add(pg::row_datum(out.job, values.values, values.nulls));
			out.rows.put(outer);
		}
		else
			out.rows.put(values);
		++rows;
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	return rows;
}

// Without a scheduler (it is starting, or tq.workers is off) a claim does its work: reads jobs of its queues from disk,
// and makes due jobs ready.
void refill_without_scheduler(Db &db, const uint16_t *queues, int n)
{
	if (db.scheduler.load() != 0)
		return;
	for (int i = 0; i < n; ++i)
		ask_again(db, queues[i]); // lanes that found memory full; the scheduler does this every second
	read_skipped(db);
	if (db.refill.exchange(false))
		refill(db);
	refill_timers(db);
	const core::Micros now = wall_now();
	for_queues(db, [now](uint16_t slot, Queue &q) {
		if (q.next_due.load() > now)
			return;
		lock_queue(slot);
		engine.fire_due(q, now, INT_MAX);
		unlock_queue(slot);
	});
}

struct Shares
{
	int order[core::kWaitersPerProc];
	int quota[core::kWaitersPerProc]; // by index into the queues
};

// The order in which a call visits its queues, and each queue's share of the batch, in proportion to the queues'
// weights. The order is drawn for each call, so that no state is kept between calls (weighted sampling without
// replacement: Efraimidis and Spirakis, 2006).
Shares share_out(const uint16_t *queues, int n, int max) noexcept
{
	Shares s{};
	double weights[core::kWaitersPerProc] = {}, rank[core::kWaitersPerProc] = {}, sum = 0;
	if (n == 1)
	{
		s.quota[0] = max;
		return s;
	}
	for (int i = 0; i < n; ++i)
	{
		weights[i] = std::max<double>(engine.queue(queues[i]).settings.weight, 0.001);
		sum += weights[i];
		rank[i] = -std::log(1.0 - pg_prng_double(&pg_global_prng_state)) / weights[i];
		s.order[i] = i;
	}
	std::sort(s.order, s.order + n, [&rank](int a, int b) { return rank[a] < rank[b]; });
	for (int i = 0; i < n; ++i)
		s.quota[i] = std::max(static_cast<int>(weights[i] / sum * max), 1);
	return s;
}

constexpr ClaimPositions kClaim{0, 1, 2, 3, 4, 5, 6, 7, -1, false, false};
constexpr ClaimPositions kClaimAny{0, 1, 2, 3, 4, 5, 6, 7, -1, true, false};
constexpr ClaimPositions kClaimFor{0, 2, 1, 3, 4, 5, 6, 7, -1, true, true};
constexpr ClaimPositions kClaimNext{0, 4, 5, 6, -1, 7, 8, 9, 1, false, false};

// A call of one of the functions. The first `nqueues` names are of queues that exist. The call looks for the others
// before each sleep.
struct Call : ClaimArguments
{
	Db *db;
	Oid extension;
	uint16_t queues[core::kWaitersPerProc];
	uint32 generations[core::kWaitersPerProc];
	int nqueues;
	Wanted wanted[core::kWaitersPerProc]; // the queues, for shmem/waiting.hpp
	Shares shares;
	Claimed *claimed; // capacity `max`
	core::Micros until;
	bool draining; // all its workers, at the last attempt
	bool begun;	   // an attempt has been made
	bool waited;   // it has registered as a waiter
	bool backlog_awaited; // it has waited for jobs that are being read from disk; a call does so once
};

// Looks for the queues that were missing so far; true if there is one.
bool find_queues(Call *c)
{
	const int before = c->nqueues;
	for (int i = before; i < c->nnames; ++i)
	{
		const uint16_t queue = queue_for_claim(*c->db, c->names[i]);
		if (queue == kNoQueue)
			continue;
		const int at = c->nqueues++;
		std::swap(c->names[at], c->names[i]);
		c->queues[at] = queue;
		c->generations[at] = generation_of(*c->db, queue, c->names[at]);
		c->wanted[at] = Wanted{queue, c->filter.nkinds, c->filter.kinds};
	}
	if (c->nqueues > before)
		c->shares = share_out(c->queues, c->nqueues, c->each);
	return c->nqueues > before;
}

// Tells a draining worker without jobs, at the first attempt of a call, why it gets none. The drain may have been meant
// for an earlier process with the same name.
void note_draining(const Call &c)
{
	const Claimant &w = c.workers[0];
	if (!c.begun && c.draining && c.nworkers == 1 && engine.worker(w.slot).running.load() == 0)
		ereport(NOTICE, (errmsg("worker \"%s\" is draining, so its claims get no jobs", w.name),
						 errhint("Call tq_undrain(%s) to end that.", quote_literal_cstr(w.name))));
}

// Prepares an attempt to claim jobs. Returns where its operations begin in the transaction's list
// (transaction/pending.hpp).
int begin_attempt(Call *c)
{
	ensure_leases(*c->db);
	reserve_ops(c->max);
	claims_here().held_back = claims_here().overdue = false;
	const int first_op = op_count();
	read_clocks(c->terms);
	c->draining = true;
	for (Claimant *w = c->workers; w < c->workers + c->nworkers; ++w)
	{
		// looked up for each attempt: the registry evicts the name of a worker that waits for hours
		const bool own = c->terms.binding == core::Binding::worker;
		w->slot = w->name != nullptr ? worker_slot(*c->db, w->name, GetUserId(), own) : core::kNil;
		if (own)
			begin_worker_claim(*c->db, w->name, w->slot);
		worker_seen(w->slot, c->terms.wall, c->terms.mono);
		w->draining = is_draining(w->slot);
		w->was_draining = c->begun ? w->was_draining : w->draining;
		c->draining = c->draining && w->draining;
	}
	note_draining(*c);
	c->begun = true;
	TQ_WAIT_POINT("claim-before-pop");
	return first_op;
}

// Claims up to c->each jobs of the queues for a worker; returns how many. `from`: how many jobs the workers before have
// got.
int take_for(Call *c, int worker, int from)
{
	int n = 0;
	Claimed *const out = c->claimed + from;
	c->terms.worker = c->workers[worker].slot;
	for (int k = 0; guc::claim_own && k < c->nqueues && n < c->each; ++k)
		n += take_own_jobs(*c->db, c->queues[k], c->terms, c->each - n, out + n);
	const auto take_from = [&](int i, int want) {
		n += take(*c->db, c->queues[i], c->generations[i], c->terms, want, out + n);
	};
	if (c->nqueues > 1) // first each queue gives its share, then any queue fills the rest
		for (int k = 0; k < c->nqueues && n < c->each; ++k)
			take_from(c->shares.order[k], std::min(c->shares.quota[c->shares.order[k]], c->each - n));
	for (int k = 0; k < c->nqueues && n < c->each; ++k)
		take_from(c->shares.order[k], c->each - n);
	for (int i = 0; i < n; ++i)
		out[i].worker = worker;
	return n;
}

// Claims up to c->max jobs, worker by worker; returns how many.
int take_batch(Call *c)
{
	int n = 0;
	for (int i = 0; i < c->nworkers; ++i)
	{
		if (c->nworkers > 1) // an order of its own, or all workers would get the same queues first
			c->shares = share_out(c->queues, c->nqueues, c->each);
		n += take_for(c, i, n);
	}
	for (int k = 0; c->filter.nkinds > 0 && k < c->nqueues; ++k)
		note_asked_kinds(c->queues[k], c->generations[k], c->kinds, c->filter.nkinds);
	return n;
}

int take_or_refill(Call *c)
{
	const int n = take_batch(c);
	if (n > 0 || c->db->scheduler.load() != 0)
		return n;
	refill_without_scheduler(*c->db, c->queues, c->nqueues);
	read_clocks(c->terms); // the refill may have waited, and own jobs may be due by now
	return take_batch(c);
}

// Returns whether there is a row: the rows of all the jobs may be missing.
bool emit_batch(const Call &c, int n, int first_op, const Output &out)
{
	wait_end();
	TQ_WAIT_POINT("claim-after-pop");
	if (c.terms.binding == core::Binding::session)
		for (int i = 0; i < n; ++i)
			note_bound(c.claimed[i].queue, c.claimed[i].ref, c.claimed[i].id, c.claimed[i].lease);
	for (int i = 0; i < n; ++i)
	{
		const uint32 slot = c.workers[c.claimed[i].worker].slot;
		if (slot == core::kNil)
			continue;
		worker_seen(slot, c.terms.wall, c.terms.mono);
		engine.worker(slot).claimed.fetch_add(1, std::memory_order_relaxed);
	}
	ClaimBatch batch{.terms = c.terms, .first_op = first_op};
	const bool any_rows = emit(*c.db, &batch, c.claimed, n, c.workers, out) > 0;
	journal_first(*c.db, c.claimed, n);
	TQ_WAIT_POINT("claim-after-read");
	return any_rows;
}

// Whether one of the workers has begun to drain since the call began.
bool begins_to_drain(const Call &c) noexcept
{
	return std::any_of(c.workers, c.workers + c.nworkers,
					   [](const Claimant &w) noexcept { return !w.was_draining && is_draining(w.slot); });
}

// Registers for the names of queues that do not exist. tq_drain wakes the waiters of queues. A call for which no queue
// exists also registers for the names of its workers, which tq_drain wakes, too.
void wait_for_missing(const Call &c)
{
	for (int k = c.nqueues; k < c.nnames; ++k)
		wait_for_name(*c.db, c.names[k]);
	for (int i = 0; i < c.nworkers && c.nqueues == 0; ++i)
		if (c.workers[i].name != nullptr)
			wait_for_name(*c.db, c.workers[i].name);
}

// Waits until there may be jobs; false if the call's time is over.
bool wait_for_jobs(Call *c)
{
	if (c->wait == 0)
	{
		// no job is in memory, but some are being read from disk, so the queue is not empty
		if (c->backlog_awaited || c->draining || !has_backlog(c->wanted, c->nqueues))
			return false;
		c->backlog_awaited = true;
		c->until = steady_now() + kBacklogWait;
	}
	if (c->draining)
	{
		// not registered as a waiter, so that no job is offered to it
		wait_end();
		return wait_sleep(std::min(c->until, steady_now() + kDrainingWait));
	}
	c->waited = true;
	wait_begin(c->wanted, c->nqueues, c->worker_bits);
	wait_for_missing(*c);
	// before it registered, tq_drain could not wake this session
	if (begins_to_drain(*c))
		return false;
	if (find_queues(c))
		return true; // if the next attempt gets no jobs, it registers for these, too
	for (int k = 0; k < c->nqueues; ++k)
		check_still_there(c->queues[k], c->generations[k], c->names[k]);
	const bool overdue = claims_here().overdue;
	if (!overdue && wait_check(c->wanted, c->nqueues))
		return true;
	if (!wait_sleep(overdue ? std::min(c->until, steady_now() + kOverdueWait) : c->until))
		return false;
	AcceptInvalidationMessages();
	require_still_active(*c->db, c->extension);
	for (int k = 0; k < c->nqueues; ++k)
	{
		const bool may = has_right(*c->db, c->queues[k], kConsume); // it may have been revoked meanwhile
		check_still_there(c->queues[k], c->generations[k], c->names[k], may);
		if (!may)
			require_right(*c->db, c->queues[k], c->names[k], kConsume);
	}
	return true;
}

Output begin_result(FunctionCallInfo fcinfo, const ClaimPositions &at)
{
	Output out{};
	out.with_worker = at.many_workers;
	if (!at.many_workers)
	{
		out.rows = pg::begin_rows(fcinfo, kJobShape);
		return out;
	}
	const Oid job = pg::result_column_type(fcinfo, "job");
	const pg::ColumnSpec columns[] = {{"worker", TEXTOID}, {"job", job}};
	out.rows = pg::begin_rows(fcinfo, pg::row_shape(columns));
	out.job = pg::row_of_type(job, kJobShape);
	return out;
}

} // namespace

static Datum claim(FunctionCallInfo fcinfo, const char *function, const ClaimPositions &at)
{
	require_writable(function);
	Call c{};
	parse_claim(fcinfo, at, &c);
	c.db = &database(fcinfo);
	c.extension = c.db->extension;
	c.terms.owner = my_proc; // known since database()
	ensure_loaded(*c.db);
	const Output out = begin_result(fcinfo, at);
	if (at.completed >= 0)
	{
		check_name("queue", c.names[0]);
		complete_jobs(fcinfo, at.completed, *c.db);
	}
	static_cast<void>(find_queues(&c));
	c.claimed = static_cast<Claimed *>(palloc(sizeof(Claimed) * static_cast<Size>(c.max)));
	c.until = steady_now() + c.wait;
	for (bool goes_on = true; goes_on;)
	{
		const int first_op = begin_attempt(&c);
		if (c.waited && begins_to_drain(c)) // tq_drain has woken it
			break;
		// a draining worker gets nothing, but the attempt records its name for tq_explain
		const int n = c.draining ? take_batch(&c) : take_or_refill(&c);
		if (n > 0)
			goes_on = !emit_batch(c, n, first_op, out);
		else // a job that wants to be alone is held back until the transaction ends, so waiting is in vain
			goes_on = leases_used_up(*c.db) || (!claims_here().held_back && wait_for_jobs(&c));
	}
	wait_end();
	return static_cast<Datum>(0);
}

TQ_FUNCTION(tq_claim) { return claim(fcinfo, "tq_claim()", kClaim); }
TQ_FUNCTION(tq_claim_any) { return claim(fcinfo, "tq_claim_any()", kClaimAny); }
TQ_FUNCTION(tq_claim_for) { return claim(fcinfo, "tq_claim_for()", kClaimFor); }
TQ_FUNCTION(tq_claim_next) { return claim(fcinfo, "tq_claim_next()", kClaimNext); }

} // namespace tq
