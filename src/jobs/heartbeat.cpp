// tq_heartbeat, tq_heartbeat_many: extend a lease. A heartbeat changes memory under the queue's lock: no tuple, no WAL,
// no transaction id. A checkpoint is journalled by the caller's transaction, as with any other verb.
// Regime: PG; bad arguments raise, a lost lease does not. Locks: queue locks, one at a time.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/verbs.hpp"
#include "jobs/worker_leases.hpp"
#include "queues/policy.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "shmem/progress.hpp"
#include "shmem/workers_table.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

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

// The arguments of a heartbeat.
struct Beat
{
	core::JobId id;
	core::LeaseNo lease;
	core::Micros extend; // 0: the lease's length
	const char *progress; // null: nothing to report
	Size progress_length;
	bool forget_progress;
	uint32 worker; // the new holder; kNil: as before
	Oid role;		  // of the caller
	bool owns_worker; // the new holder is a worker of the caller's role
};

struct Answer
{
	Action action = Action::lost;
	core::Micros at = 0;	 // when it was extended, by the wall clock
	core::Micros ends = 0;	 // when the lease ends, by the wall clock
	core::Micros length = 0; // of the lease; after a restart of the server it lasts so long again
	bool no_slot = false;	 // no slot for the progress is free
	bool foreign = false;	 // a worker's own lease was to go to a worker of another role
};

// The caller holds the queue's lock. Any session may send the heartbeat: a worker that does all its work in one
// transaction needs another connection for it. The mark of another transaction, which may roll back, does not end the
// lease. The reaper's mark `lose` does, and so does the end of the attempt in this transaction.
bool is_live(const core::Entry &e, core::LeaseNo lease) noexcept
{
	if (e.state != State::running || e.lease != lease || e.mark == Verb::lose || engine.is_revoked(e))
		return false;
	return e.owner != my_proc || core::stays_running(e.mark);
}

// A pause may still be set after its end: the scheduler clears it within a second.
bool is_paused(const core::Queue &q, const core::Entry &e, core::Micros wall) noexcept
{
	return q.paused_until > wall || engine.lane(e.lane).paused_until > wall ||
		   (e.group != kNil && engine.group(e.group).own.paused_until > wall);
}

// The caller holds the queue's lock.
void report(core::Entry &e, const Beat &beat, Answer *answer) noexcept
{
	if (beat.forget_progress)
		clear_progress(e);
	else if (beat.progress != nullptr)
		answer->no_slot = !set_progress(e, beat.progress, beat.progress_length);
}

// Extends the lease to beat.extend or its usual length from now, unless the queue has a strict timeout. Never shortens
// it. Only the deadline in the entry changes: the reaper moves the entry in its tree when the old time comes.
Answer renew(uint16_t d, const Beat &beat) noexcept
{
	Answer answer;
	uint16_t queue = 0;
	const core::Ref ref = engine.find(d, beat.id, &queue);
	if (ref == core::kNil)
		return answer;
	uint32_t worker = core::kNil;
	lock_queue(queue);
	const core::Micros wall = wall_now(), mono = mono_now(); // under the lock, so the lease gets its full length
	core::Entry &e = engine.entry(ref);
	const core::Queue &q = engine.queue(queue);
	// If the leases of the new holder are being revoked, this one would end, too. So a later heartbeat renames it.
	const bool renamed =
		beat.worker != core::kNil && beat.worker != e.worker() &&
		!(e.has(core::kOfWorker) && beat.lease < engine.worker(beat.worker).revoked.load());
	const bool live = engine.is(q, ref, beat.id) && is_live(e, beat.lease);
	answer.foreign = live && renamed && e.has(core::kOfWorker) && !beat.owns_worker;
	if (live && !answer.foreign)
	{
		const core::Micros usual = static_cast<core::Micros>(e.lease_ms) * 1000;
		answer.length = usual;
		if (strict_timeout_of(q.settings).value == 0)
		{
			e.deadline = std::max(e.deadline, mono + (beat.extend != 0 ? beat.extend : usual));
			answer.length = e.deadline - mono;
		}
		answer.action = e.has(core::kCancelAsked) ? Action::cancel
						: is_paused(q, e, wall)	  ? Action::quiet
												  : Action::run;
		if (renamed)
			engine.change(engine.queue(queue), ref, [&beat](core::Entry &x) noexcept {
				x.set_worker(beat.worker);
				x.flags |= core::kHandedOver;
			});
		worker = e.worker();
		if (e.has(core::kOfWorker) && engine.worker(worker).role == beat.role)
			engine.worker(worker).until.store(core::kNever); // a sign of life: see worker_left()
		answer.at = wall;
		answer.ends = wall + (ends_at(q, e) - mono);
		report(e, beat, &answer);
	}
	unlock_queue(queue);
	if (worker != core::kNil)
	{
		worker_seen(worker, wall, mono);
		if (answer.action == Action::run && engine.worker(worker).draining.load(std::memory_order_relaxed))
			answer.action = Action::quiet;
	}
	return answer;
}

