// tq_claim: takes jobs from memory and reads their rows; writes nothing.
// Regime: PG.
#include "api/args.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/loader.hpp"
#include "live/queue_settings.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "live/waiting.hpp"
#include "live/workers_table.hpp"
#include "live/xact.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"

extern "C"
{
#include "common/pg_prng.h"
}

namespace tq::api
{

namespace
{

using live::engine;

// How long a claim that does not wait stays for a queue whose next jobs are being read in.
constexpr core::Micros kBacklogWait = 250000;
// How soon a waiting claim of a worker that drains notices that it no longer does.
constexpr core::Micros kDrainingWait = 1000000;

struct Claimed
{
	core::Ref ref;
	core::JobId id;
	core::LeaseNo lease;
	ItemPointerData tid;
	uint16_t segment;
	uint16_t queue;
	uint16_t attempt;
	uint16_t max_attempts;
	int32 priority;
	core::Micros lasts; // until the lease ends, from the claim on
	bool has_checkpoint;
};

constexpr int kSetAside = 256; // expired jobs, at a time

core::Micros lasts(const core::Entry &e, core::Micros mono) noexcept
{
	return (e.has(core::kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline) - mono;
}

// For tq_explain: who has asked, and when. Queue lock held.
void note_asked(live::Queue &q, const core::Engine::ClaimTerms &terms) noexcept
{
	if (terms.nkinds == 0)
	{
		q.asked_at = terms.wall;
		return;
	}
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
		if (std::find(terms.kinds, terms.kinds + terms.nkinds, engine.lane(l).kind_hash) != terms.kinds + terms.nkinds)
			engine.lane(l).asked_at = terms.wall;
}

// Pops up to `max` jobs of one queue, unless its slot is another's by now; the operations were reserved.
int pop(uint16_t queue, uint32 generation, const core::Engine::ClaimTerms &terms, int max, Claimed *out) noexcept
{
	int n = 0;
	live::Queue &q = engine.queue(queue);
	live::lock_queue(queue);
	// the scheduler may be late with them, and then there may be many
	while (q.generation == generation && engine.set_aside(q, terms.wall, kSetAside) == kSetAside)
	{
		live::unlock_queue(queue);
		live::lock_queue(queue);
	}
	if (live::is_draining(terms.worker)) // asked under the lock, so that tq_drain knows of every job that was taken before
		max = 0;
	if (max > 0 && q.generation == generation)
		note_asked(q, terms);
	while (n < max && q.generation == generation)
	{
		const core::Ref r = engine.claim(q, terms);
		if (r == core::kNil)
			break;
		const core::Entry &e = engine.entry(r);
		live::Op op;
		op.verb = live::Verb::claim;
		op.ref = r;
		op.id = e.id;
		op.lease = e.lease;
		op.queue = queue;
		op.lane = e.lane;
		op.segment = e.segment;
		op.prev_step = e.step - 1;
		op.prev_attempt = e.attempt - 1;
		live::push_op(op);
		Claimed &c = out[n++];
		c.ref = r;
		c.id = e.id;
		c.lease = e.lease;
		ItemPointerSet(&c.tid, e.block, e.offset);
		c.segment = e.segment;
		c.queue = queue;
		c.attempt = e.attempt;
		c.max_attempts = e.max_attempts;
		c.priority = e.priority;
		c.lasts = lasts(e, terms.mono);
		c.has_checkpoint = e.has(core::kHasCheckpoint);
	}
	live::unlock_queue(queue);
	return n;
}

// The row of a claimed job was deleted by hand: nothing can be run, so the entry goes (R6).
void drop_gone(live::Db &db, const Claimed &c)
{
	live::lock_queue(c.queue);
	if (engine.is(engine.queue(c.queue), c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.drop(engine.queue(c.queue), c.ref, live::my_proc);
	live::unlock_queue(c.queue);
	db.rows_gone.fetch_add(1);
	// a recount may have left the row out already, so the counters are not ours to change
	db.reload.store(true);
	live::wake_scheduler(db);
	ereport(LOG, (errmsg("tq: the row of job %lld is gone; the job is dropped", static_cast<long long>(c.id)),
				  errhint("Rows of tq.job_* must not be deleted by hand; use tq_cancel or tq_purge.")));
}

// As journal::fetch_job, but an error is charged to this job alone.
bool fetch_charged(const journal::Segment &tables, ItemPointer tid, core::JobId id, int first_op, journal::JobRow *row)
{
	bool found = false;
	PG_TRY();
	{
		found = journal::fetch_job(tables, tid, id, true, row);
	}
	PG_CATCH();
	{
		live::charge_only(first_op, id);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return found;
}

// By a new snapshot: what the last attempt has kept may be younger than this statement's, which may have waited.
Jsonb *checkpoint_of(const journal::Segment &tables, core::JobId id)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	Jsonb *checkpoint = journal::last_checkpoint(tables, id, snapshot);
	UnregisterSnapshot(snapshot);
	return checkpoint;
}

// The job's own length of a lease, unless the claim asked for another, and of an attempt. Until the claim is committed its lease is not
// journalled, so nothing else has to know.
core::Micros apply_own(const Claimed &c, const journal::JobRow &row, const core::Engine::ClaimTerms &terms) noexcept
{
	const uint32 lease_ms =
		terms.lease_ms != 0 || row.lease <= 0 ? 0 : static_cast<uint32>(std::clamp<int64>(row.lease / 1000, 1, UINT32_MAX));
	if (lease_ms == 0 && row.timeout <= 0)
		return c.lasts;
	core::Micros left = c.lasts;
	live::Queue &q = engine.queue(c.queue);
	live::lock_queue(c.queue);
	const core::Entry &e = engine.entry(c.ref);
	if (engine.is(q, c.ref, c.id) && e.lease == c.lease && e.mark == live::Verb::claim)
	{
		engine.set_limits(q, c.ref, lease_ms, std::max<int64>(row.timeout, 0), terms.mono);
		left = lasts(e, terms.mono);
	}
	live::unlock_queue(c.queue);
	return left;
}

// Reads the rows and adds them to the result. Jobs of one segment are read together.
int emit(live::Db &db, const Claimed *claimed, int n, int first_op, const core::Engine::ClaimTerms &terms, ReturnSetInfo *rs)
{
	int rows = 0;
	journal::Segment tables{};
	int slot = -1;
	for (int i = 0; i < n; ++i)
	{
		const Claimed &c = claimed[i];
		if (slot != c.segment)
		{
			slot = c.segment;
			if (!live::tables_at(db, slot, &tables))
				tables = journal::Segment{};
		}
		journal::JobRow row;
		ItemPointerData tid = c.tid;
		if (!fetch_charged(tables, &tid, c.id, first_op, &row))
		{
			drop_gone(db, c);
			continue;
		}
		Datum values[12] = {};
		bool nulls[12] = {};
		values[0] = Int64GetDatum(c.id);
		values[1] = Int64GetDatum(c.lease);
		values[2] = CStringGetTextDatum(engine.queue(c.queue).name);
		nulls[3] = row.kind == nullptr;
		values[3] = PointerGetDatum(row.kind);
		values[4] = PointerGetDatum(row.payload);
		values[5] = Int32GetDatum(c.attempt);
		values[6] = Int32GetDatum(live::attempts_allowed(c.max_attempts, c.queue));
		Jsonb *checkpoint = c.has_checkpoint ? checkpoint_of(tables, c.id) : nullptr;
		nulls[7] = checkpoint == nullptr;
		values[7] = PointerGetDatum(checkpoint);
		nulls[8] = row.headers == nullptr;
		values[8] = PointerGetDatum(row.headers);
		values[9] = Int32GetDatum(c.priority);
		values[10] = TimestampTzGetDatum(row.enqueued_at);
		values[11] = TimestampTzGetDatum(terms.wall + apply_own(c, row, terms));
		live::note_wait(first_op + i, terms.wall - (row.run_at != journal::kNoTime ? std::max(row.run_at, row.enqueued_at) : row.enqueued_at));
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
		++rows;
	}
	return rows;
}

// Without a scheduler a claim fetches its lane's jobs from disk itself.
void refill_here(live::Db &db)
{
	if (db.scheduler.load() != 0)
		return;
	if (db.refill.exchange(false))
		live::refill(db);
	live::refill_timers(db);
	const core::Micros now = live::wall_now();
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		live::Queue &q = engine.queue(slot);
		if (q.state == core::QueueState::free || q.db != live::index_of(db) || q.next_due.load() > now)
			continue;
		int none = 0;
		live::lock_queue(slot);
		engine.fire_due(q, now, INT_MAX, 0, live::my_proc, nullptr, &none);
		live::unlock_queue(slot);
	}
}

struct Shares
{
	int order[core::kWaitersPerProc];
	int quota[core::kWaitersPerProc]; // by queue
};

// In which order a call goes through its queues, and how much of a batch is whose: in proportion to their weights. The order is drawn for
// each call, so that none has to remember the last one (weighted sampling without replacement: Efraimidis and Spirakis, 2006).
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

void parse_kinds(FunctionCallInfo fcinfo, int i, live::Filter *filter)
{
	filter->nkinds = 0;
	if (!given(fcinfo, i))
		return;
	int n = 0;
	Datum *kinds = array_required(fcinfo, i, "kinds", TEXTOID, &n);
	if (n == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("kinds must not be empty"),
						errhint("Leave it out to take jobs of every kind.")));
	if (n > static_cast<int>(lengthof(filter->kinds)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("kinds has more than %d elements",
																		  static_cast<int>(lengthof(filter->kinds)))));
	for (int k = 0; k < n; ++k)
	{
		const char *kind = TextDatumGetCString(kinds[k]);
		live::check_name("kind", kind);
		filter->kinds[filter->nkinds++] = core::hash_name(kind);
	}
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// queue(s), max_jobs, worker, lease_for, wait, kinds, bind_session
static Datum claim(FunctionCallInfo fcinfo, bool any)
{
	require_writable(any ? "tq_claim_any()" : "tq_claim()");
	uint16_t queues[core::kWaitersPerProc];
	uint32 generations[core::kWaitersPerProc];
	const char *names[core::kWaitersPerProc];
	int nqueues = 1;
	if (any)
	{
		Datum *list = array_required(fcinfo, 0, "queues", TEXTOID, &nqueues);
		if (nqueues < 1 || nqueues > static_cast<int>(lengthof(queues)))
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("queues must have 1 to %d elements",
																			  static_cast<int>(lengthof(queues)))));
		for (int i = 0; i < nqueues; ++i)
			names[i] = TextDatumGetCString(list[i]);
	}
	else
		names[0] = text_required(fcinfo, 0, "queue");
	const int32 max = int_or(fcinfo, 1, "max_jobs", 1, 1, guc::claim_batch_limit);
	const char *worker = text_or_null(fcinfo, 2);
	const core::Micros lease = interval_or(fcinfo, 3, "lease_for", 0, 1000, kLongestLease);
	// a waiting SELECT holds a snapshot
	const core::Micros wait = std::min(interval_or(fcinfo, 4, "wait", 0, 0), guc::max_pinned_wait * core::Micros{1000});
	live::Filter filter;
	parse_kinds(fcinfo, 5, &filter);
	const bool bind = given(fcinfo, 6) && PG_GETARG_BOOL(6);
	if (worker != nullptr)
		live::check_name("worker", worker);

	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	for (int i = 0; i < nqueues; ++i)
	{
		queues[i] = live::find_queue(db, names[i]);
		if (queues[i] == live::kNoQueue)
			queues[i] = live::queue_for_claim(db, names[i]);
		else
			live::require_right(db, queues[i], names[i], live::kConsume);
		generations[i] = engine.queue(queues[i]).generation;
	}
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);

