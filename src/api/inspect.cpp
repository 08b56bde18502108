// tq_get, tq_history: one job as it is now, and what has happened to it.
// Regime: PG; raises TQ004. Locks: the job's queue lock while its entry is copied; AccessShareLock on its
// segment's tables.
#include "api/args.hpp"
#include "api/names.hpp"
#include "api/policies.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/loader.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "pg/function.hpp"

namespace tq::api
{

namespace
{

using journal::EventRow;
using journal::EventType;
using live::engine;
using live::State;

// Everything known of a job.
struct Job
{
	bool has_entry; // the entry says how things are; else only the journal does
	core::Entry entry;
	journal::JobRow row;
	EventRow *events; // in step order
	int n;
	journal::Fold fold;
	bool readable; // the caller may see what is in it
};

// Copies the job's entry if that has the last word: not if it is being made, nor if this transaction has
// changed the job, since then the journal, with our own events, is ahead. A claim is no event, so it is taken
// from the entry, whosever it is; a checkpoint changes nothing else.
bool copy_entry(const live::Db &db, core::JobId id, core::Entry *out) noexcept
{
	uint16_t queue = 0;
	const core::Ref ref = engine.find(live::index_of(db), id, &queue);
	if (ref == core::kNil)
		return false;
	live::lock_queue(queue);
	const bool there = engine.is(engine.queue(queue), ref, id);
	if (there)
		*out = engine.entry(ref);
	live::unlock_queue(queue);
	if (!there || (out->state != State::ready && out->state != State::delayed && out->state != State::running))
		return false;
	const bool changed_here = out->owner == live::my_proc && !core::goes_on(out->mark);
	return !changed_here;
}

// Takes out the event that says that the job was moved from its segment; false if there is none.
bool take_moved(EventRow *events, int *n) noexcept
{
	EventRow *end = std::remove_if(events, events + *n, [](const EventRow &e) { return e.type == EventType::moved; });
	const bool moved = end != events + *n;
	*n = static_cast<int>(end - events);
	return moved;
}

// Adds the events of one segment to those in the list, both in step order. A job that was moved has its older
// ones twice.
void merge_events(Job *job, const EventRow *more, int n)
{
	auto *all = static_cast<EventRow *>(palloc(sizeof(EventRow) * static_cast<Size>(job->n + n + 1)));
	int a = 0, b = 0, k = 0;
	while (a < job->n || b < n)
	{
		const bool first = b == n || (a < job->n && job->events[a].step <= more[b].step);
		const EventRow &e = first ? job->events[a++] : more[b++];
		if (k == 0 || all[k - 1].step != e.step)
			all[k++] = e;
	}
	job->events = all;
	job->n = k;
}

// Any right on its queue lets one know of a job; what is in it shows only to those who may consume or monitor.
live::Access access_to(live::Db &db, int32 queue_id, bool *readable)
{
	const live::Rights &mine = live::rights(db);
	const uint16_t slot = live::queue_of_id(db, queue_id);
	const auto may = [&](uint8 any_of) noexcept {
		return slot != live::kNoQueue ? mine.may(engine.queue(slot), any_of) : mine.may(queue_id, any_of);
	};
	*readable = may(live::kMayRead);
	return may(live::kQueueRights) ? live::Access::granted : live::Access::unseen;
}

Job look_up(live::Db &db, core::JobId id, bool want_payload)
{
	Job job{};
	job.has_entry = copy_entry(db, id, &job.entry);
	TQ_WAIT_POINT("get-after-entry");
	// a snapshot from after that look, which also sees what this transaction has written
	if (live::op_count() > 0 || live::has_bulks())
		CommandCounterIncrement();
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	int slots[live::kMostSlots];
	const int nslots = live::slots_of_id(db, id, slots);
	bool found = false;
	for (int i = 0; i < nslots; ++i)
	{
		journal::Segment tables;
		ItemPointerData tid;
		journal::JobRow row;
		if (!live::tables_at(db, slots[i], &tables) ||
			!journal::find_job(tables, id, snapshot, want_payload, &row, &tid))
			continue;
		job.row = row;
		EventRow *events = nullptr;
		int n = journal::job_events(tables, id, snapshot, &events);
		found = !take_moved(events, &n); // else it is in segment 0, or has gone from there
		merge_events(&job, events, n);
	}
	UnregisterSnapshot(snapshot);
	const live::Access access = found ? access_to(db, job.row.queue_id, &job.readable) : live::Access::absent;
	if (access != live::Access::granted)
		live::raise_no_job(id);
	for (int i = 0; i < job.n; ++i)
		journal::fold_event(job.fold, job.events[i]);
	return job;
}

// One row under construction.
struct Row
{
	Datum values[26];
	bool nulls[26];
	int n;

