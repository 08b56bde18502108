// tq_get, tq_history: the current state of one job, and its history. tq_outcomes: states and results of many.
// Regime: PG; raises TQ004. Locks: the job's queue lock while its entry is copied; AccessShareLock on its segment's
// tables.
#include "guc.hpp"
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/policies.hpp"
#include "jobs/verbs.hpp"
#include "queues/policy.hpp"
#include "queues/rights.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

using journal::EventRow;
using journal::EventType;

// All data on a job.
struct JobView
{
	bool has_entry; // the entry shows the current state; otherwise only the journal does
	core::Entry entry;
	journal::JobRow row;
	pg::Array<EventRow> events; // in step order
	journal::Fold fold;
	bool readable; // the caller may see its contents
};

struct JobOutcome
{
	const char *name; // of the state; null: no such job
	State state;	  // of a job that has not ended
	bool ended;
	core::Micros due; // of a delayed job
	TimestampTz expires_at;
	Jsonb *result;
	const char *error;
};

// Removes the event of the job's move from its segment; false if there is none.
bool take_moved(pg::Array<EventRow> *events) noexcept
{
	EventRow *end =
		std::remove_if(events->begin(), events->end(), [](const EventRow &e) { return e.type == EventType::moved; });
	const bool moved = end != events->end();
	events->n = end - events->begin();
	return moved;
}

// Merges the events of one segment into the list, both in step order. A moved job has its older events in both
// segments.
void merge_events(JobView *job, const EventRow *more, int64 n)
{
	pg::Array<EventRow> all;
	int64 a = 0, b = 0;
	while (a < job->events.n || b < n)
	{
		const bool first = b == n || (a < job->events.n && job->events[a].step <= more[b].step);
		const EventRow &e = first ? job->events[a++] : more[b++];
		if (all.n == 0 || all.last().step != e.step)
			all.append(CurrentMemoryContext, e);
	}
	job->events = all;
}

// With a right of kMayKnow on its queue, the caller may know of a job. Only a caller that may consume or inspect sees
// its contents.
Access access_to(Db &db, int32 queue_id, bool *readable)
{
	const Rights &mine = rights_on(db, queue_id);
	const uint16_t slot = queue_of_id(db, queue_id);
	const bool known = slot != kNoQueue;
	*readable = known ? mine.may_read(engine.queue(slot)) : mine.may_read(queue_id);
	const bool seen = known ? mine.may(engine.queue(slot), kMayKnow) : mine.may(queue_id, kMayKnow);
	return seen ? Access::granted : Access::unseen;
}

// False if there is no such job, or the caller may not know of it.
bool find_job_view(Db &db, core::JobId id, bool want_payload, JobView *out)
{
	JobView &job = *out;
	job = JobView{};
	job.has_entry = copy_current_entry(db, id, &job.entry);
	TQ_WAIT_POINT("get-after-entry");
	// take the snapshot after the entry was copied; it also sees what this transaction has written
	if (op_count() > 0 || has_bulks())
		CommandCounterIncrement();
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool found = false;
	find_in_segments(db, id, [&](const journal::Segment &tables, int) {
		ItemPointerData tid;
		journal::JobRow row;
		if (!(want_payload ? journal::find_shown_job(tables, id, snapshot, &row, &tid)
						   : journal::find_job(tables, id, snapshot, false, &row, &tid)))
			return false;
		job.row = row;
		pg::Array<EventRow> events = journal::job_events(tables, id, snapshot);
		found = !take_moved(&events); // a moved job is in segment 0, or was deleted there
		merge_events(&job, events.data, events.n);
		return false;
	});
	UnregisterSnapshot(snapshot);
	if (!found || access_to(db, job.row.queue_id, &job.readable) != Access::granted)
		return false;
	for (const EventRow &e : job.events)
		journal::fold_event(job.fold, e);
	return true;
}

JobView look_up(Db &db, core::JobId id, bool want_payload)
{
	JobView job;
	if (!find_job_view(db, id, want_payload, &job))
		raise_no_job(id);
	return job;
}