// Appends the checkpoint of an attempt. This transaction marks the job until it ends, so no other attempt begins before
// the checkpoint is committed or rolled back. False if the lease is lost.
bool append_checkpoint(Db &db, const Beat &beat, Jsonb *checkpoint, core::Micros wall, core::Micros length)
{
	reserve_ops(1);
	const int first_op = op_count();
	Op op;
	core::Entry e;
	op.to = State::running;
	const Marked marked = mark_leased(db, beat.id, beat.lease, Verb::checkpoint, &op, &e);
	if (marked == Marked::busy)
		raise_busy(beat.id);
	if (marked != Marked::ok)
		return false;
	last_op().event = journal::EventType::checkpoint;
	journal::EventRow row = event_of(e, journal::EventType::checkpoint, wall);
	row.lease_until = wall + length;
	row.binding = e.binding();
	row.detail = checkpoint;
	TQ_WAIT_POINT("checkpoint-before-append");
	append_or_distrust(
		db, {.rows = &row, .slots = &e.segment, .n = 1}, first_op,
		[](Db &on, const journal::EventRow &refused) {
			raise_unmarked(on, Marked::lost, refused.job_id, refused.lease);
		});
	TQ_WAIT_POINT("checkpoint-after-append");
	return true;
}

// Whether the caller may send heartbeats for the job. A job on whose queue the caller has no right counts as absent.
bool may_renew(Db &db, core::JobId id)
{
	const Access access = access_to_job(db, id, kConsume);
	if (access == Access::denied)
		raise_job_denied(id, kConsume);
	return access == Access::granted;
}

constexpr pg::ColumnSpec kBeat[] = {{"lease_expires_at", TIMESTAMPTZOID}, {"action", TEXTOID}};
constexpr pg::ColumnSpec kBeats[] = {{"id", INT8OID}, {"action", TEXTOID}};

// The row type of tq_heartbeat, cached because the function is called often.
const pg::RowType &row_type()
{
	static pg::RowType type;
	if (type.desc == nullptr)
		type = pg::made_row(pg::row_shape(kBeat));
	return type;
}

// Progress is stored as text. With short numbers the text is smaller than the jsonb, but at least a quarter of its
// size.
constexpr pg::SizeLimit kProgressLimit{kProgressMax * 16, nullptr};

void progress_argument(FunctionCallInfo fcinfo, int i, Beat *beat)
{
	if (!given(fcinfo, i))
		return;
	Jsonb *progress = jsonb_value(fcinfo, i, "progress", kProgressLimit);
	const char *text = JsonbToCString(nullptr, &progress->root, static_cast<int>(VARSIZE(progress)));
	beat->progress_length = strlen(text);
	beat->forget_progress = strcmp(text, "null") == 0;
	beat->progress = text;
	if (beat->progress_length > kProgressMax)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("progress is too long"),
						errdetail("It has %zu bytes; the limit is %zu.", beat->progress_length, kProgressMax),
						errhint("Keep what the next attempt needs in a checkpoint.")));
}

