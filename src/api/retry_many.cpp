// tq_retry_many: finds jobs that have ended by reading the segments, and retries them or copies them into
// another queue. Regime: PG. Locks: as tq_retry for each job; AccessShareLock on each segment while it is read.
#include "api/args.hpp"
#include "api/change.hpp"
#include "api/ended.hpp"
#include "api/enqueue.hpp"
#include "api/names.hpp"
#include "api/search.hpp"
#include "api/unique.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "pg/function.hpp"

namespace tq::api
{

using journal::FoldState;

namespace
{

// A new job like one that has ended, in another queue; 0 if its row is gone. Its unique key is its own queue's, its times are over.
core::JobId copy_job(live::Db &db, const live::Pinned &origin, uint16_t queue, bool overdraw)
{
	journal::Segment tables;
	EnqueueItem item{};
	ItemPointerData tid;
	const core::JobId id = origin.row.id;
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	const bool found =
		live::tables_at(db, origin.segment, &tables) && journal::find_job(tables, id, snapshot, true, &item.row, &tid);
	UnregisterSnapshot(snapshot);
	if (!found)
		return 0;
	item.kind = item.row.kind != nullptr ? text_to_cstring(item.row.kind) : nullptr;
	if (origin.fold.has_priority)
		item.row.priority = origin.fold.priority;
	item.row.origin = id;
	item.row.run_at = item.row.expires_at = journal::kNoTime;
	item.row.unique_key = nullptr;
	item.row.depends_on = nullptr;
	int64 copy = 0;
	enqueue(db, queue, &item, 1, &copy, overdraw);
	return copy;
}

// Copies one job and takes the origin out of the books, so that a second call finds it no more: its history names the copy, as the copy's
// names it. enqueue_rate is asked for the first of them, as for any call.
Verdict retry_elsewhere(live::Db &db, core::JobId id, FoldState state, uint16_t queue, const char *queue_name, bool first)
{
	live::reserve_ops(1);
	live::Pinned origin;
	switch (take_ended(db, id, bit_of(state), &origin))
	{
		case Taken::skipped:
			return Verdict::busy;
		case Taken::no_room:
			return Verdict::no_room;
		case Taken::taken:
			break;
	}
	const core::JobId copy = copy_job(db, origin, queue, !first);
	if (copy == 0)
		live::raise_no_job(id);
	journal::EventRow row =
		purged_event(origin, psprintf("retried as job %lld in queue %s", static_cast<long long>(copy), queue_name));
	const auto slot = static_cast<uint16_t>(origin.segment);
	live::append_by_segment(db, &row, &slot, 1);
	return Verdict::done;
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
	Search s;
	s.context = CurrentMemoryContext;
	s.kind = text_or_null(fcinfo, 2);
	s.since = time_or(fcinfo, 3, "since", journal::kNoTime);
	const int64 max = given(fcinfo, 4) ? int_or(fcinfo, 4, "max_jobs", 0, 1, PG_INT32_MAX) : PG_INT64_MAX;
	const char *to = text_or_null(fcinfo, 5);
	if (s.kind != nullptr)
		live::check_name("kind", s.kind);
	if (to != nullptr)
		live::check_name("to_queue", to);
	FoldState ended{};
	if (strcmp(state, "delayed") == 0)
		s.waiting = live::bit_of(live::State::delayed);
	else if (parse_ended(state, &ended) && can_begin_again(ended))
		s.ended = bit_of(ended);
	else
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("jobs that are \"%s\" cannot be retried", state),
						errhint("The state can be dead, buried, cancelled, expired or delayed.")));
	if (to != nullptr && s.waiting != 0)
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

	int64 done = 0, duplicates = 0;
	int reopened = -1;
	bool room = true;
	int n = 0;
	const live::SegmentView *segments = segments_of(db, &n);
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq_retry_many", ALLOCSET_SMALL_SIZES);
	auto attempt = [&](core::JobId id) {
		Request r;
		r.id = id;
		r.verb = live::Verb::retry;
		r.reopened = &reopened;
		const Outcome out = to != nullptr ? Outcome{retry_elsewhere(db, id, ended, target, to, done == 0), nullptr} : change(db, r);
		room = out.verdict != Verdict::no_room;
		if (!room && done == 0)
			raise_outcome(r, out);
		done += out.verdict == Verdict::done;
		duplicates += out.verdict == Verdict::duplicate;
	};
	KeyedJobs keyed{CurrentMemoryContext, nullptr, 0, 0};
	for (int i = 0; i < n && room && done < max; ++i)
	{
		s.n = 0;
		search_segment(&s, segments[i]);
		if (s.n == 0 || (to != nullptr && !keep_segment(segments[i])))
			continue;
		MemoryContext old = MemoryContextSwitchTo(each);
		for (int64 k = 0; k < s.n && room && done < max; ++k)
		{
			MemoryContextReset(each);
			CHECK_FOR_INTERRUPTS();
			if (to != nullptr || s.ended == 0 || !postpone_keyed(db, s.ids[k], &keyed))
				attempt(s.ids[k]);
		}
		MemoryContextSwitchTo(old);
	}
	sort_keyed(&keyed);
	MemoryContext old = MemoryContextSwitchTo(each);
	for (int64 k = 0; k < keyed.n && room && done < max; ++k)
	{
		MemoryContextReset(each);
		CHECK_FOR_INTERRUPTS();
		attempt(keyed.jobs[k].id);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	if (duplicates > 0)
		ereport(NOTICE, (errmsg_plural("%lld job was left because another job has its unique key",
									   "%lld jobs were left because other jobs have their unique keys", static_cast<unsigned long>(duplicates),
									   static_cast<long long>(duplicates))));
	if (!room)
		ereport(NOTICE, (errmsg("memory has no room for more jobs of one transaction"),
						 errhint("Commit and call tq_retry_many() again for the rest.")));
	PG_RETURN_INT64(done);
}