	core::Engine::ClaimTerms terms{};
	terms.owner = live::my_proc;
	terms.worker = worker != nullptr ? live::worker_slot(db, worker) : core::kNil;
	terms.lease_ms = static_cast<uint32>(lease / 1000);
	terms.default_lease_ms = static_cast<uint32>(guc::lease);
	terms.default_timeout_ms = static_cast<uint32>(guc::timeout);
	terms.bound = bind;
	terms.kinds = filter.kinds;
	terms.nkinds = filter.nkinds;
	live::worker_seen(terms.worker, live::wall_now());
	auto *claimed = static_cast<Claimed *>(palloc(sizeof(Claimed) * static_cast<Size>(max)));
	core::Micros until = live::mono_now() + wait;
	bool backlog_awaited = false;
	Shares shares = share_out(queues, nqueues, max);
	for (;;)
	{
		int n = 0;
		live::reserve_ops(max);
		const int first_op = live::op_count();
		terms.wall = live::wall_now();
		terms.mono = live::mono_now();
		const bool draining = live::is_draining(terms.worker); // it may begin, and end, while we wait
		TQ_WAIT_POINT("claim-before-pop");
		if (!draining)
		{
			// each its share, then whoever has more
			for (int round = nqueues > 1 ? 0 : 1; round < 2; ++round)
				for (int k = 0; k < nqueues && n < max; ++k)
				{
					const int i = shares.order[k];
					const int want = round == 0 ? std::min(shares.quota[i], max - n) : max - n;
					n += pop(queues[i], generations[i], terms, want, claimed + n);
				}
			if (n == 0 && db.scheduler.load() == 0)
			{
				refill_here(db);
				for (int k = 0; k < nqueues && n < max; ++k)
					n += pop(queues[k], generations[k], terms, max - n, claimed + n);
			}
		}
		if (n > 0)
		{
			live::wait_end();
			TQ_WAIT_POINT("claim-after-pop");
			if (bind)
				for (int i = 0; i < n; ++i)
					live::note_bound(claimed[i].queue, claimed[i].ref, claimed[i].id, claimed[i].lease);
			if (terms.worker != core::kNil)
			{
				engine.worker(terms.worker).seen_at.store(terms.wall, std::memory_order_relaxed);
				engine.worker(terms.worker).claimed.fetch_add(n, std::memory_order_relaxed);
			}
			if (emit(db, claimed, n, first_op, terms, rs) > 0)
				break;
			continue;
		}
		if (wait == 0)
		{
			// nothing in memory, but jobs on disk that are on their way: not an empty queue
			if (backlog_awaited || draining || !live::has_backlog(queues, nqueues, filter))
				break;
			backlog_awaited = true;
			until = live::mono_now() + kBacklogWait;
		}
		if (draining)
		{
			// not registered, so that no job is offered to it
			live::wait_end();
			if (!live::wait_sleep(std::min(until, live::mono_now() + kDrainingWait)))
				break;
			continue;
		}
		live::wait_begin(queues, nqueues, filter);
		for (int k = 0; k < nqueues; ++k)
			live::check_still_there(queues[k], generations[k], names[k]);
		if (live::wait_check(queues, nqueues, filter))
			continue;
		if (!live::wait_sleep(until))
			break;
		AcceptInvalidationMessages();
		for (int k = 0; k < nqueues; ++k)
		{
			live::check_still_there(queues[k], generations[k], names[k]);
			live::require_right(db, queues[k], names[k], live::kConsume); // it may have been revoked meanwhile
		}
	}
	live::wait_end();
	return static_cast<Datum>(0);
}

TQ_FUNCTION(tq_claim) { return claim(fcinfo, false); }
TQ_FUNCTION(tq_claim_any) { return claim(fcinfo, true); }
