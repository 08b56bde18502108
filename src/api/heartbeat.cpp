// tq_heartbeat, tq_heartbeat_many: a lease goes on. A change in memory under the queue's lock: no tuple, no
// WAL, no transaction id; but a checkpoint is journalled, by the caller's transaction like any other verb.
// Regime: PG; bad arguments raise, a lost lease does not. Locks: queue locks, one at a time.
#include "api/args.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/policy.hpp"
#include "live/progress.hpp"
#include "live/rights.hpp"
#include "live/verbs.hpp"
#include "live/workers_table.hpp"
#include "pg/errors.hpp"
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

// What a heartbeat comes with.
struct Beat
{
	core::JobId id;
	core::LeaseNo lease;
	core::Micros extend; // 0: by the lease's length
	const char *progress; // null: nothing to report
	Size progress_length;
	bool forget_progress;
};

struct Answer
{
	Action action = Action::lost;
	core::Micros ends = 0;	 // when the lease ends, by the wall clock
	core::Micros length = 0; // what it would get anew after a crash
	bool no_slot = false;	 // no room for the progress
};

// Queue lock held. Whoever knows the number holds the lease, in whatever session: a worker that does everything
// in one transaction can send heartbeats only through another connection. What another transaction is about to
// do to the job may yet be rolled back.
bool is_live(const core::Entry &e, core::LeaseNo lease) noexcept
{
	if (e.state != live::State::running || e.lease != lease || e.mark == live::Verb::lose)
		return false;
	if (e.has(core::kBound) && e.deadline == 0)
		return false; // its session is gone; the reaper is on its way
	return e.owner != live::my_proc || core::goes_on(e.mark);
}

// A pause that has run out may still be there: the scheduler takes it away within a second.
bool is_paused(const core::Queue &q, const core::Entry &e, core::Micros wall) noexcept
{
	return q.paused_until > wall || engine.lane(e.lane).paused_until > wall;
}

// Queue lock held.
void report(core::Entry &e, const Beat &beat, Answer *answer) noexcept
{
	if (beat.forget_progress)
		live::clear_progress(e);
	else if (beat.progress != nullptr)
		answer->no_slot = !live::set_progress(e, beat.progress, beat.progress_length);
}

