// The functions of a lease holder: complete, fail, release, bury, and their batch forms.
// Regime: PG.
#include "jobs/finish.hpp"

#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/jobs_ended.hpp"
#include "jobs/verbs.hpp"
#include "queues/follow_up_setting.hpp"
#include "queues/policy.hpp"
#include "queues/rights.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

extern "C"
{
#include "common/pg_prng.h"
}

namespace tq
{

namespace
{

// The arguments of a verb for one job, and the result.
struct Finish
{
	core::JobId id;
	core::LeaseNo lease;
	Verb verb;
	const char *reason = nullptr; // error, reason
	Jsonb *detail = nullptr;
	core::Micros delay = -1; // release; fail: -1 = by the retry policy
	bool fatal = false;
	bool trusted = false; // the claim has already checked the caller's rights
	// outcome
	Marked marked = Marked::ok;
	bool unseen = false; // the caller has no right on the job's queue
	const char *state = nullptr;
};

core::Micros policy_delay(Db &db, const core::Entry &e)
{
	return core::retry_delay(retry_of(own_retry(db, e), settings_of(e.queue)), e.attempt,
							 pg_prng_uint64(&pg_global_prng_state));
}

// For callers that may not consume from every queue. A job on whose queue the caller has no right counts as absent.
void check_rights(Db &db, Finish *list, int n)
{
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		switch (access_to_job(db, list[i].id, kConsume))
		{
			case Access::denied:
				raise_job_denied(list[i].id, kConsume);
			case Access::unseen:
				list[i].unseen = true;
				break;
			default:
				break;
		}
	}
}

// Marks the jobs with a live lease, then appends their events.
void finish(Db &db, Finish *list, int n)
{
	auto *rows = static_cast<journal::EventRow *>(palloc(sizeof(journal::EventRow) * static_cast<Size>(n)));
	auto *slots = static_cast<uint16_t *>(palloc(sizeof(uint16_t) * static_cast<Size>(n)));
	if (!list->trusted && !has_right_everywhere(db, kConsume))
		check_rights(db, list, n);
	reserve_ops(n);
	const int first_op = op_count();
	const core::Micros now = wall_now();
	int k = 0;
	bool followed = false;
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		Finish &f = list[i];
		Op op;
		core::Entry e;
		op.to = State::terminal;
		f.marked = f.unseen ? Marked::not_found : mark_leased(db, f.id, f.lease, f.verb, &op, &e);
		if (f.marked != Marked::ok)
			continue;
		journal::EventType type = journal::EventType::succeeded;
		core::Micros delay = -1;
		switch (f.verb)
		{
			case Verb::fail:
				if (f.fatal || (e.attempt >= attempts_allowed(e.max_attempts, e.queue)))
				{
					type = journal::EventType::dead;
					f.state = "dead";
				}
				else
				{
					type = journal::EventType::failed;
					delay = f.delay >= 0 ? f.delay : policy_delay(db, e);
				}
				break;
			case Verb::release:
				type = journal::EventType::released;
				delay = f.delay;
				break;
			case Verb::bury:
				type = journal::EventType::buried;
				f.state = "buried";
				break;
			default:
				f.state = "succeeded";
				break;
		}
		// the entry shows a request by this transaction only after the commit
		const bool asked = e.has(core::kCancelAsked) || (e.after_claim > 0 && cancel_requested_here(e.id, f.lease));
		const bool superseded =
			delay >= 0 && (e.has(core::kSuperseded) || (e.after_claim > 0 && superseded_here(e.id)));
		if ((f.verb == Verb::fail || f.verb == Verb::release) && (asked || superseded))
		{
			// A job that was asked to stop and did not succeed ends as cancelled, even after its last attempt. So does
			// a superseded job that would wait for another attempt.
			type = journal::EventType::cancelled;
			delay = -1;
			f.state = "cancelled";
		}
		// mark_leased has noted the operation last; now add the fields that depend on the entry
		Op &noted = last_op();
		noted.event = type;
		followed = followed || may_follow(e, type);
		journal::EventRow &row = rows[k];
		row = event_of(e, type, now);
		row.reason = f.reason;
		row.detail = f.detail;
		if (delay >= 0)
		{
			noted.to = delay > 0 ? State::delayed : State::ready;
			noted.due = delay > 0 ? now + delay : core::kNever;
			row.retry_at = now + delay;
			f.state = delay > 0 ? "delayed" : "ready";
			set_pending(noted);
		}
		slots[k++] = e.segment;
	}
	TQ_WAIT_POINT("finish-before-append");
	append_or_distrust(db, {.rows = rows, .slots = slots, .n = k}, first_op, [](Db &, const journal::EventRow &row) {
		ereport(ERROR, (errcode(kErrLeaseLost), errmsg("lease lost: the journal has another event in its place"),
						errdetail("The live state of job %lld was wrong and is read again from the journal.",
								  static_cast<long long>(row.job_id))));
	});
	TQ_WAIT_POINT("finish-after-append");
	if (followed)
	{
		jobs_ended(db, rows, k);
		TQ_WAIT_POINT("finish-after-follow-up");
	}
	pfree(rows);
	pfree(slots);
}

void require_finished(Db &db, const Finish &f)
{
	if (f.unseen)
		raise_no_job(f.id);
	if (f.marked != Marked::ok)
		raise_unmarked(db, f.marked, f.id, f.lease);
}

