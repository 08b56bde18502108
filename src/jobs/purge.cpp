// tq_purge: purges the jobs of a queue in one state. Waiting jobs end as purged. Ended jobs no longer count for lists
// and retention; their rows stay until the drop of their segment, since no row of a segment is deleted (P5).
// Regime: PG. Locks: queue locks, briefly; RowExclusiveLock on the events of these segments, to the end of the
// transaction.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/job_control.hpp"
#include "jobs/job_record.hpp"
#include "jobs/purge.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

constexpr int kBatch = 200;

States states_to_purge(const char *name)
{
	States states = kAllPurgeable;
	const bool known = strcmp(name, "all") == 0 || parse_state(name, &states);
	if ((states.live & bit_of(State::running)) != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("running jobs are never purged"),
						errhint("Ask their workers to stop with tq_cancel, and purge them when they have ended.")));
	if (!known)
		unknown_state(psprintf("unknown state \"%s\"", name), name, kAllPurgeable, true);
	return states;
}

} // namespace

bool purge_found(Db &db, const Search &s, int64 max, int64 *done)
{
	journal::EventRow rows[kBatch];
	uint16_t slots[kBatch];
	int n = 0;
	bool memory_full = false;
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq_purge job", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(each);
	for (int64 i = 0; i < s.ids.n && !memory_full && *done < max; ++i)
	{
		MemoryContextReset(each);
		CHECK_FOR_INTERRUPTS();
		reserve_ops(1);
		FetchedJob pinned;
		const Taken taken = s.ended != 0 ? take_record(db, s.ids[i], s.ended, &pinned) : Taken::skipped;
		if (taken == Taken::taken)
		{
			rows[n] = purged_event(pinned, nullptr);
			slots[n++] = static_cast<uint16_t>(pinned.segment);
			++*done;
		}
		else if (taken == Taken::memory_full)
			memory_full = true;
		else if (s.waiting != 0)
		{
			JobRequest r;
			r.id = s.ids[i];
			r.verb = Verb::purge;
			r.states = s.waiting;
			const JobResult out = change(db, r);
			memory_full = out.verdict == Verdict::memory_full;
			*done += out.verdict == Verdict::done;
			if (out.verdict == Verdict::busy && (s.waiting & bit_of(State::running)) != 0)
				raise_outcome(r, out);
		}
		if (n == kBatch || (n > 0 && (i + 1 == s.ids.n || memory_full || *done == max)))
		{
			append_by_segment(db, {.rows = rows, .slots = slots, .n = n});
			n = 0;
		}
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	return !memory_full;
}

void raise_memory_full_for_purge()
{
	ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("no room in memory to purge any job"),
					errhint("Raise tq.max_live_jobs and restart the server.")));
}

int64 purge(Db &db, Search *search)
{
	Search &s = *search;
	s.now = wall_now();
	s.context = AllocSetContextCreate(CurrentMemoryContext, "tq_purge found", ALLOCSET_DEFAULT_SIZES);
	// each purged job uses an entry until the transaction ends, and other sessions need entries, too
	const int64 max = std::max(guc::max_live_jobs / 2, 1);
	int64 done = 0;
	bool memory_full = false;
	for (const SegmentView &segment : view_segments(db))
	{
		if (memory_full || done >= max)
			break;
		s.ids.n = 0;
		search_segment(&s, segment);
		if (s.ids.n > 0 && keep_segment(segment))
			memory_full = !purge_found(db, s, max, &done);
	}
	MemoryContextDelete(s.context);
	if (memory_full && done == 0)
		raise_memory_full_for_purge();
	if (memory_full || done == max)
		ereport(NOTICE, (errmsg("one transaction purges at most %lld jobs", static_cast<long long>(done)),
						 errhint("Commit and call the function again for the rest.")));
	return done;
}

Taken take_record(Db &db, core::JobId id, uint32 states, FetchedJob *pinned)
{
	*pinned = fetch_job(db, id, true, For::record);
	if (pinned->result == Fetch::memory_full)
		return Taken::memory_full;
	if (pinned->result == Fetch::busy)
		raise_being_read(id);
	if (pinned->result != Fetch::terminal)
		return Taken::skipped;
	if ((states & bit_of(pinned->fold.state)) == 0)
	{
		drop_placeholder(db, pinned->queue, pinned->ref, false);
		return Taken::skipped;
	}
	mark_record(*pinned, Verb::forget, 0);
	last_op().event = journal::EventType::purged;
	return Taken::taken;
}

journal::EventRow purged_event(const FetchedJob &pinned, const char *reason) noexcept
{
	journal::EventRow row;
	row.job_id = pinned.row.id;
	row.queue = pinned.queue;
	row.at = wall_now();
	row.step = pinned.fold.next_step;
	row.type = journal::EventType::purged;
	row.reason = reason;
	return row;
}

// queue, state
TQ_FUNCTION(tq_purge)
{
	require_writable("tq_purge()");
	const char *name = text_required(fcinfo, 0, "queue");
	const char *state = text_required(fcinfo, 1, "state", kWordLimit);
	const States states = states_to_purge(state);
	Search s;
	s.ended = states.ended;
	s.waiting = states.live;
	Db &db = loaded_database(fcinfo);
	s.queue_id = engine.queue(queue_with_right(db, name, kOperate)).id;
	const int64 done = purge(db, &s);
	record_action(db, "purge", s.queue_id, 0, Facts().add("state", state).add("jobs", done));
	PG_RETURN_INT64(done);
}

} // namespace tq
