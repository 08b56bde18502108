// The verbs of whoever holds a lease: complete, fail, release, bury, and their forms for many.
// Regime: PG.
#include "api/finish.hpp"

#include "api/args.hpp"
#include "api/follow_up.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/policy.hpp"
#include "live/rights.hpp"
#include "live/verbs.hpp"
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
using live::Hold;

// What a verb wants for one job.
struct Finish
{
	core::JobId id;
	core::LeaseNo lease;
	live::Verb verb;
	const char *reason = nullptr; // error, reason
	Jsonb *detail = nullptr;
	core::Micros delay = -1; // release; fail: -1 = by the policy
	bool fatal = false;
	bool trusted = false; // the caller's rights were looked at when the job was claimed
	// outcome
	Hold hold = Hold::ok;
	bool unseen = false; // the caller has no right on its queue
	const char *state = nullptr;
};

core::Micros policy_delay(live::Db &db, const core::Entry &e)
{
	return core::retry_delay(live::retry_of(live::own_retry(db, e), live::settings_of(e.queue)), e.attempt,
							 pg_prng_uint64(&pg_global_prng_state));
}

// The journal is the arbiter: a step that it has already (memory was wrong) makes the lease lost, and the job is read again.
void append_or_distrust(live::Db &db, journal::EventRow *rows, const uint16_t *slots, int n, int first_op)
{
	PG_TRY();
	{
		live::append_by_segment(db, rows, slots, n);
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_UNIQUE_VIOLATION)
		{
			live::distrust(first_op);
			FlushErrorState();
			ereport(ERROR, (errcode(kErrLeaseLost), errmsg("lease lost: the journal has another event in its place"),
							errdetail("The live state of the job was wrong and is read again from the journal.")));
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
}

// For those who may not consume from every queue. A job of a queue that is none of the caller's business is as good as absent.
void check_rights(live::Db &db, Finish *list, int n)
{
	for (int i = 0; i < n; ++i)
		switch (live::access_to_job(db, list[i].id, live::kConsume))
		{
			case live::Access::denied:
				live::raise_job_denied(list[i].id, live::kConsume);
			case live::Access::unseen:
				list[i].unseen = true;
				break;
			default:
				break;
		}
}

// Marks the jobs (those whose lease is live), then appends their events.
void finish(live::Db &db, Finish *list, int n)
{
	auto *rows = static_cast<journal::EventRow *>(palloc(sizeof(journal::EventRow) * static_cast<Size>(n)));
	auto *slots = static_cast<uint16_t *>(palloc(sizeof(uint16_t) * static_cast<Size>(n)));
	if (!list->trusted && (live::rights(db).everywhere & live::kConsume) == 0)
		check_rights(db, list, n);
	live::reserve_ops(n);
	const int first_op = live::op_count();
	const core::Micros now = live::wall_now();
	int k = 0;
	bool followed = false;
	for (int i = 0; i < n; ++i)
	{
		Finish &f = list[i];
		live::Op op;
		core::Entry e;
		op.to = live::State::terminal;
		f.hold = f.unseen ? Hold::not_found : live::hold_lease(db, f.id, f.lease, f.verb, &op, &e);
		if (f.hold != Hold::ok)
			continue;
		// the operation lies at the end of the list; what only the entry could tell is filled in now
		live::Op &noted = live::last_op();
		journal::EventType type = journal::EventType::succeeded;
		core::Micros delay = -1;
		switch (f.verb)
		{
			case live::Verb::fail:
				if (f.fatal || (e.attempt >= live::attempts_allowed(e.max_attempts, e.queue)))
				{
					type = journal::EventType::dead;
					noted.is_dead = true;
					f.state = "dead";
				}
				else
				{
					type = journal::EventType::failed;
					delay = f.delay >= 0 ? f.delay : policy_delay(db, e);
				}
				break;
			case live::Verb::release:
				type = journal::EventType::released;
				delay = f.delay;
				noted.count_attempt = false;
				break;
			case live::Verb::bury:
				type = journal::EventType::buried;
				noted.is_dead = true;
				f.state = "buried";
				break;
			default:
				f.state = "succeeded";
				break;
		}
		// what this transaction asks for shows in the entry when it has committed
		const bool asked = e.has(core::kCancelAsked) || (e.after_claim > 0 && live::asked_here(noted.ref, f.lease));
		if ((f.verb == live::Verb::fail || f.verb == live::Verb::release) && asked)
		{
			// asked to stop, and it did not succeed: that settles it, also if this attempt was the last one
			type = journal::EventType::cancelled;
			delay = -1;
			noted.is_dead = false;
			f.state = "cancelled";
		}
		noted.event = type;
		followed = followed || may_follow(e, type);
		journal::EventRow &row = rows[k];
		row = live::event_of(e, type, now);
		row.reason = f.reason;
		row.detail = f.detail;
		if (delay >= 0)
		{
			noted.to = delay > 0 ? live::State::delayed : live::State::ready;
			noted.due = delay > 0 ? now + delay : core::kNever;
			row.retry_at = now + delay;
			f.state = delay > 0 ? "delayed" : "ready";
			live::set_pending(noted);
		}
		slots[k++] = e.segment;
	}
	TQ_WAIT_POINT("finish-before-append");
	append_or_distrust(db, rows, slots, k, first_op);
	TQ_WAIT_POINT("finish-after-append");
	if (followed)
	{
		follow_up(db, rows, k);
		TQ_WAIT_POINT("finish-after-follow-up");
	}
	pfree(rows);
	pfree(slots);
}

Datum finish_one(live::Db &db, Finish f)
{
	live::ensure_loaded(db);
	finish(db, &f, 1);
	if (f.unseen)
		live::raise_no_job(f.id);
	if (f.hold != Hold::ok)
		live::raise_hold(db, f.hold, f.id, f.lease);
	return CStringGetTextDatum(f.state);
}

// A set of (id, status): ok | lost | not_found.
Datum finish_many(FunctionCallInfo fcinfo, live::Db &db, Finish *list, int n)
{
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	finish(db, list, n);
	for (int i = 0; i < n; ++i)
	{
		const char *status = "ok";
		if (list[i].hold == Hold::not_found)
			status = !list[i].unseen && live::job_exists(db, list[i].id) ? "lost" : "not_found";
		else if (list[i].hold == Hold::busy)
			status = "busy";
		else if (list[i].hold != Hold::ok)
			status = "lost";
		Datum values[2] = {Int64GetDatum(list[i].id), CStringGetTextDatum(status)};
		bool nulls[2] = {};
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
	}
	return static_cast<Datum>(0);
}

// ids and leases, the first two arguments of every form for many.
Finish *lease_arrays(FunctionCallInfo fcinfo, live::Verb verb, int *n)
{
	int nleases = 0;
	Datum *ids = array_required(fcinfo, 0, "ids", INT8OID, n);
	Datum *leases = array_required(fcinfo, 1, "leases", INT8OID, &nleases);
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

// Elements of a nullable array that may contain nulls (results): null pointers where they are.
Jsonb **results_array(FunctionCallInfo fcinfo, int i, int n)
{
	if (PG_ARGISNULL(i))
		return nullptr;
	ArrayType *array = PG_GETARG_ARRAYTYPE_P(i);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR), errmsg("results must have one dimension")));
	Datum *elements = nullptr;
	bool *nulls = nullptr;
	int count = 0;
	deconstruct_array(array, JSONBOID, -1, false, TYPALIGN_INT, &elements, &nulls, &count);
	same_length("ids", n, "results", count);
	auto **out = static_cast<Jsonb **>(palloc0(sizeof(Jsonb *) * static_cast<Size>(std::max(n, 1))));
	for (int k = 0; k < count; ++k)
		out[k] = nulls[k] ? nullptr : DatumGetJsonbP(elements[k]);
	return out;
}

} // namespace