	void add(Datum value, bool is_null = false)
	{
		nulls[n] = is_null;
		values[n++] = value;
	}
	void add_text(const char *s) { add(s != nullptr ? CStringGetTextDatum(s) : Datum{0}, s == nullptr); }
	void add_time(TimestampTz t) { add(TimestampTzGetDatum(t), !IS_VALID_TIMESTAMP(t)); } // nor is infinity shown
	void add_pointer(const void *p) { add(PointerGetDatum(p), p == nullptr); }
	void add_int(int32 i) { add(Int32GetDatum(i)); }
	void add_lease(core::LeaseNo lease) { add(Int64GetDatum(lease), lease == 0); }
};

// The last event that ended an attempt or the job with an outcome.
const EventRow *last_outcome(const Job &job) noexcept
{
	for (int i = job.n; i-- > 0;)
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

// When the job was to start, by its row or by what came after.
TimestampTz run_at(const Job &job) noexcept
{
	TimestampTz at = job.row.run_at;
	for (int i = 0; i < job.n; ++i)
		switch (job.events[i].type)
		{
			case EventType::override_:
				if (job.events[i].retry_at != journal::kNoTime)
					at = job.events[i].retry_at;
				break;
			case EventType::failed:
			case EventType::lost:
			case EventType::released:
			case EventType::retried:
				at = job.events[i].retry_at;
				break;
			default:
				break;
		}
	return at;
}

const Jsonb *last_checkpoint(const Job &job) noexcept
{
	for (int i = job.n; i-- > 0;)
		if (job.events[i].type == EventType::checkpoint)
			return job.events[i].detail;
	return nullptr;
}

Jsonb *json_of(const char *text)
{
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
}

void put_event(ReturnSetInfo *rs, const EventRow &e, bool readable)
{
	Row r{};
	r.add_int(e.step);
	r.add_time(e.at);
	r.add_text(name_of(e.type));
	r.add(Int32GetDatum(e.attempt), e.attempt < 0);
	r.add_text(e.worker != nullptr && e.worker[0] != '\0' ? e.worker : nullptr);
	r.add_time(e.claimed_at);
	r.add_time(e.retry_at);
	r.add_lease(e.lease);
	r.add_text(readable ? e.reason : nullptr);
	r.add_pointer(e.has_priority ? json_of(psprintf("{\"priority\": %d}", e.priority)) : readable ? e.detail : nullptr);
	tuplestore_putvalues(rs->setResult, rs->setDesc, r.values, r.nulls);
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_get)
{
	const core::JobId id = id_required(fcinfo, 0, "id");
	TupleDesc type = nullptr;
	if (get_call_result_type(fcinfo, nullptr, &type) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	const Job job = look_up(db, id, true);
	const core::Entry &e = job.entry;
	const core::Micros now = live::wall_now();
	core::Micros due = core::kNever;
	State state = live::state_of(live::candidate_of(job.row, ItemPointerData{}), job.fold, now, &due);
	if (job.has_entry)
	{
		state = e.state;
		due = e.timer;
	}
	const bool ended = !job.has_entry && job.fold.terminal();
	const bool running = !ended && state == State::running;
	const TimestampTz expires_at = job.fold.new_life ? journal::kNoTime : job.row.expires_at;
	const bool overdue = !ended && !running && live::is_overdue(job.has_entry ? e.attempt : job.fold.attempt, expires_at, now);
	const bool leased = running && job.has_entry;
	const uint16_t queue = live::queue_of_id(db, job.row.queue_id);
	const EventRow *outcome = job.readable ? last_outcome(job) : nullptr;
	const bool succeeded = ended && job.fold.state == journal::FoldState::succeeded;
	core::Micros lease_ends = running ? job.fold.lease_until : journal::kNoTime;
	if (leased)
		lease_ends = now + (e.has(core::kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline) -
					 live::mono_now();
	const char *worker = leased						  ? live::worker_name(e.worker())
						 : job.fold.worker[0] != '\0' ? job.fold.worker
													  : nullptr;

	const int32 priority = job.has_entry ? e.priority : job.fold.has_priority ? job.fold.priority : job.row.priority;
	Row r{};
	r.add(Int64GetDatum(id));
	r.add_text(queue != live::kNoQueue ? engine.queue(queue).name : nullptr);
	r.add_pointer(job.row.kind);
	r.add_text(ended ? name_of(job.fold.state) : overdue ? name_of(journal::FoldState::expired) : name_of(state));
	r.add_int(priority);
	r.add_int(job.has_entry ? e.attempt : job.fold.attempt);
	r.add_int(live::attempts_allowed(job.row.max_attempts, queue));
	r.add_pointer(job.readable ? job.row.payload : nullptr);
	r.add_pointer(job.readable ? job.row.headers : nullptr);
	r.add_time(!ended && state == State::delayed ? due : run_at(job));
	r.add_time(job.row.enqueued_at);
	r.add_time(leased ? e.claimed_at : job.fold.claimed_at);
	r.add_lease(leased ? e.lease : running ? job.fold.lease : 0);
	r.add_time(lease_ends);
	r.add_text(worker);
	r.add_time(ended ? job.fold.ended_at : journal::kNoTime);
	r.add_pointer(succeeded && outcome != nullptr ? outcome->detail : nullptr);
	r.add_text(!succeeded && outcome != nullptr ? outcome->reason : nullptr);
	r.add_pointer(job.readable ? last_checkpoint(job) : nullptr);
	r.add_pointer(job.readable ? job.row.group_key : nullptr);
	r.add_pointer(job.readable ? job.row.unique_key : nullptr);
	r.add_time(expires_at);
	r.add_pointer(job.readable ? job.row.tags : nullptr);
	r.add(Int64GetDatum(job.row.origin), job.row.origin == 0);
	r.add_pointer(policies_of(job.row, priority, queue));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(type), r.values, r.nulls)));
}

TQ_FUNCTION(tq_history)
{
	const core::JobId id = id_required(fcinfo, 0, "id");
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	Job job = look_up(db, id, false);
	const core::Entry &e = job.entry;
	if (job.has_entry && e.state == State::running)
	{
		// a claim reaches the journal later than memory, or with the event that ends it
		EventRow claim;
		claim.type = EventType::claimed;
		claim.step = e.step - 1 - e.after_claim;
		claim.at = claim.claimed_at = e.claimed_at;
		claim.attempt = e.attempt;
		claim.lease = e.lease;
		claim.worker = live::worker_name(e.worker());
		merge_events(&job, &claim, 1);
	}
	Row r{};
	r.add_int(0);
	r.add_time(job.row.enqueued_at);
	r.add_text("enqueued");
	r.add(Datum{0}, true);
	r.add(Datum{0}, true);
	r.add(Datum{0}, true);
	r.add_time(job.row.run_at);
	r.add(Datum{0}, true);
	r.add_text(job.row.origin != 0 ? psprintf("copy of job %lld", static_cast<long long>(job.row.origin))
								   : nullptr);
	r.add(Datum{0}, true);
	tuplestore_putvalues(rs->setResult, rs->setDesc, r.values, r.nulls);
	for (int i = 0; i < job.n; ++i)
		put_event(rs, job.events[i], job.readable);
	return static_cast<Datum>(0);
}
