#include "enqueue/copy_job.hpp"

#include "dependencies/retry_graph.hpp"
#include "enqueue/enqueue.hpp"
#include "jobs/job_record.hpp"
#include "queues/policy.hpp"

namespace tq
{

namespace
{

// Frees a job of this transaction that has the outcomes of another job's parents.
void free_own(Db &db, core::JobId id, uint16_t queue, Jsonb *outcomes)
{
	reserve_ops(2);
	Op &op = *own_job(db, id);
	keep_enqueue(op);
	journal::EventRow row;
	row.job_id = id;
	row.at = wall_now();
	row.type = journal::EventType::freed;
	row.queue = queue;
	row.step = std::max(op.prev.step, 1);
	row.detail = outcomes;
	op.expires_at = expiry_from(row.at, expires_in_of(settings_of(queue)).value);
	row.lease_until = op.expires_at != core::kNever ? op.expires_at : journal::kNoTime;
	op.prev.step = row.step + 1;
	op.to = State::ready;
	op.event = row.type;
	append_by_segment(db, {.rows = &row, .slots = &op.segment, .n = 1});
}

// Copies an ended job into another queue; 0 if its row is gone. The copy has no unique key, since keys belong to one
// queue, and no run_at or expires_at, since these times are over. It does not wait, and gets the outcomes that its
// origin was given.
core::JobId copy_job(Db &db, const FetchedJob &origin, uint16_t queue, bool overdraw)
{
	journal::Segment tables;
	EnqueueItem item{};
	ItemPointerData tid;
	const core::JobId id = origin.row.id;
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	const bool found =
		tables_at(db, origin.segment, &tables) && journal::find_job(tables, id, snapshot, true, &item.row, &tid);
	UnregisterSnapshot(snapshot);
	if (!found)
		return 0;
	item.kind = item.row.kind != nullptr ? text_to_cstring(item.row.kind) : nullptr;
	if (origin.fold.has_priority)
		item.row.priority = origin.fold.priority;
	item.row.origin = id;
	item.row.run_at = item.row.expires_at = journal::kNoTime;
	item.row.unique_key = nullptr;
	Jsonb *outcomes = item.row.depends_on != nullptr ? outcomes_given(db, id) : nullptr;
	if (outcomes == nullptr)
		item.row.depends_on = nullptr;
	item.foreign = true;
	int64 copy = 0;
	enqueue(db, queue, &item, 1, &copy, overdraw);
	if (outcomes != nullptr)
		free_own(db, copy, queue, outcomes);
	return copy;
}

} // namespace

Verdict retry_elsewhere(Db &db, core::JobId id, uint32 states, const CopyTarget &to, bool first)
{
	reserve_ops(1);
	FetchedJob origin;
	switch (take_record(db, id, states, &origin))
	{
		case Taken::skipped:
			return Verdict::busy;
		case Taken::memory_full:
			return Verdict::memory_full;
		case Taken::taken:
			break;
	}
	const core::JobId copy = copy_job(db, origin, to.queue, !first);
	if (copy == 0)
		raise_no_job(id);
	journal::EventRow row =
		purged_event(origin, psprintf("retried as job %lld in queue %s", static_cast<long long>(copy), to.name));
	const auto slot = static_cast<uint16_t>(origin.segment);
	append_by_segment(db, {.rows = &row, .slots = &slot, .n = 1});
	return Verdict::done;
}

} // namespace tq
