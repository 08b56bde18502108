#include "jobs/find.hpp"

#include "jobs/error_groups.hpp"
#include "queues/rights.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "transaction/pending.hpp"
#include "pg/array.hpp"

extern "C"
{
#include "catalog/pg_collation_d.h"
#include "utils/fmgrprotos.h"
}

namespace tq
{

using journal::FoldState;

namespace
{

// A segment being walked. `step` is the next one of its walk.
struct OpenSegment
{
	SegmentView view;
	journal::Walk *walk;
	journal::WalkStep step;
};

struct RunningJob
{
	JobId id;
	int segment; // slot
};

// Running jobs that one call may look at; more are found by the next call.
constexpr int64 kMostRunning = 4096;

// The clock may go back by so much. Then jobs with greater ids have earlier times.
constexpr Micros kClockSlack = 3600 * core::kSecond;

} // namespace

struct Finder
{
	Db *db;
	JobFilter filter;
	FindTerms terms;
	Snapshot snapshot;
	MemoryContext context;
	MemoryContext each; // of one job that was looked at
	const Rights *mine;
	uint16_t queue; // slot; kNoQueue
	int32 queue_id; // 0: all
	bool readable;	// that queue
	Micros now;
	bool changing;		   // the open transaction has changes that the counters do not show
	int64 low, high;	   // ids
	pg::Array<SegmentView> segments; // in the order in which they are reached
	int next;
	OpenSegment *open;
	int nopen;
	int64 closed_cost;			   // of walks that are closed
	bool from_memory;			   // only running jobs
	pg::Array<RunningJob> running; // a heap while they are collected, then in the order of the walk
	int64 next_running;
	JobId cursor;
};

namespace
{

bool is_before(const Finder *f, int64 a, int64 b) noexcept { return f->terms.newest ? a > b : a < b; }

// The first id of a segment that the walk may reach. Segment 0 may have any ids, since it also takes jobs that outlive
// their segment (R3).
int64 reach_of(const Finder *f, const SegmentView &s) noexcept
{
	if (s.tables.number == 0)
		return f->terms.newest ? f->high : f->low;
	return f->terms.newest ? std::min(f->high, s.last_id) : std::max(f->low, s.first_id);
}

bool overlaps(const Finder *f, const SegmentView &s) noexcept
{
	return s.tables.number == 0 || (s.first_id <= f->high && s.last_id >= f->low);
}

// Whether a segment may have such jobs, as far as its counters tell.
bool may_hold(const Finder *f, const SegmentView &s) noexcept
{
	const States &wanted = f->filter.states;
	if (s.state == SegmentState::free || s.state == SegmentState::dropping || !overlaps(f, s))
		return false;
	if (f->changing || s.tables.number == 0 || s.state == SegmentState::open)
		return true;
	const bool no_live = s.state == SegmentState::finished || s.live <= 0;
	// an overdue job has expired for a search, but the counters still have it among the live ones
	if (!no_live && (wanted.live != 0 || (wanted.ended & bit_of(FoldState::expired)) != 0))
		return true;
	if (wanted.ended == 0 || !may_have_ended(s, wanted.ended))
		return false;
	const bool only_dead = (wanted.ended & ~(bit_of(FoldState::dead) | bit_of(FoldState::buried))) == 0;
	return !only_dead || !dead_known(s.dead) || s.dead > 0;
}

// The ended states whose events the walk reads instead of the jobs; 0: it reads the jobs. Events are cheaper where few
// jobs of a segment are likely to match.
uint32 ended_to_walk(const Finder *f, const SegmentView &s) noexcept
{
	const States &wanted = f->filter.states;
	const bool no_live = !f->changing && (s.state == SegmentState::finished ||
										  (s.state == SegmentState::sealed && s.tables.number != 0 && s.live <= 0));
	if (wanted.ended == 0 || (wanted.ended & bit_of(FoldState::succeeded)) != 0)
		return 0;
	if (!no_live && (wanted.live != 0 || (wanted.ended & bit_of(FoldState::expired)) != 0))
		return 0;
	return wanted.ended;
}

void close_segment(Finder *f, int i)
{
	f->closed_cost += journal::walk_cost(f->open[i].walk);
	journal::walk_close(f->open[i].walk);
	f->open[i] = f->open[--f->nopen];
}

journal::Walk *open_walk(Finder *f, const SegmentView &s, const journal::WalkTerms &terms)
{
	MemoryContext old = MemoryContextSwitchTo(f->context); // it outlives `each`
	journal::Walk *walk = journal::walk_open(s.tables, terms, f->snapshot);
	MemoryContextSwitchTo(old);
	return walk;
}

void open_segment(Finder *f, const SegmentView &s)
{
	journal::WalkTerms t;
	t.newest = f->terms.newest;
	t.low = s.tables.number == 0 ? f->low : std::max(f->low, s.first_id);
	t.high = s.tables.number == 0 ? f->high : std::min(f->high, s.last_id);
	t.queue_id = f->queue_id;
	t.kind = f->filter.kind;
	t.group_key = f->queue_id != 0 ? f->filter.group_key : nullptr; // the index begins with the queue
	t.ended = ended_to_walk(f, s);
	if (f->filter.created_from != journal::kNoTime)
		t.from = f->filter.created_from - kClockSlack;
	if (f->filter.created_to != journal::kNoTime)
		t.to = f->filter.created_to + kClockSlack;
	OpenSegment &o = f->open[f->nopen];
	o.view = s;
	o.walk = open_walk(f, s, t);
	++f->nopen;
	if (!journal::walk_next(o.walk, &o.step))
		close_segment(f, f->nopen - 1);
}

int64 cost_of(const Finder *f) noexcept
{
	int64 cost = f->closed_cost;
	for (int i = 0; i < f->nopen; ++i)
		cost += journal::walk_cost(f->open[i].walk);
	return cost;
}

// The open segment with the next id; -1 if none is open.
int best_of(const Finder *f) noexcept
{
	int best = -1;
	for (int i = 0; i < f->nopen; ++i)
		if (best < 0 || is_before(f, f->open[i].step.id, f->open[best].step.id))
			best = i;
	return best;
}

bool has_tag(ArrayType *tags, const char *tag)
{
	Datum *elements = nullptr;
	bool *nulls = nullptr;
	int n = 0;
	if (tags == nullptr || ARR_ELEMTYPE(tags) != TEXTOID)
		return false;
	deconstruct_array(tags, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &n);
	const auto length = static_cast<int>(strlen(tag));
	for (int i = 0; i < n; ++i)
		if (!nulls[i])
		{
			const text *t = DatumGetTextPP(elements[i]);
			if (VARSIZE_ANY_EXHDR(t) == static_cast<Size>(length) && memcmp(VARDATA_ANY(t), tag, length) == 0)
				return true;
		}
	return false;
}

bool is_text(const text *value, const char *wanted) noexcept
{
	return value != nullptr && VARSIZE_ANY_EXHDR(value) == strlen(wanted) &&
		   memcmp(VARDATA_ANY(value), wanted, strlen(wanted)) == 0;
}

bool contains(Jsonb *payload, Jsonb *wanted)
{
	return payload != nullptr &&
		   DatumGetBool(DirectFunctionCall2(jsonb_contains, JsonbPGetDatum(payload), JsonbPGetDatum(wanted)));
}

bool contents_match(const JobFilter &filter, const journal::JobRow &row)
{
	return (filter.tag == nullptr || has_tag(row.tags, filter.tag)) &&
		   (filter.unique_key == nullptr || is_text(row.unique_key, filter.unique_key)) &&
		   (filter.search == nullptr || contains(row.payload, filter.search));
}

bool row_matches(const Finder *f, const journal::Candidate &c, bool *readable)
{
	const JobFilter &w = f->filter;
	if (f->queue_id != 0 ? c.queue_id != f->queue_id : !f->mine->may(c.queue_id, f->terms.right))
		return false;
	*readable = f->queue_id != 0 ? f->readable : f->mine->may_read(c.queue_id);
	return (*readable || !w.asks_contents()) && (w.kind == nullptr || strcmp(c.has_kind ? c.kind : "", w.kind) == 0) &&
		   (w.group_key == nullptr || (c.has_group && strcmp(c.group, w.group_key) == 0)) &&
		   (w.created_from == journal::kNoTime || c.enqueued_at >= w.created_from) &&
		   (w.created_to == journal::kNoTime || c.enqueued_at <= w.created_to);
}

bool error_matches(journal::Walk *walk, JobId id, const journal::Fold &fold, const char *error)
{
	if (!fold.dead())
		return false;
	const char *reason = journal::walk_reason(walk, id, fold.next_step - 1);
	return strcmp(reason != nullptr ? group_of_error(reason) : "", error) == 0;
}

// Whether the job matches. Allocates in f->each.
bool examine(Finder *f, journal::Walk *walk, const SegmentView &segment, const journal::Candidate &c, FoundJob *out)
{
	const JobFilter &w = f->filter;
	if (!row_matches(f, c, &out->readable))
		return false;
	journal::Fold fold;
	journal::walk_fold(walk, c.id, &fold);
	// a moved job comes again in segment 0
	if (fold.state == FoldState::moved || fold.state == FoldState::purged)
		return false;
	out->now = job_now(*f->db, c, fold, f->now);
	if ((out->now.ended ? w.states.ended & bit_of(out->now.how) : w.states.live & bit_of(out->now.state)) == 0 ||
		(w.worker != nullptr && strcmp(out->now.worker, w.worker) != 0))
		return false;
	if (w.error != nullptr && !error_matches(walk, c.id, fold, w.error))
		return false;
	if (f->terms.contents || w.tag != nullptr || w.unique_key != nullptr || w.search != nullptr)
		if (!journal::walk_row(walk, c, &out->contents) || !contents_match(w, out->contents))
			return false;
	out->row = c;
	out->segment = segment;
	return true;
}

// --- running jobs, from memory -----------------------------------------------------------------------------------

// Whether this database's running job in entry `r` may match. Most entries fail the first check, which takes no lock;
// the others are checked again under the lock.
bool runs_in(const Finder *f, core::Ref r, RunningJob *out) noexcept
{
	const Entry &e = engine.entry(r);
	const uint16_t home = core::Engine::home_of(e);
	if (home == 0 || e.state != State::running || (f->queue != kNoQueue && home != f->queue + 1))
		return false;
	const auto slot = static_cast<uint16_t>(home - 1);
	lock_queue(slot);
	const Queue &q = engine.queue(slot);
	bool ours =
		e.home == home && q.db == index_of(*f->db) && e.state == State::running && e.id >= f->low && e.id <= f->high;
	if (ours && f->filter.kind != nullptr)
		ours = strcmp(engine.lane(e.lane).kind, f->filter.kind) == 0;
	if (ours && f->filter.worker != nullptr)
	{
		const char *worker = worker_name(e.worker());
		ours = worker != nullptr && strcmp(worker, f->filter.worker) == 0;
	}
	*out = RunningJob{e.id, e.segment};
	unlock_queue(slot);
	return ours;
}

// Collects the first running jobs in the order of the walk.
void collect_running(Finder *f)
{
	const auto before = [f](const RunningJob &a, const RunningJob &b) { return is_before(f, a.id, b.id); };
	f->running.reserve(f->context, kMostRunning);
	for (core::Ref r = 0; r < engine.limits().entries; ++r)
	{
		RunningJob job;
		if (r % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		if (!runs_in(f, r, &job))
			continue;
		if (f->running.n == kMostRunning)
		{
			if (!before(job, f->running[0]))
				continue;
			std::pop_heap(f->running.begin(), f->running.end(), before);
			--f->running.n;
		}
		f->running.push(job);
		std::push_heap(f->running.begin(), f->running.end(), before);
	}
	std::sort_heap(f->running.begin(), f->running.end(), before);
}

// The open walk of the segment in this slot; null if it is gone. Only one is open.
journal::Walk *walk_in(Finder *f, int slot)
{
	if (f->nopen > 0 && f->open[0].view.slot == slot)
		return f->open[0].walk;
	if (f->nopen > 0)
		close_segment(f, 0);
	for (int64 i = 0; i < f->segments.n; ++i)
		if (f->segments[i].slot == slot)
		{
			OpenSegment &o = f->open[0];
			o.view = f->segments[i];
			o.walk = open_walk(f, o.view, journal::WalkTerms{});
			f->nopen = 1;
			return o.walk;
		}
	return nullptr;
}

bool next_running(Finder *f, FoundJob *out)
{
	while (f->next_running < f->running.n)
	{
		if (cost_of(f) > f->terms.budget)
			return false;
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(f->each);
		const RunningJob &job = f->running[f->next_running++];
		journal::Candidate c;
		journal::Walk *walk = walk_in(f, job.segment);
		f->cursor = job.id;
		if (walk != nullptr && journal::walk_find(walk, job.id, &c) && examine(f, walk, f->open[0].view, c, out))
			return true;
	}
	if (f->running.n < kMostRunning) // all were collected
		f->cursor = 0;
	return false;
}

// --- all jobs, from the journal ----------------------------------------------------------------------------------

bool next_stored(Finder *f, FoundJob *out)
{
	const int64 start = f->terms.newest ? f->high : f->low;
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		while (f->next < f->segments.n && !may_hold(f, f->segments[f->next]))
			++f->next;
		int best = best_of(f);
		const bool more = f->next < f->segments.n;
		if (best < 0 && !more)
		{
			f->cursor = 0;
			return false;
		}
		// the call has looked at all ids before this one
		int64 at = best >= 0 ? f->open[best].step.id : reach_of(f, f->segments[f->next]);
		if (more && is_before(f, reach_of(f, f->segments[f->next]), at))
			at = reach_of(f, f->segments[f->next]);
		if (cost_of(f) > f->terms.budget && is_before(f, start, at)) // each call passes at least one id
		{
			f->cursor = at + (f->terms.newest ? 1 : -1);
			return false;
		}
		if (more && (best < 0 || !is_before(f, f->open[best].step.id, reach_of(f, f->segments[f->next]))))
		{
			open_segment(f, f->segments[f->next++]);
			continue;
		}
		OpenSegment &o = f->open[best];
		const journal::WalkStep step = o.step;
		const bool matches = step.found && examine(f, o.walk, o.view, step.job, out);
		if (!journal::walk_next(o.walk, &o.step))
			close_segment(f, best);
		f->cursor = step.id;
		if (matches)
			return true;
		MemoryContextReset(f->each);
	}
}

// Without a named queue: a role with the right on a single queue looks at its jobs only, a role without any at none.
void narrow_by_rights(Finder *f)
{
	if ((f->mine->everywhere & f->terms.right) != 0)
		return;
	int n = 0;
	int32 only = 0;
	for (const QueueRights &r : f->mine->list)
		if ((r.mask & f->terms.right) != 0)
		{
			only = r.queue_id;
			++n;
		}
	if (n == 0)
		f->segments.n = 0;
	else if (n == 1)
		f->queue_id = only;
}

} // namespace

Finder *begin_find(Db &db, const JobFilter &filter, const FindTerms &terms, Snapshot snapshot)
{
	const uint8 right = filter.asks_contents() ? kMayRead : terms.right;
	uint16_t queue = kNoQueue;
	if (filter.queue != nullptr)
	{
		queue = queue_with_right(db, filter.queue, terms.right);
		require_right(db, queue, filter.queue, right);
	}
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tq find", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	auto *f = static_cast<Finder *>(palloc0(sizeof(Finder)));
	f->db = &db;
	f->filter = filter;
	f->terms = terms;
	f->snapshot = snapshot;
	f->context = context;
	f->each = AllocSetContextCreate(context, "tq find job", ALLOCSET_DEFAULT_SIZES);
	f->mine = &rights(db);
	f->queue = queue;
	if (queue != kNoQueue)
	{
		f->queue_id = engine.queue(queue).id;
		f->readable = f->mine->may_read(engine.queue(queue));
	}
	f->now = wall_now();
	f->changing = op_count() > 0 || has_bulks();
	f->low = !terms.newest && terms.after != 0 ? terms.after + 1 : 1;
	f->high = terms.newest && terms.after != 0 ? terms.after - 1 : journal::kLastId;
	f->segments = view_segments(db);
	if (queue == kNoQueue)
	{
		narrow_by_rights(f);
		f->readable = f->queue_id != 0 && f->mine->may_read(f->queue_id);
	}
	std::stable_sort(f->segments.begin(), f->segments.end(), [f](const SegmentView &a, const SegmentView &b) {
		return is_before(f, reach_of(f, a), reach_of(f, b));
	});
	f->open = static_cast<OpenSegment *>(palloc(sizeof(OpenSegment) * static_cast<Size>(f->segments.n + 1)));
	f->from_memory = filter.states.ended == 0 && filter.states.live == bit_of(State::running);
	if (f->from_memory)
		collect_running(f);
	MemoryContextSwitchTo(old);
	return f;
}

bool find_next(Finder *f, FoundJob *out)
{
	MemoryContext old = MemoryContextSwitchTo(f->each);
	MemoryContextReset(f->each);
	const bool found = f->from_memory ? next_running(f, out) : next_stored(f, out);
	MemoryContextSwitchTo(old);
	return found;
}

JobId find_cursor(const Finder *f) { return f->cursor; }

void end_find(Finder *f)
{
	while (f->nopen > 0)
		close_segment(f, f->nopen - 1);
	MemoryContextDelete(f->context);
}

} // namespace tq