constexpr pg::ColumnSpec kGet[] = {
	{"id", INT8OID},
	{"queue", TEXTOID},
	{"kind", TEXTOID},
	{"state", TEXTOID},
	{"priority", INT4OID},
	{"attempt", INT4OID},
	{"max_attempts", INT4OID},
	{"payload", JSONBOID},
	{"headers", JSONBOID},
	{"run_at", TIMESTAMPTZOID},
	{"enqueued_at", TIMESTAMPTZOID},
	{"claimed_at", TIMESTAMPTZOID},
	{"lease", INT8OID},
	{"lease_expires_at", TIMESTAMPTZOID},
	{"worker", TEXTOID},
	{"finished_at", TIMESTAMPTZOID},
	{"result", JSONBOID},
	{"error", TEXTOID},
	{"checkpoint", JSONBOID},
	{"group_key", TEXTOID},
	{"unique_key", TEXTOID},
	{"expires_at", TIMESTAMPTZOID},
	{"tags", TEXTARRAYOID},
	{"origin", INT8OID},
	{"policies", JSONBOID},
};
constexpr pg::ColumnSpec kOutcomes[] = {{"id", INT8OID}, {"state", TEXTOID}, {"result", JSONBOID}, {"error", TEXTOID}};
constexpr pg::ColumnSpec kHistory[] = {
	{"step", INT4OID},	 {"at", TIMESTAMPTZOID},		 {"event", TEXTOID},		   {"attempt", INT4OID},
	{"worker", TEXTOID}, {"claimed_at", TIMESTAMPTZOID}, {"retry_at", TIMESTAMPTZOID}, {"lease", INT8OID},
	{"reason", TEXTOID}, {"detail", JSONBOID},
};

// The last event that ended an attempt or the job with an outcome.
const EventRow *last_outcome(const JobView &job) noexcept
{
	for (int64 i = job.events.n; i-- > 0;)
		switch (job.events[i].type)
		{
			case EventType::succeeded:
			case EventType::failed:
			case EventType::lost:
			case EventType::dead:
			case EventType::buried:
			case EventType::cancelled:
			case EventType::expired:
			case EventType::purged:
				return &job.events[i];
			default:
				break;
		}
	return nullptr;
}

// The planned start of the job, from its row and later events.
TimestampTz run_at(const JobView &job) noexcept
{
	TimestampTz at = job.row.run_at;
	for (const EventRow &e : job.events)
		switch (e.type)
		{
			case EventType::override_:
				if (e.retry_at != journal::kNoTime)
					at = e.retry_at;
				break;
			case EventType::failed:
			case EventType::lost:
			case EventType::released:
			case EventType::retried:
			case EventType::blocked:
				at = e.retry_at;
				break;
			default:
				break;
		}
	return at;
}

const Jsonb *last_checkpoint(const JobView &job) noexcept
{
	for (int64 i = job.events.n; i-- > 0;)
		if (job.events[i].type == EventType::checkpoint)
			return job.events[i].detail;
	return nullptr;
}

Jsonb *json_of(const char *text) { return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text))); }

void put_event(const pg::RowSet &rows, const EventRow &e, bool readable)
{
	pg::RowValues r;
	r.add_int(e.step);
	r.add_time(e.at);
	r.add_text(name_of(e.type));
	r.add(Int32GetDatum(e.attempt), e.attempt < 0);
	r.add_name(e.worker);
	r.add_time(e.claimed_at);
	r.add_time(e.retry_at);
	r.add(Int64GetDatum(e.lease), e.lease == 0);
	r.add_text(readable ? e.reason : nullptr);
	r.add_pointer(e.has_priority ? json_of(psprintf("{\"priority\": %d}", e.priority)) : readable ? e.detail : nullptr);
	rows.put(r);
}

} // namespace

// What is shown of a job as its state, its end and its outcome.
static JobOutcome outcome_of(const JobView &job, core::Micros now)
{
	JobOutcome o{};
	core::Micros due = core::kNever;
	o.state = job.has_entry ? job.entry.state : state_of(candidate_of(job.row, ItemPointerData{}), job.fold, now, &due);
	o.due = job.has_entry ? job.entry.timer : due;
	o.ended = !job.has_entry && job.fold.terminal();
	o.expires_at = job.fold.expires_at(job.row.expires_at);
	const bool overdue = !o.ended && o.state != State::running &&
						 is_overdue(job.has_entry ? job.entry.attempt : job.fold.attempt, o.expires_at, now);
	o.name = o.ended ? name_of(job.fold.state) : overdue ? name_of(journal::FoldState::expired) : name_of(o.state);
	const EventRow *last = job.readable ? last_outcome(job) : nullptr;
	const bool succeeded = o.ended && job.fold.state == journal::FoldState::succeeded;
	o.result = succeeded && last != nullptr ? last->detail : nullptr;
	o.error = !succeeded && last != nullptr ? last->reason : nullptr;
	return o;
}