// Lets the lease end no sooner than its length from now, unless heartbeats do not extend leases here. The
// deadline alone is raised: the reaper moves the entry in its tree when the old time comes.
Answer renew(uint16_t d, const Beat &beat, core::Micros wall, core::Micros mono) noexcept
{
	Answer answer;
	uint16_t queue = 0;
	const core::Ref ref = engine.find(d, beat.id, &queue);
	if (ref == core::kNil)
		return answer;
	uint32_t worker = core::kNil;
	live::lock_queue(queue);
	core::Entry &e = engine.entry(ref);
	const core::Queue &q = engine.queue(queue);
	if (engine.is(q, ref, beat.id) && is_live(e, beat.lease))
	{
		const core::Micros usual = static_cast<core::Micros>(e.lease_ms) * 1000;
		answer.length = usual;
		if (live::strict_timeout_of(q.settings).value == 0)
		{
			e.deadline = std::max(e.deadline, mono + (beat.extend != 0 ? beat.extend : usual));
			answer.length = e.deadline - mono;
		}
		const core::Micros end = e.has(core::kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline;
		answer.ends = wall + (end - mono);
		answer.action = e.has(core::kCancelAsked) ? Action::cancel
						: is_paused(q, e, wall)	  ? Action::quiet
												  : Action::run;
		worker = e.worker();
		report(e, beat, &answer);
	}
	live::unlock_queue(queue);
	if (worker != core::kNil)
	{
		live::worker_seen(worker, wall, mono);
		if (answer.action == Action::run && engine.worker(worker).draining.load(std::memory_order_relaxed))
			answer.action = Action::quiet;
	}
	return answer;
}

// Writes down how far the attempt has come. Its transaction holds the job until it ends, so that no other attempt
// begins before this one's checkpoint is known to have been kept or not. False if the lease is lost.
bool keep(live::Db &db, const Beat &beat, Jsonb *checkpoint, core::Micros wall, core::Micros length)
{
	live::reserve_ops(1);
	const int first_op = live::op_count();
	live::Op op;
	core::Entry e;
	op.to = live::State::running;
	const live::Hold hold = live::hold_lease(db, beat.id, beat.lease, live::Verb::checkpoint, &op, &e);
	if (hold == live::Hold::busy)
		live::raise_busy(beat.id);
	if (hold != live::Hold::ok)
		return false;
	live::last_op().event = journal::EventType::checkpoint;
	journal::EventRow row = live::event_of(e, journal::EventType::checkpoint, wall);
	row.lease_until = wall + length;
	row.bound = e.has(core::kBound);
	row.detail = checkpoint;
	TQ_WAIT_POINT("checkpoint-before-append");
	PG_TRY();
	{
		live::append_by_segment(db, &row, &e.segment, 1);
		TQ_WAIT_POINT("checkpoint-after-append");
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_UNIQUE_VIOLATION)
		{
			live::distrust(first_op);
			FlushErrorState();
			live::raise_hold(db, live::Hold::lost, beat.id, beat.lease);
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
	return true;
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

void progress_argument(FunctionCallInfo fcinfo, int i, Beat *beat)
{
	if (!given(fcinfo, i))
		return;
	Jsonb *progress = PG_GETARG_JSONB_P(i);
	const char *text = JsonbToCString(nullptr, &progress->root, static_cast<int>(VARSIZE(progress)));
	beat->progress_length = strlen(text);
	beat->forget_progress = strcmp(text, "null") == 0;
	beat->progress = text;
	if (beat->progress_length > live::kProgressMax)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("progress is too long"),
						errdetail("It has %zu bytes; the limit is %zu.", beat->progress_length, live::kProgressMax),
						errhint("Keep what the next attempt needs in a checkpoint.")));
}

Jsonb *checkpoint_argument(FunctionCallInfo fcinfo, int i)
{
	if (!given(fcinfo, i))
		return nullptr;
	require_writable("tq_heartbeat() with a checkpoint");
	Jsonb *checkpoint = PG_GETARG_JSONB_P(i);
	const Size limit = static_cast<Size>(guc::max_payload) * 1024;
	if (VARSIZE(checkpoint) > limit)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("checkpoint is too large"),
				 errdetail("It has %zu bytes; tq.max_payload is %zu.", static_cast<Size>(VARSIZE(checkpoint)), limit)));
	return checkpoint;
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// id, lease, extend, progress, checkpoint
TQ_FUNCTION(tq_heartbeat)
{
	Beat beat{};
	beat.id = id_required(fcinfo, 0, "id");
	beat.lease = id_required(fcinfo, 1, "lease");
	beat.extend = interval_or(fcinfo, 2, "extend", 0, 1000, kLongestLease);
	progress_argument(fcinfo, 3, &beat);
	Jsonb *checkpoint = checkpoint_argument(fcinfo, 4);
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	const core::Micros wall = live::wall_now();
	Answer answer;
	if (may_renew(db, beat.id))
		answer = renew(live::index_of(db), beat, wall, live::mono_now());
	if (checkpoint != nullptr && answer.action != Action::lost && !keep(db, beat, checkpoint, wall, answer.length))
		answer.action = Action::lost;
	if (answer.no_slot)
		ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("no room for the progress of job %lld",
																				static_cast<long long>(beat.id)),
						  errdetail("tq.max_progress (now %d) running jobs have reported theirs.", guc::max_progress),
						  errhint("Raise tq.max_progress and restart the server.")));
	Datum values[2] = {TimestampTzGetDatum(answer.ends), CStringGetTextDatum(name_of(answer.action))};
	bool nulls[2] = {answer.action == Action::lost, false};
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(row_type(), values, nulls)));
}

// ids, leases, extend
TQ_FUNCTION(tq_heartbeat_many)
{
	int n = 0, nleases = 0;
	Datum *ids = array_required(fcinfo, 0, "ids", INT8OID, &n);
	Datum *leases = array_required(fcinfo, 1, "leases", INT8OID, &nleases);
	same_length("ids", n, "leases", nleases);
	Beat beat{};
	beat.extend = interval_or(fcinfo, 2, "extend", 0, 1000, kLongestLease);
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	const uint16_t d = live::index_of(db);
	const core::Micros wall = live::wall_now(), mono = live::mono_now();
	for (int i = 0; i < n; ++i)
	{
		beat.id = DatumGetInt64(ids[i]);
		beat.lease = DatumGetInt64(leases[i]);
		Answer answer;
		if (may_renew(db, beat.id))
			answer = renew(d, beat, wall, mono);
		Datum values[2] = {ids[i], CStringGetTextDatum(name_of(answer.action))};
		bool nulls[2] = {};
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
	}
	return static_cast<Datum>(0);
}