Jsonb *checkpoint_argument(FunctionCallInfo fcinfo, int i)
{
	if (!given(fcinfo, i))
		return nullptr;
	require_writable("tq_heartbeat() with a checkpoint");
	return jsonb_value(fcinfo, i, "checkpoint", payload_limit());
}

} // namespace

// id, lease, extend, progress, checkpoint, worker
TQ_FUNCTION(tq_heartbeat)
{
	Beat beat{};
	beat.id = id_required(fcinfo, 0, "id");
	beat.lease = id_required(fcinfo, 1, "lease");
	beat.extend = interval_or(fcinfo, 2, "extend", 0, 1000, kLongestLease);
	progress_argument(fcinfo, 3, &beat);
	Jsonb *checkpoint = checkpoint_argument(fcinfo, 4);
	const char *worker = PG_NARGS() > 5 ? text_or_null(fcinfo, 5, "worker") : nullptr; // 0.1.0 has no such argument
	if (worker != nullptr)
		check_name("worker", worker);
	Db &db = loaded_database(fcinfo);
	Answer answer;
	const bool may = may_renew(db, beat.id);
	beat.role = GetUserId();
	beat.worker = may && worker != nullptr ? worker_slot(db, worker, beat.role) : core::kNil;
	beat.owns_worker = beat.worker != core::kNil && owns_worker(db, worker);
	if (may)
		answer = renew(index_of(db), beat);
	if (answer.foreign)
		raise_foreign_worker(worker);
	if (may && worker != nullptr && beat.worker == core::kNil && answer.action != Action::lost)
		ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						  errmsg("the name of worker \"%s\" cannot be stored", worker),
						  errdetail("Job %lld keeps its former worker.", static_cast<long long>(beat.id)),
						  errhint("Raise tq.max_workers (now %d) and restart the server.", guc::max_workers)));
	if (checkpoint != nullptr && answer.action != Action::lost &&
		!append_checkpoint(db, beat, checkpoint, answer.at, answer.length))
		answer.action = Action::lost;
	if (answer.no_slot)
		ereport(WARNING, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						  errmsg("the progress of job %lld cannot be stored", static_cast<long long>(beat.id)),
						  errdetail("Other running jobs have all of tq.max_progress (now %d), or the share of a queue.",
									guc::max_progress),
						  errhint("Raise tq.max_progress and restart the server.")));
	Datum values[2] = {TimestampTzGetDatum(answer.ends), CStringGetTextDatum(name_of(answer.action))};
	bool nulls[2] = {answer.action == Action::lost, false};
	PG_RETURN_DATUM(pg::row_datum(row_type(), values, nulls));
}

// ids, leases, extend
TQ_FUNCTION(tq_heartbeat_many)
{
	int n = 0, nleases = 0;
	Datum *ids = array_required(fcinfo, 0, "ids", INT8OID, &n);
	Datum *leases = array_required(fcinfo, 1, "leases", INT8OID, &nleases);
	same_length("ids", n, "leases", nleases);
	Beat beat{};
	beat.worker = core::kNil;
	beat.role = GetUserId();
	beat.extend = interval_or(fcinfo, 2, "extend", 0, 1000, kLongestLease);
	Db &db = loaded_database(fcinfo);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kBeats));
	const uint16_t d = index_of(db);
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		beat.id = DatumGetInt64(ids[i]);
		beat.lease = DatumGetInt64(leases[i]);
		Answer answer;
		if (may_renew(db, beat.id))
			answer = renew(d, beat);
		Datum values[2] = {ids[i], CStringGetTextDatum(name_of(answer.action))};
		bool nulls[2] = {};
		rows.put(values, nulls);
		pfree(DatumGetPointer(values[1]));
	}
	return static_cast<Datum>(0);
}

} // namespace tq