TQ_FUNCTION(tq_get)
{
	const core::JobId id = id_required(fcinfo, 0, "id");
	const pg::RowType type = pg::returned_row(fcinfo, pg::row_shape(kGet));
	Db &db = loaded_database(fcinfo);
	const JobView job = look_up(db, id, true);
	const core::Entry &e = job.entry;
	const core::Micros now = wall_now();
	const JobOutcome outcome = outcome_of(job, now);
	const bool running = !outcome.ended && outcome.state == State::running;
	const bool leased = running && job.has_entry;
	const uint16_t queue = queue_of_id(db, job.row.queue_id);
	core::Micros lease_ends = running ? job.fold.lease_until : journal::kNoTime;
	if (leased)
		lease_ends = now + ends_at(engine.queue(e.queue), e) - mono_now();
	const char *worker = leased ? worker_name(e.worker()) : job.fold.worker[0] != '\0' ? job.fold.worker : nullptr;

	const int32 priority = job.has_entry ? e.priority : job.fold.has_priority ? job.fold.priority : job.row.priority;
	pg::RowValues r;
	r.add_int8(id);
	r.add_text(queue != kNoQueue ? engine.queue(queue).name : nullptr);
	r.add_pointer(job.row.kind);
	r.add_text(outcome.name);
	r.add_int(priority);
	r.add_int(job.has_entry ? e.attempt : job.fold.attempt);
	r.add_int(attempts_allowed(job.row.max_attempts, queue));
	r.add_pointer(job.readable ? job.row.payload : nullptr);
	r.add_pointer(job.readable ? job.row.headers : nullptr);
	r.add_time(!outcome.ended && outcome.state == State::delayed ? outcome.due : run_at(job));
	r.add_time(job.row.enqueued_at);
	r.add_time(leased ? e.claimed_at : job.fold.claimed_at);
	const core::LeaseNo lease = leased ? e.lease : running ? job.fold.lease : 0;
	r.add(Int64GetDatum(lease), lease == 0);
	r.add_time(lease_ends);
	r.add_text(worker);
	r.add_time(outcome.ended ? job.fold.ended_at : journal::kNoTime);
	r.add_pointer(outcome.result);
	r.add_text(outcome.error);
	r.add_pointer(job.readable ? last_checkpoint(job) : nullptr);
	r.add_pointer(job.readable ? job.row.group_key : nullptr);
	r.add_pointer(job.readable ? job.row.unique_key : nullptr);
	r.add_time(outcome.expires_at);
	r.add_pointer(job.readable ? job.row.tags : nullptr);
	r.add(Int64GetDatum(job.row.origin), job.row.origin == 0);
	r.add_pointer(policies_of(job.row, priority, outcome.expires_at, queue));
	PG_RETURN_DATUM(pg::row_datum(type, r.values, r.nulls));
}

// ids
TQ_FUNCTION(tq_outcomes)
{
	int n = 0;
	const Datum *ids = array_required(fcinfo, 0, "ids", INT8OID, &n);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kOutcomes));
	Db &db = loaded_database(fcinfo);
	const MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq job", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(each);
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(each);
		const core::JobId id = DatumGetInt64(ids[i]);
		JobView job;
		JobOutcome outcome{};
		if (find_job_view(db, id, false, &job))
			outcome = outcome_of(job, wall_now());
		pg::RowValues r;
		r.add_int8(id);
		r.add_text(outcome.name);
		r.add_pointer(outcome.result);
		r.add_text(outcome.error);
		rows.put(r);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	return static_cast<Datum>(0);
}

// Claims write nothing, so only memory knows how many were rolled back since the last that was not.
static void put_rollbacks(const pg::RowSet &rows, const core::Entry &e)
{
	pg::RowValues r;
	r.add_int(e.step);
	r.add_time(e.claimed_at);
	r.add_text("rolled back");
	r.add_int(e.attempt + 1);
	r.add_null();
	r.add_time(e.claimed_at);
	r.add_time(e.state == State::delayed ? e.timer : journal::kNoTime);
	r.add_null();
	r.add_text(
		e.aborts == 1
			? "1 transaction that had claimed the job was rolled back"
			: psprintf("%d transactions that had claimed the job were rolled back, one after the other", e.aborts));
	r.add_null();
	rows.put(r);
}

TQ_FUNCTION(tq_history)
{
	const core::JobId id = id_required(fcinfo, 0, "id");
	Db &db = loaded_database(fcinfo);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kHistory));
	JobView job = look_up(db, id, false);
	const core::Entry &e = job.entry;
	if (job.has_entry && e.state == State::running)
	{
		// the journal may not have the claim yet, or gets it only with the event that ends the attempt
		EventRow claim;
		claim.type = EventType::claimed;
		claim.step = e.step - 1 - e.after_claim;
		claim.at = claim.claimed_at = e.claimed_at;
		claim.attempt = e.attempt;
		claim.lease = e.lease;
		claim.worker = worker_name(e.worker());
		merge_events(&job, &claim, 1);
	}
	pg::RowValues r;
	r.add_int(0);
	r.add_time(job.row.enqueued_at);
	r.add_text("enqueued");
	r.add_null();
	r.add_null();
	r.add_null();
	r.add_time(job.row.run_at);
	r.add_null();
	r.add_text(job.row.origin != 0 ? psprintf("copy of job %lld", static_cast<long long>(job.row.origin)) : nullptr);
	r.add_null();
	rows.put(r);
	for (const EventRow &event : job.events)
		put_event(rows, event, job.readable);
	if (job.has_entry && e.aborts > 0 && e.state != State::running)
		put_rollbacks(rows, e);
	return static_cast<Datum>(0);
}

} // namespace tq