Datum finish_one(Db &db, Finish f)
{
	ensure_loaded(db);
	finish(db, &f, 1);
	require_finished(db, f);
	return CStringGetTextDatum(f.state);
}

// A set of (id, status): ok | busy | lost | not_found.
Datum finish_many(FunctionCallInfo fcinfo, Db &db, Finish *list, int n)
{
	ensure_loaded(db);
	static constexpr pg::ColumnSpec kColumns[] = {{"id", INT8OID}, {"status", TEXTOID}};
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kColumns));
	finish(db, list, n);
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		const char *status = "ok";
		if (list[i].marked == Marked::not_found)
			status = !list[i].unseen && job_exists(db, list[i].id) ? "lost" : "not_found";
		else if (list[i].marked == Marked::busy)
			status = "busy";
		else if (list[i].marked != Marked::ok)
			status = "lost";
		Datum values[2] = {Int64GetDatum(list[i].id), CStringGetTextDatum(status)};
		bool nulls[2] = {};
		rows.put(values, nulls);
		pfree(DatumGetPointer(values[1]));
	}
	return static_cast<Datum>(0);
}

// Reads ids and leases, from argument `first` on.
Finish *lease_arrays(FunctionCallInfo fcinfo, Verb verb, int *n, int first = 0)
{
	int nleases = 0;
	Datum *ids = array_required(fcinfo, first, "ids", INT8OID, n);
	Datum *leases = array_required(fcinfo, first + 1, "leases", INT8OID, &nleases);
	same_length("ids", *n, "leases", nleases);
	auto *list = static_cast<Finish *>(palloc0(sizeof(Finish) * static_cast<Size>(std::max(*n, 1))));
	for (int i = 0; i < *n; ++i)
	{
		list[i].id = DatumGetInt64(ids[i]);
		list[i].lease = DatumGetInt64(leases[i]);
		list[i].verb = verb;
		list[i].delay = -1;
	}
	return list;
}

// Reads an array of results, which may be null and may contain nulls.
void set_results(FunctionCallInfo fcinfo, int i, Finish *list, int n)
{
	if (PG_ARGISNULL(i))
		return;
	bool *nulls = nullptr;
	int count = 0;
	Datum *elements = array_with_nulls(fcinfo, i, "results", JSONBOID, &nulls, &count);
	same_length("ids", n, "results", count);
	for (int k = 0; k < count; ++k)
		if (!nulls[k])
			for_element(k + 1, [&] { list[k].detail = pg::checked_jsonb("result", elements[k], result_limit()); });
}

} // namespace

void complete_jobs(FunctionCallInfo fcinfo, int first, Db &db)
{
	int n = 0;
	Finish *list = lease_arrays(fcinfo, Verb::complete, &n, first);
	set_results(fcinfo, first + 2, list, n);
	if (n == 0)
		return;
	finish(db, list, n);
	for (int i = 0; i < n; ++i)
		require_finished(db, list[i]);
}

Marked end_attempt(Db &db, const AttemptEnd &ending)
{
	Finish f{ending.id, ending.lease, ending.verb};
	f.reason = ending.reason;
	f.detail = ending.detail;
	f.delay = ending.verb == Verb::release ? 0 : -1;
	f.fatal = ending.fatal;
	f.trusted = true;
	ensure_loaded(db);
	finish(db, &f, 1);
	return f.marked;
}

TQ_FUNCTION(tq_complete)
{
	require_writable("tq_complete()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), Verb::complete};
	f.detail = jsonb_value(fcinfo, 2, "result", result_limit());
	return finish_one(database(fcinfo), f);
}

TQ_FUNCTION(tq_complete_many)
{
	require_writable("tq_complete_many()");
	int n = 0;
	Finish *list = lease_arrays(fcinfo, Verb::complete, &n);
	set_results(fcinfo, 2, list, n);
	return finish_many(fcinfo, database(fcinfo), list, n);
}

// id, lease, error, detail, retry_in, fatal
TQ_FUNCTION(tq_fail)
{
	require_writable("tq_fail()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), Verb::fail};
	f.reason = error_required(fcinfo, 2, "error");
	f.detail = error_detail(fcinfo, 3);
	f.delay = interval_or(fcinfo, 4, "retry_in", -1, 0);
	f.fatal = given(fcinfo, 5) && PG_GETARG_BOOL(5);
	return finish_one(database(fcinfo), f);
}

TQ_FUNCTION(tq_fail_many)
{
	require_writable("tq_fail_many()");
	int n = 0, nerrors = 0;
	Finish *list = lease_arrays(fcinfo, Verb::fail, &n);
	Datum *errors = array_required(fcinfo, 2, "errors", TEXTOID, &nerrors);
	same_length("ids", n, "errors", nerrors);
	for (int i = 0; i < n; ++i)
		list[i].reason = pg::cut_text_value(errors[i], error_limit().bytes);
	return finish_many(fcinfo, database(fcinfo), list, n);
}

TQ_FUNCTION(tq_release)
{
	require_writable("tq_release()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), Verb::release};
	f.delay = interval_or(fcinfo, 2, "delay", 0, 0);
	return finish_one(database(fcinfo), f);
}

TQ_FUNCTION(tq_bury)
{
	require_writable("tq_bury()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), Verb::bury};
	f.reason = error_required(fcinfo, 2, "reason");
	return finish_one(database(fcinfo), f);
}

} // namespace tq
