#include "jobs/outcome_rights.hpp"

#include "jobs/job_rights.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

// Consecutive ids of jobs that this transaction enqueued for one role. Ids between two ranges are of other
// transactions, or of copies and follow-ups.
struct Range
{
	JobId first, last;
	Oid role;
};

// In TopTransactionContext; valid in the transaction `noted_in` only. A rolled-back savepoint leaves its ranges: no job
// has these ids.
pg::Array<Range> ranges;
FullTransactionId noted_in = {};

bool is_current() noexcept
{
	const FullTransactionId now = GetTopFullTransactionIdIfAny();
	return FullTransactionIdIsValid(now) && FullTransactionIdEquals(now, noted_in);
}

} // namespace

void note_enqueuer(JobId id)
{
	if (!is_current())
	{
		ranges.forget();
		noted_in = GetTopFullTransactionId();
	}
	const Oid role = GetUserId();
	if (ranges.n > 0 && id <= ranges.last().last)
		return; // cannot happen; without a note the outcome is not passed on
	if (ranges.n > 0 && ranges.last().role == role && id == ranges.last().last + 1)
	{
		ranges.last().last = id;
		return;
	}
	ranges.append(TopTransactionContext, Range{id, id, role});
}

bool enqueued_by_user(JobId id) noexcept
{
	if (!is_current())
		return false;
	const Range *r =
		std::lower_bound(ranges.begin(), ranges.end(), id, [](const Range &a, JobId b) noexcept { return a.last < b; });
	return r != ranges.end() && r->first <= id && r->role == GetUserId();
}

Passes passes_outcome(Db &db, JobId parent, JobId child)
{
	if (access_to_job(db, parent, kMayRead) == Access::granted)
		return Passes::outcome;
	const bool both = enqueued_by_user(parent) && (child == 0 || enqueued_by_user(child));
	return both ? Passes::own : Passes::nothing;
}

} // namespace tq
