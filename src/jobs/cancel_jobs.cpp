// tq_cancel_jobs: cancels the jobs with these ids, with a status for each.
// Regime: PG; may ereport. Locks: as tq_cancel.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/job_control.hpp"
#include "jobs/job_rights.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "pg/array.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

// Cancelled jobs of a queue. tq_audit shows rows by queue.
struct Changed
{
	int32 queue_id;
	int64 jobs;
};

void count(pg::Array<Changed> *list, MemoryContext context, int32 queue_id)
{
	for (Changed &c : *list)
		if (c.queue_id == queue_id)
		{
			++c.jobs;
			return;
		}
	list->append(context, Changed{queue_id, 1});
}

constexpr pg::ColumnSpec kStatus[] = {{"id", INT8OID}, {"status", TEXTOID}};

// The new state, or else why the job is not cancelled. A job on whose queue the caller has no right counts as absent.
const char *cancel(Db &db, const JobRequest &r, bool trusted, bool *done)
{
	const Access access = trusted ? Access::granted : access_to_job(db, r.id, kOperate);
	if (access == Access::denied)
		raise_job_denied(r.id, kOperate);
	if (access != Access::granted)
		return "not_found";
	const JobResult out = change(db, r);
	*done = out.verdict == Verdict::done;
	switch (out.verdict)
	{
		case Verdict::done:
		case Verdict::wrong_state:
			return out.state;
		case Verdict::busy:
			return "busy";
		case Verdict::memory_full:
			return "no_room";
		default:
			return "not_found";
	}
}

} // namespace

// ids, reason
TQ_FUNCTION(tq_cancel_jobs)
{
	require_writable("tq_cancel_jobs()");
	int n = 0;
	Datum *ids = array_required(fcinfo, 0, "ids", INT8OID, &n);
	JobRequest r;
	r.verb = Verb::cancel;
	r.reason = text_or_null(fcinfo, 1, "reason", error_limit());
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kStatus));
	Db &db = loaded_database(fcinfo);
	const bool trusted = has_right_everywhere(db, kOperate);
	pg::Array<Changed> changed;
	const MemoryContext outer = CurrentMemoryContext;
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq cancel", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(each);
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		r.id = DatumGetInt64(ids[i]);
		pg::RowValues v;
		v.add_int8(r.id);
		bool done = false;
		v.add_text(cancel(db, r, trusted, &done));
		if (done)
			count(&changed, outer, queue_of_changed(db, r.id));
		rows.put(v);
		MemoryContextReset(each);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	for (const Changed &c : changed)
		record_action(db, "cancel_jobs", c.queue_id, 0, Facts().add("reason", r.reason).add("jobs", c.jobs));
	return static_cast<Datum>(0);
}

} // namespace tq
