// tq_purge: takes the jobs of a queue that are in a state out of the books. Jobs that wait end as purged; those that have ended are
// forgotten by the lists and by retention, and their rows go with their segment (nothing of a segment is ever deleted, P5).
// Regime: PG. Locks: queue locks, briefly; RowExclusiveLock on the events of the segments concerned, to the end of the transaction.
#include "api/args.hpp"
#include "api/change.hpp"
#include "api/ended.hpp"
#include "api/names.hpp"
#include "api/search.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "pg/function.hpp"

namespace tq::api
{

namespace
{

using journal::FoldState;
using live::State;

constexpr uint32 kAllEnded = bit_of(FoldState::succeeded) | bit_of(FoldState::dead) | bit_of(FoldState::buried) |
							 bit_of(FoldState::cancelled) | bit_of(FoldState::expired);
constexpr uint32 kAllWaiting = live::bit_of(State::ready) | live::bit_of(State::delayed) | live::bit_of(State::blocked);
constexpr int kBatch = 200;

void parse_state(const char *name, Search *s)
{
	FoldState ended{};
	if (strcmp(name, "all") == 0)
	{
		s->ended = kAllEnded;
		s->waiting = kAllWaiting;
	}
	else if (strcmp(name, "ready") == 0)
		s->waiting = live::bit_of(State::ready);
	else if (strcmp(name, "delayed") == 0)
		s->waiting = live::bit_of(State::delayed);
	else if (strcmp(name, "blocked") == 0)
		s->waiting = live::bit_of(State::blocked);
	else if (parse_ended(name, &ended) && (kAllEnded & bit_of(ended)) != 0)
		s->ended = bit_of(ended);
	else if (strcmp(name, "running") == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("running jobs are never purged"),
						errhint("Ask their workers to stop with tq_cancel, and purge them when they have ended.")));
	else
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown state \"%s\"", name),
						errhint("The state can be ready, delayed, blocked, succeeded, dead, buried, cancelled, expired, or all.")));
}

// Purges what was found in one segment, at most `max`; false when memory has no room for more.
bool purge_found(live::Db &db, const Search &s, int64 max, int64 *done)
{
	journal::EventRow rows[kBatch];
	uint16_t slots[kBatch];
	int n = 0;
	bool room = true;
	MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq_purge job", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(each);
	for (int64 i = 0; i < s.n && room && *done < max; ++i)
	{
		MemoryContextReset(each);
		CHECK_FOR_INTERRUPTS();
		live::reserve_ops(1);
		live::Pinned pinned;
		const Taken taken = s.ended != 0 ? take_ended(db, s.ids[i], s.ended, &pinned) : Taken::skipped;
		if (taken == Taken::taken)
		{
			rows[n] = purged_event(pinned, nullptr);
			slots[n++] = static_cast<uint16_t>(pinned.segment);
			++*done;
		}
		else if (taken == Taken::no_room)
			room = false;
		else if (s.waiting != 0)
		{
			Request r;
			r.id = s.ids[i];
			r.verb = live::Verb::purge;
			r.states = s.waiting;
			const Outcome out = change(db, r);
			room = out.verdict != Verdict::no_room;
			*done += out.verdict == Verdict::done;
		}
		if (n == kBatch || (n > 0 && (i + 1 == s.n || !room || *done == max)))
		{
			live::append_by_segment(db, rows, slots, n);
			n = 0;
		}
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	return room;
}

} // namespace

Taken take_ended(live::Db &db, core::JobId id, uint32 states, live::Pinned *pinned)
{
	*pinned = live::pin(db, id, true);
	if (pinned->result == live::Pin::no_room)
		return Taken::no_room;
	if (pinned->result == live::Pin::busy)
		live::raise_being_read(id);
	if (pinned->result != live::Pin::terminal)
		return Taken::skipped;
	if ((states & bit_of(pinned->fold.state)) == 0)
	{
		live::drop_placeholder(db, pinned->queue, pinned->ref, false);
		return Taken::skipped;
	}
	live::hold_record(*pinned, live::Verb::forget, 0);
	live::last_op().event = journal::EventType::purged;
	return Taken::taken;
}

journal::EventRow purged_event(const live::Pinned &pinned, const char *reason) noexcept
{
	journal::EventRow row;
	row.job_id = pinned.row.id;
	row.at = live::wall_now();
	row.step = pinned.fold.next_step;
	row.type = journal::EventType::purged;
	row.reason = reason;
	return row;
}

} // namespace tq::api

using namespace tq;
using namespace tq::api;

// queue, state
TQ_FUNCTION(tq_purge)
{
	require_writable("tq_purge()");
	const char *name = text_required(fcinfo, 0, "queue");
	Search s;
	parse_state(text_required(fcinfo, 1, "state"), &s);
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	s.queue_id = live::engine.queue(live::queue_with_right(db, name, live::kManage)).id;
	s.now = live::wall_now();
	s.context = AllocSetContextCreate(CurrentMemoryContext, "tq_purge found", ALLOCSET_DEFAULT_SIZES);
	// each takes a place in memory until the transaction ends, and others need theirs
	const int64 max = std::max(guc::max_live_jobs / 2, 1);
	int64 done = 0;
	bool room = true;
	int n = 0;
	const live::SegmentView *segments = segments_of(db, &n);
	for (int i = 0; i < n && room && done < max; ++i)
	{
		s.n = 0;
		search_segment(&s, segments[i]);
		if (s.n > 0 && keep_segment(segments[i]))
			room = purge_found(db, s, max, &done);
	}
	MemoryContextDelete(s.context);
	if (!room && done == 0)
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("no room in memory to purge any job"),
						errhint("Raise tq.max_live_jobs and restart the server.")));
	if (!room || done == max)
		ereport(NOTICE, (errmsg("one transaction purges at most %lld jobs", static_cast<long long>(done)),
						 errhint("Commit and call tq_purge() again for the rest.")));
	PG_RETURN_INT64(done);
}
