#include "jobs/job_rights.hpp"

#include "jobs/verbs.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"

namespace tq
{

namespace
{

// Reads the queue of a job without an entry from the journal; false if there is no such job.
bool find_in_journal(const Db &db, JobId id, int32 *queue_id)
{
	if (op_count() > 0 || has_bulks())
		CommandCounterIncrement();
	const MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_SMALL_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(row_context);
	journal::JobRow row;
	const bool found = find_in_segments(db, id, latest_snapshot, [&](const journal::Segment &tables, Snapshot s) {
		ItemPointerData tid;
		return journal::find_job(tables, id, s, false, &row, &tid);
	});
	if (found)
		*queue_id = row.queue_id;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(row_context); // a caller may ask for a million jobs
	return found;
}

} // namespace

Access access_to_job(Db &db, JobId id, uint8 any_of)
{
	if (has_right_everywhere(db, any_of))
		return Access::granted;
	uint16_t slot = 0;
	int32 queue_id = 0;
	const Op *own = nullptr;
	if (engine.find(index_of(db), id, &slot) != kNil)
		queue_id = engine.queue(slot).id; // a job keeps its queue
	else if ((own = pending_enqueue(id)) != nullptr)
		queue_id = engine.queue(slot = own->queue).id;
	else if (!find_in_journal(db, id, &queue_id))
		return Access::absent;
	else
		slot = queue_of_id(db, queue_id);
	if (slot != kNoQueue && remembers_right(db, slot, any_of))
		return Access::granted;
	const Rights &mine = rights_on(db, queue_id);
	const auto may = [&](uint8 which) noexcept {
		return slot != kNoQueue ? mine.may(engine.queue(slot), which) : mine.may(queue_id, which);
	};
	return may(any_of) ? Access::granted : may(kMayKnow) ? Access::denied : Access::unseen;
}

void raise_job_denied(JobId id, uint8 any_of)
{
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("permission denied for job %lld", static_cast<long long>(id)),
					errdetail("The privilege needed on its queue is %s.", names_of(any_of)),
					errhint("A role that may manage the queue can grant it with tq_grant.")));
}

void require_job(Db &db, JobId id, uint8 any_of)
{
	switch (access_to_job(db, id, any_of))
	{
		case Access::unseen:
			raise_no_job(id);
		case Access::denied:
			raise_job_denied(id, any_of);
		default:
			break;
	}
}

} // namespace tq
