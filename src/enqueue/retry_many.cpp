// tq_retry_many: finds ended jobs by reading the segments, and retries them or copies them into another queue.
// Regime: PG. Locks: as tq_retry for each job; AccessShareLock on each segment while it is read.
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "dependencies/retry_graph.hpp"
#include "enqueue/enqueue.hpp"
#include "enqueue/enqueue_keys.hpp"
#include "jobs/job_control.hpp"
#include "jobs/job_record.hpp"
#include "jobs/search.hpp"
#include "jobs/verbs.hpp"
#include "queues/actions.hpp"
#include "queues/policy.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"

namespace tq
{

using journal::FoldState;

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

// Copies one job and marks the origin as purged, so that a second call does not find it. The history of each names the
// other. enqueue_rate can refuse the first copy of a call; the other copies overdraw it.
Verdict retry_elsewhere(Db &db, core::JobId id, FoldState state, uint16_t queue, const char *queue_name, bool first)
{
	reserve_ops(1);
	FetchedJob origin;
	switch (take_record(db, id, bit_of(state), &origin))
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
		raise_no_job(id);
	journal::EventRow row =
		purged_event(origin, psprintf("retried as job %lld in queue %s", static_cast<long long>(copy), queue_name));
	const auto slot = static_cast<uint16_t>(origin.segment);
	append_by_segment(db, {.rows = &row, .slots = &slot, .n = 1});
	return Verdict::done;
}

} // namespace

// queue, state, kind, since, max_jobs, to_queue, with_children
TQ_FUNCTION(tq_retry_many)
{
	require_writable("tq_retry_many()");
	const char *name = text_required(fcinfo, 0, "queue");
	const char *state = text_required(fcinfo, 1, "state", kWordLimit);
	Search s;
	s.context = CurrentMemoryContext;
	s.kind = text_or_null(fcinfo, 2, "kind");
	s.since = time_or(fcinfo, 3, "since", journal::kNoTime);
	const int64 max = given(fcinfo, 4) ? int_or(fcinfo, 4, "max_jobs", 0, 1, PG_INT32_MAX) : PG_INT64_MAX;
	const char *to = text_or_null(fcinfo, 5, "to_queue");
	// the SQL of 0.1.0 lacks the last argument
	const bool with_children = PG_NARGS() > 6 && given(fcinfo, 6) && PG_GETARG_BOOL(6);
	if (s.kind != nullptr)
		check_name("kind", s.kind);
	if (to != nullptr)
		check_name("to_queue", to);
	FoldState ended{};
	if (strcmp(state, "delayed") == 0)
		s.waiting = bit_of(State::delayed);
	else if (parse_ended(state, &ended) && can_begin_again(ended))
		s.ended = bit_of(ended);
	else
	{
		static constexpr const char *kStates[] = {"dead", "buried", "cancelled", "expired", "delayed", nullptr};
		pg::unknown_word(psprintf("jobs that are \"%s\" cannot be retried", state), state, "The state can be", kStates);
	}
	if (to != nullptr && s.waiting != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("delayed jobs cannot be copied to another queue"),
						errdetail("They are going to run where they are.")));
	if (to != nullptr && with_children)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("with_children cannot be used with to_queue"),
						errdetail("A copy is another job, for which no job waits.")));

	Db &db = loaded_database(fcinfo);
	s.queue_id = engine.queue(queue_with_right(db, name, kOperate)).id;
	// consumers of the target queue see the contents of the copies, so the caller must have the right to read them
	if (to != nullptr)
		static_cast<void>(queue_with_right(db, name, kMayRead));
	const uint16_t target = to != nullptr ? queue_for_enqueue(db, to) : kNoQueue;
	s.now = wall_now();

	int64 done = 0, duplicates = 0, begun = 0;
	pg::Array<core::JobId> retried;
	int reopened = -1;
	bool room = true;
	const pg::Array<SegmentView> segments = view_segments(db);
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq_retry_many", ALLOCSET_SMALL_SIZES);
	auto attempt = [&](core::JobId id) {
		JobRequest r;
		r.id = id;
		r.verb = Verb::retry;
		r.reopened = &reopened;
		const JobResult out =
			to != nullptr ? JobResult{retry_elsewhere(db, id, ended, target, to, done == 0), nullptr}
						  : retry(db, r, with_children);
		if (with_children && out.verdict == Verdict::done)
			retried.append(s.context, id);
		room = out.verdict != Verdict::no_room;
		if (!room && done == 0)
			raise_outcome(r, out);
		done += out.verdict == Verdict::done;
		duplicates += out.verdict == Verdict::duplicate;
		begun += out.begun;
	};
	KeyedJobs keyed{CurrentMemoryContext, {}};
	for (int64 i = 0; i < segments.n && room && done < max; ++i)
	{
		s.ids.n = 0;
		search_segment(&s, segments[i]);
		if (s.ids.n == 0 || (to != nullptr && !keep_segment(segments[i])))
			continue;
		MemoryContext old = MemoryContextSwitchTo(each);
		for (int64 k = 0; k < s.ids.n && room && done < max; ++k)
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
	for (int64 k = 0; k < keyed.jobs.n && room && done < max; ++k)
	{
		MemoryContextReset(each);
		CHECK_FOR_INTERRUPTS();
		attempt(keyed.jobs[k].id);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	tell_begun(begun + retry_children(db, retried.data, retried.n));
	if (duplicates > 0)
		ereport(NOTICE, (errmsg_plural("%lld job was left because another job has its unique key",
									   "%lld jobs were left because other jobs have their unique keys",
									   static_cast<unsigned long>(duplicates), static_cast<long long>(duplicates))));
	if (!room)
		ereport(NOTICE, (errmsg("memory has no room for more jobs of one transaction"),
						 errhint("Commit and call tq_retry_many() again for the rest.")));
	Facts facts;
	facts.add("state", state).add("kind", s.kind).add("to_queue", to);
	facts.add("with_children", with_children).add("jobs", done);
	record_action(db, "retry_many", s.queue_id, 0, facts);
	PG_RETURN_INT64(done);
}

} // namespace tq
