// tq_heartbeat, tq_heartbeat_many: a lease goes on. A change in memory under the queue's lock: no tuple, no
// WAL, no transaction id. Regime: PG; bad arguments raise, a lost lease does not. Locks: queue locks, one at a
// time.
#include "api/args.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "pg/function.hpp"

namespace tq::api
{

namespace
{

using live::engine;

enum class Action : uint8
{
	run,
	cancel,
	quiet,
	lost,
};

const char *name_of(Action action) noexcept
{
	switch (action)
	{
		case Action::run:
			return "run";
		case Action::cancel:
			return "cancel";
		case Action::quiet:
			return "quiet";
		case Action::lost:
			break;
	}
	return "lost";
}

// Queue lock held. Whoever knows the number holds the lease, in whatever session: a worker that does everything
// in one transaction can send heartbeats only through another connection. What another transaction is about to
// do to the job may yet be rolled back.
bool is_live(const core::Entry &e, core::LeaseNo lease) noexcept
{
	if (e.state != live::State::running || e.lease != lease || e.mark == live::Verb::lose)
		return false;
	if (e.has(core::kBound) && e.deadline == 0)
		return false; // its session is gone; the reaper is on its way
	const bool ours = e.mark != live::Verb::none && e.owner == live::my_proc;
	return !ours || e.mark == live::Verb::claim;
}

// Lets the lease end no sooner than `extend` from now (0: its length). `ends` receives when it ends by the wall
// clock. The deadline alone is raised: the reaper moves the entry in its tree when the old time comes.
Action renew(uint16_t d, core::JobId id, core::LeaseNo lease, core::Micros extend, core::Micros wall,
			 core::Micros mono, core::Micros *ends) noexcept
{
	uint16_t queue = 0;
	const core::Ref ref = engine.find(d, id, &queue);
	if (ref == core::kNil)
		return Action::lost;
	Action action = Action::lost;
	uint32_t worker = core::kNil;
	live::lock_queue(queue);
	core::Entry &e = engine.entry(ref);
	if (engine.is(engine.queue(queue), ref, id) && is_live(e, lease))
	{
		const core::Micros length = extend != 0 ? extend : static_cast<core::Micros>(e.lease_ms) * 1000;
		e.deadline = std::max(e.deadline, mono + length);
		const core::Micros end = e.has(core::kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline;
		*ends = wall + (end - mono);
		worker = e.worker();
		action = e.has(core::kCancelAsked) ? Action::cancel : e.has(core::kQuiet) ? Action::quiet : Action::run;
	}
	live::unlock_queue(queue);
	if (worker != core::kNil)
	{
		core::Worker &w = engine.worker(worker);
		w.seen_at.store(wall, std::memory_order_relaxed);
		if (action == Action::run && w.draining.load(std::memory_order_relaxed))
			action = Action::quiet;
	}
	return action;
}

// May the caller send heartbeats for the job? What is none of its business has no lease of its own.
bool may_renew(live::Db &db, core::JobId id)
{
	const live::Access access = live::access_to_job(db, id, live::kConsume);
	if (access == live::Access::denied)
		live::raise_job_denied(id, live::kConsume);
	return access == live::Access::granted;
}

// The type of tq_heartbeat's row, which is always the same: made once per session, without a look into the
// catalogs.
TupleDesc row_type()
{
	static TupleDesc type = nullptr;
	if (type == nullptr)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		TupleDesc made = CreateTemplateTupleDesc(2);
		TupleDescInitEntry(made, 1, "lease_expires_at", TIMESTAMPTZOID, -1, 0);
		TupleDescInitEntry(made, 2, "action", TEXTOID, -1, 0);
		type = BlessTupleDesc(made);
		MemoryContextSwitchTo(old);
	}
	return type;
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// id, lease, extend, progress, checkpoint
TQ_FUNCTION(tq_heartbeat)
{
	const core::JobId id = id_required(fcinfo, 0, "id");
	const core::LeaseNo lease = id_required(fcinfo, 1, "lease");
	const core::Micros extend = interval_or(fcinfo, 2, "extend", 0, 1000, kLongestLease);
	refuse(fcinfo, 3, "progress");
	refuse(fcinfo, 4, "checkpoint");
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	core::Micros ends = 0;
	Action action = Action::lost;
	if (may_renew(db, id))
		action = renew(live::index_of(db), id, lease, extend, live::wall_now(), live::mono_now(), &ends);
	Datum values[2] = {TimestampTzGetDatum(ends), CStringGetTextDatum(name_of(action))};
	bool nulls[2] = {action == Action::lost, false};
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(row_type(), values, nulls)));
}

// ids, leases, extend
TQ_FUNCTION(tq_heartbeat_many)
{
	int n = 0, nleases = 0;
	Datum *ids = array_required(fcinfo, 0, "ids", INT8OID, &n);
	Datum *leases = array_required(fcinfo, 1, "leases", INT8OID, &nleases);
	same_length("ids", n, "leases", nleases);
	const core::Micros extend = interval_or(fcinfo, 2, "extend", 0, 1000, kLongestLease);
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	const uint16_t d = live::index_of(db);
	const core::Micros wall = live::wall_now(), mono = live::mono_now();
	for (int i = 0; i < n; ++i)
	{
		core::Micros ends = 0;
		Action action = Action::lost;
		if (may_renew(db, DatumGetInt64(ids[i])))
			action = renew(d, DatumGetInt64(ids[i]), DatumGetInt64(leases[i]), extend, wall, mono, &ends);
		Datum values[2] = {ids[i], CStringGetTextDatum(name_of(action))};
		bool nulls[2] = {};
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
	}
	return static_cast<Datum>(0);
}
