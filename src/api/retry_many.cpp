// tq_retry_many: finds jobs that have ended by reading the segments, and retries them or copies them into
// another queue. Regime: PG. Locks: as tq_retry for each job; AccessShareLock on each segment while it is read.
#include "api/args.hpp"
#include "api/change.hpp"
#include "api/enqueue.hpp"
#include "api/names.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "pg/function.hpp"

namespace tq::api
{

namespace
{

// What tq_retry_many looks for, and the ids found, which outlive the scan.
struct Search
{
	MemoryContext context;
	int32 queue_id;
	const char *kind;
	TimestampTz since;
	core::Micros now;
	bool delayed; // else ended as `state`
	journal::FoldState state;
	int64 *ids;
	int64 n;
	int64 room;
};

void collect(const journal::Candidate &c, const journal::Fold &fold, void *arg)
{
	Search &s = *static_cast<Search *>(arg);
	if (c.queue_id != s.queue_id || (s.kind != nullptr && (!c.has_kind || strcmp(c.kind, s.kind) != 0)))
		return;
	core::Micros due = core::kNever;
	if (s.delayed ? fold.terminal() || live::state_of(c, fold, s.now, &due) != live::State::delayed
				  : fold.state != s.state)
		return;
	const TimestampTz at = fold.ended_at != journal::kNoTime ? fold.ended_at : c.enqueued_at;
	if (s.since != journal::kNoTime && at < s.since)
		return;
	if (s.n == s.room)
	{
		s.room = std::max<int64>(1024, s.room * 2);
		const Size bytes = sizeof(int64) * static_cast<Size>(s.room);
		s.ids = static_cast<int64 *>(s.ids == nullptr ? MemoryContextAllocHuge(s.context, bytes)
													  : repalloc_huge(s.ids, bytes));
	}
	s.ids[s.n++] = c.id;
}

// Ids of the jobs in all segments, ascending, those of segment 0 first.
void search(live::Db &db, Search *s, int64 max)
{
	int room = 0;
	LWLockAcquire(live::map_lock(db), LW_SHARED);
	room = db.nsegments;
	LWLockRelease(live::map_lock(db));
	auto *segments =
		static_cast<live::SegmentView *>(palloc(sizeof(live::SegmentView) * static_cast<Size>(room)));
	const int n = live::view_segments(db, segments, room);
	for (int i = 0; i < n && s->n < max; ++i)
	{
		const int64 before = s->n;
		Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
		journal::scan_segment(segments[i].tables, snapshot, true, collect, s);
		UnregisterSnapshot(snapshot);
		std::sort(s->ids + before, s->ids + s->n);
	}
	pfree(segments);
}

// A new job like one that has ended, in another queue.
bool copy_job(live::Db &db, core::JobId id, uint16_t queue)
{
	int slots[2];
	const int n = live::slots_of_id(db, id, slots);
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool found = false;
	EnqueueItem item{};
	ItemPointerData tid;
	for (int i = n; i-- > 0 && !found;) // segment 0 has the newer history, if it has the job
	{
		journal::Segment tables;
		if (!live::tables_at(db, slots[i], &tables))
			continue;
		found = journal::find_job(tables, id, snapshot, true, &item.row, &tid);
		if (!found)
			continue;
		journal::Fold fold;
		journal::fold_job(tables, id, snapshot, &fold);
		if (fold.has_priority)
			item.row.priority = fold.priority;
	}
	UnregisterSnapshot(snapshot);
	if (!found)
		return false;
	item.kind = item.row.kind != nullptr ? text_to_cstring(item.row.kind) : nullptr;
	item.row.origin = id;
	item.row.run_at = item.row.expires_at = journal::kNoTime;
	item.row.unique_key = nullptr; // the key is its origin's
	item.row.depends_on = nullptr;
	int64 copy = 0;
	enqueue(db, queue, &item, 1, &copy);
	return true;
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// queue, state, kind, since, max_jobs, to_queue
TQ_FUNCTION(tq_retry_many)
{
	require_writable("tq_retry_many()");
	const char *name = text_required(fcinfo, 0, "queue");
	const char *state = text_required(fcinfo, 1, "state");
	Search s{};
	s.context = CurrentMemoryContext;
	s.kind = text_or_null(fcinfo, 2);
	s.since = time_or(fcinfo, 3, "since", journal::kNoTime);
	const int64 max = given(fcinfo, 4) ? int_or(fcinfo, 4, "max_jobs", 0, 1, PG_INT32_MAX) : PG_INT64_MAX;
	const char *to = text_or_null(fcinfo, 5);
	s.delayed = strcmp(state, "delayed") == 0;
	if (!s.delayed && !(parse_ended(state, &s.state) && can_begin_again(s.state)))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("jobs that are \"%s\" cannot be retried", state),
						errhint("The state can be dead, buried, cancelled, expired or delayed.")));
	if (to != nullptr && s.delayed)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("delayed jobs cannot be copied to another queue"),
						errdetail("They are going to run where they are.")));

	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	s.queue_id = live::engine.queue(live::queue_with_right(db, name, live::kManage)).id;
	if (to != nullptr) // whoever may consume there sees what is in them
		static_cast<void>(live::queue_with_right(db, name, live::kMayRead));
	const uint16_t target = to != nullptr ? live::queue_for_enqueue(db, to) : live::kNoQueue;
	s.now = live::wall_now();
	search(db, &s, max);

	int64 done = 0;
	int reopened = -1;
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq_retry_many", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(each);
	for (int64 i = 0; i < s.n && done < max; ++i)
	{
		MemoryContextReset(each);
		CHECK_FOR_INTERRUPTS();
		if (to != nullptr)
		{
			done += copy_job(db, s.ids[i], target);
			continue;
		}
		Request r;
		r.id = s.ids[i];
		r.verb = live::Verb::retry;
		r.reopened = &reopened;
		const Outcome out = change(db, r);
		if (out.verdict == Verdict::no_room)
		{
			if (done == 0)
				raise_outcome(r, out);
			ereport(NOTICE, (errmsg("memory has no room for more jobs of one transaction"),
							 errhint("Commit and call tq_retry_many() again for the rest.")));
			break;
		}
		done += out.verdict == Verdict::done;
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	PG_RETURN_INT64(done);
}
