// tq_claim: takes jobs from memory and reads their rows; writes nothing.
// Regime: PG.
#include "api/args.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/bound_leases.hpp"
#include "live/claims.hpp"
#include "live/leases.hpp"
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

using live::Claimed;
using live::engine;

// How long a claim that does not wait stays for a queue whose next jobs are being read in.
constexpr core::Micros kBacklogWait = 250000;
// How soon a waiting claim of a worker that drains notices that it no longer does.
constexpr core::Micros kDrainingWait = 1000000;

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
		Datum values[live::kJobColumns] = {};
		bool nulls[live::kJobColumns] = {};
		if (!live::claimed_job(db, c, first_op, terms, tables, values, nulls, &row))
			continue;
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
		++rows;
	}
	return rows;
}

// Without a scheduler a claim fetches its lanes' jobs from disk itself.
void refill_here(live::Db &db, const uint16_t *queues, int n)
{
	if (db.scheduler.load() != 0)
		return;
	for (int i = 0; i < n; ++i)
		live::ask_again(db, queues[i]); // nor is there anybody who does so every second
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

void read_clocks(core::Engine::ClaimTerms *terms) noexcept
{
	terms->wall = live::wall_now();
	terms->mono = live::mono_now();
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
		generations[i] = live::generation_of(db, queues[i], names[i]);
	}
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);

	core::Engine::ClaimTerms terms{};
	terms.owner = live::my_proc;
	terms.lease_ms = static_cast<uint32>(lease / 1000);
	terms.default_lease_ms = static_cast<uint32>(guc::lease);
	terms.default_timeout_ms = static_cast<uint32>(guc::timeout);
	terms.bound = bind;
	terms.kinds = filter.kinds;
	terms.nkinds = filter.nkinds;
	auto *claimed = static_cast<Claimed *>(palloc(sizeof(Claimed) * static_cast<Size>(max)));
	core::Micros until = live::steady_now() + wait;
	bool backlog_awaited = false;
	Shares shares = share_out(queues, nqueues, max);
	for (;;)
	{
		int n = 0;
		live::ensure_leases(db);
		live::reserve_ops(max);
		const int first_op = live::op_count();
		read_clocks(&terms);
		terms.worker = worker != nullptr ? live::worker_slot(db, worker) : core::kNil; // one that waits for hours is forgotten
		live::worker_seen(terms.worker, terms.wall, terms.mono);
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
					n += live::take_jobs(queues[i], generations[i], terms, want, claimed + n);
				}
			if (n == 0 && db.scheduler.load() == 0)
			{
				refill_here(db, queues, nqueues);
				read_clocks(&terms); // that may have waited, and leases begin now
				for (int k = 0; k < nqueues && n < max; ++k)
					n += live::take_jobs(queues[k], generations[k], terms, max - n, claimed + n);
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
				live::worker_seen(terms.worker, terms.wall, terms.mono);
				engine.worker(terms.worker).claimed.fetch_add(n, std::memory_order_relaxed);
			}
			const bool any_rows = emit(db, claimed, n, first_op, terms, rs) > 0;
			TQ_WAIT_POINT("claim-after-read");
			if (any_rows)
				break;
			continue;
		}
		if (live::leases_used_up(db))
			continue;
		if (wait == 0)
		{
			// nothing in memory, but jobs on disk that are on their way: not an empty queue
			if (backlog_awaited || draining || !live::has_backlog(queues, nqueues, filter))
				break;
			backlog_awaited = true;
			until = live::steady_now() + kBacklogWait;
		}
		if (draining)
		{
			// not registered, so that no job is offered to it
			live::wait_end();
			if (!live::wait_sleep(std::min(until, live::steady_now() + kDrainingWait)))
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