Hold end_attempt(live::Db &db, const Ending &ending)
{
	Finish f{ending.id, ending.lease, ending.verb};
	f.reason = ending.reason;
	f.detail = ending.detail;
	f.delay = ending.verb == live::Verb::release ? 0 : -1;
	f.fatal = ending.fatal;
	f.trusted = true;
	live::ensure_loaded(db);
	finish(db, &f, 1);
	return f.hold;
}

} // namespace tq::api

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_complete)
{
	require_writable("tq_complete()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), live::Verb::complete};
	if (given(fcinfo, 2))
		f.detail = PG_GETARG_JSONB_P(2);
	return finish_one(live::database(fcinfo), f);
}

TQ_FUNCTION(tq_complete_many)
{
	require_writable("tq_complete_many()");
	int n = 0;
	Finish *list = lease_arrays(fcinfo, live::Verb::complete, &n);
	Jsonb **results = results_array(fcinfo, 2, n);
	for (int i = 0; i < n && results != nullptr; ++i)
		list[i].detail = results[i];
	return finish_many(fcinfo, live::database(fcinfo), list, n);
}

// id, lease, error, detail, retry_in, fatal
TQ_FUNCTION(tq_fail)
{
	require_writable("tq_fail()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), live::Verb::fail};
	f.reason = text_required(fcinfo, 2, "error");
	if (given(fcinfo, 3))
		f.detail = PG_GETARG_JSONB_P(3);
	f.delay = interval_or(fcinfo, 4, "retry_in", -1, 0);
	f.fatal = given(fcinfo, 5) && PG_GETARG_BOOL(5);
	return finish_one(live::database(fcinfo), f);
}

TQ_FUNCTION(tq_fail_many)
{
	require_writable("tq_fail_many()");
	int n = 0, nerrors = 0;
	Finish *list = lease_arrays(fcinfo, live::Verb::fail, &n);
	Datum *errors = array_required(fcinfo, 2, "errors", TEXTOID, &nerrors);
	same_length("ids", n, "errors", nerrors);
	for (int i = 0; i < n; ++i)
		list[i].reason = TextDatumGetCString(errors[i]);
	return finish_many(fcinfo, live::database(fcinfo), list, n);
}

TQ_FUNCTION(tq_release)
{
	require_writable("tq_release()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), live::Verb::release};
	f.delay = interval_or(fcinfo, 2, "delay", 0, 0);
	return finish_one(live::database(fcinfo), f);
}

TQ_FUNCTION(tq_bury)
{
	require_writable("tq_bury()");
	Finish f{id_required(fcinfo, 0, "id"), id_required(fcinfo, 1, "lease"), live::Verb::bury};
	f.reason = text_required(fcinfo, 2, "reason");
	return finish_one(live::database(fcinfo), f);
}
