// The functions behind the views of all jobs and of dead letters, from the journal. They read one segment at a time and
// release its lock before the next; no plan includes the parents (H24). live_views.cpp has the views of memory.
// Regime: PG. Locks: queue locks, one entry at a time.
#include "api/names.hpp"
#include "database/attach.hpp"
#include "introspection/names_by_id.hpp"
#include "jobs/job_now.hpp"
#include "jobs/search.hpp"
#include "journal/reasons.hpp"
#include "journal/walk.hpp"
#include "queues/queue_retention.hpp"
#include "queues/rights.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "pg/array.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

using journal::FoldState;

// of the type tq.job_line
constexpr pg::ColumnSpec kJobLine[] = {
	{"id", INT8OID},
	{"queue", TEXTOID},
	{"kind", TEXTOID},
	{"state", TEXTOID},
	{"priority", INT4OID},
	{"attempt", INT4OID},
	{"max_attempts", INT4OID},
	{"run_at", TIMESTAMPTZOID},
	{"enqueued_at", TIMESTAMPTZOID},
	{"expires_at", TIMESTAMPTZOID},
	{"group_key", TEXTOID},
	{"unique_key", TEXTOID},
	{"tags", TEXTARRAYOID},
};
constexpr int kAddedToJobLine = 3; // since 0.1.0
constexpr pg::ColumnSpec kDead[] = {
	{"id", INT8OID},
	{"queue", TEXTOID},
	{"kind", TEXTOID},
	{"state", TEXTOID},
	{"priority", INT4OID},
	{"attempts", INT4OID},
	{"max_attempts", INT4OID},
	{"reason", TEXTOID},
	{"detail", JSONBOID},
	{"last_error", TEXTOID},
	{"worker", TEXTOID},
	{"enqueued_at", TIMESTAMPTZOID},
	{"claimed_at", TIMESTAMPTZOID},
	{"died_at", TIMESTAMPTZOID},
	{"kept_until", TIMESTAMPTZOID},
};

// --- sets that are returned row by row ---------------------------------------------------------------------------

// Reads a set in batches. The rows of one batch wait in `store`, so that no lock outlives a call, and a LIMIT ends the
// reading early. Batches grow, so that a few rows are cheap and all rows cost little more than one pass.
struct Stream
{
	Db *db;
	pg::Array<SegmentView> segments;
	int next;
	pg::RowType type;
	Tuplestorestate *store;
	TupleTableSlot *slot;
	QueueNames names;
	const Rights *mine; // while a batch is read
};

void end_store(Stream *s)
{
	if (s->store != nullptr)
		tuplestore_end(s->store);
	s->store = nullptr;
}

// Closes temporary files if the query ends before the scan does.
void end_early(Datum arg) { end_store(reinterpret_cast<Stream *>(DatumGetPointer(arg))); }

void put(const Stream &s, pg::RowValues &r) { pg::put_row(s.store, s.type, r.values, r.nulls); }

// Returns the next row of the calling function. `more` reads a batch of the segment `next` into the store, which may
// stay empty, and moves to the next segment after the last one. S is a Stream, zero at first.
template <class S>
Datum next_row(FunctionCallInfo fcinfo, const char *name, const pg::RowShape &shape, void (*more)(S *))
{
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	if (SRF_IS_FIRSTCALL())
	{
		if (rs == nullptr || !IsA(rs, ReturnSetInfo))
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("set-valued function %s called in context that cannot accept a set", name)));
		Db &db = loaded_database(fcinfo);
		FuncCallContext *context = SRF_FIRSTCALL_INIT();
		MemoryContext old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		auto *s = static_cast<S *>(palloc0(sizeof(S)));
		s->db = &db;
		s->segments = view_segments(db);
		s->type = pg::returned_row(fcinfo, shape);
		s->slot = MakeSingleTupleTableSlot(s->type.desc, &TTSOpsMinimalTuple);
		s->names = QueueNames{&db};
		context->user_fctx = s;
		RegisterExprContextCallback(rs->econtext, end_early, PointerGetDatum(s));
		MemoryContextSwitchTo(old);
	}
	FuncCallContext *context = SRF_PERCALL_SETUP();
	auto *s = static_cast<S *>(context->user_fctx);
	for (;;)
	{
		// a tuple that is read back from a file lives as long as the slot holds it
		MemoryContext old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		const bool found = s->store != nullptr && tuplestore_gettupleslot(s->store, true, false, s->slot);
		MemoryContextSwitchTo(old);
		if (found)
			SRF_RETURN_NEXT(context, ExecFetchSlotHeapTupleDatum(s->slot));
		ExecClearTuple(s->slot);
		end_store(s);
		while (s->next < s->segments.n && (s->segments[s->next].state == SegmentState::free ||
								  s->segments[s->next].state == SegmentState::dropping))
			++s->next;
		if (s->next == s->segments.n)
			break;
		MemoryContextSwitchTo(context->multi_call_memory_ctx);
		s->store = tuplestore_begin_heap(false, false, work_mem);
		MemoryContextSwitchTo(old);
		s->mine = &rights(*s->db);
		more(s);
	}
	UnregisterExprContextCallback(rs->econtext, end_early, PointerGetDatum(s));
	SRF_RETURN_DONE(context);
}

// --- jobs --------------------------------------------------------------------------------------------------------

// Larger batches are whole segments, read in one pass.
constexpr int kMostWalked = 1024;

struct JobStream : Stream
{
	int64 last; // the segment's jobs up to this id were returned; 0: none
	int batch;
	core::Micros now;
};

bool is_listed(const JobStream &w, const journal::Candidate &c, const journal::Fold &fold)
{
	// a moved job comes again in segment 0; a purged job is not listed
	return c.id > w.last && fold.state != FoldState::moved && fold.state != FoldState::purged &&
		   w.mine->may(c.queue_id, kMayLook);
}

void put_job(JobStream &w, const journal::Candidate &c, const journal::Fold &fold, const journal::JobKeys &keys)
{
	const bool readable = w.mine->may_read(c.queue_id);
	const JobNow job = job_now(*w.db, c, fold, w.now);
	pg::RowValues r;
	r.add_int8(c.id);
	r.add_name(w.names.of(c.queue_id));
	r.add_text(c.has_kind ? c.kind : nullptr);
	r.add_text(job.name());
	r.add_int(job.priority);
	r.add_int(job.attempt);
	r.add(Int32GetDatum(c.max_attempts), c.max_attempts == 0);
	r.add_time(job.run_at);
	r.add_time(c.enqueued_at);
	r.add_time(job.expires_at);
	r.add_text(readable ? c.group_key() : nullptr);
	r.add_pointer(readable ? keys.unique_key : nullptr);
	r.add_pointer(readable ? keys.tags : nullptr);
	put(w, r);
}

void visit_job(const journal::Candidate &c, const journal::Fold &fold, const journal::Values &row, void *arg)
{
	auto &w = *static_cast<JobStream *>(arg);
	if (is_listed(w, c, fold))
		put_job(w, c, fold, journal::keys_of(row));
}

void next_segment(JobStream *w)
{
	++w->next;
	w->last = 0;
}

// Reads the next jobs of the segment by id.
void walk_jobs(JobStream *w, const journal::Segment &segment)
{
	journal::WalkTerms terms;
	terms.newest = false;
	terms.low = w->last + 1;
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_SMALL_SIZES);
	journal::Walk *walk = journal::walk_open(segment, terms, GetActiveSnapshot());
	MemoryContext old = MemoryContextSwitchTo(row);
	journal::WalkStep step;
	int n = 0;
	for (; n < w->batch && journal::walk_next(walk, &step); ++n)
	{
		journal::Fold fold;
		journal::walk_fold(walk, step.id, &fold);
		if (is_listed(*w, step.job, fold))
			put_job(*w, step.job, fold, journal::walk_keys(walk));
		w->last = step.id;
		MemoryContextReset(row);
	}
	MemoryContextSwitchTo(old);
	journal::walk_close(walk);
	MemoryContextDelete(row);
	if (n < w->batch)
		next_segment(w);
	else
		w->batch *= 4;
}

void more_jobs(JobStream *w)
{
	const journal::Segment &segment = w->segments[w->next].tables;
	w->batch = std::max(w->batch, 16);
	w->now = wall_now();
	if (w->batch <= kMostWalked)
		return walk_jobs(w, segment);
	journal::scan_segment(segment, GetActiveSnapshot(), true, visit_job, w);
	next_segment(w);
}

// --- dead --------------------------------------------------------------------------------------------------------

// Deaths are found in the order of the event table, a number of pages at a time.
struct Death
{
	int64 id;
	int32 step;
};

struct DeadStream : Stream
{
	uint32 page;
	uint32 pages; // of the next batch
	pg::Array<Death> found;
	MemoryContext context;
};

constexpr uint32 kFirstPages = 8;
constexpr uint32 kMostPages = 4096;

void note_death(int64 job_id, int32 step, journal::EventType type, void *arg)
{
	auto &d = *static_cast<DeadStream *>(arg);
	if (type == journal::EventType::dead || type == journal::EventType::buried)
		d.found.append(d.context, Death{job_id, step});
}

// The last error of a tq_fail; if the job died of another cause, that event is a later one.
const char *last_error_of(const pg::Array<journal::EventRow> &events) noexcept
{
	for (int64 i = events.n; i-- > 0;)
	{
		const journal::EventRow &e = events[i];
		if (e.type == journal::EventType::failed ||
			(e.type == journal::EventType::dead && e.lease != 0 && !journal::is_own_reason(e.reason)))
			return e.reason;
	}
	return nullptr;
}

// The event of the last attempt.
const journal::EventRow *last_attempt_of(const pg::Array<journal::EventRow> &events) noexcept
{
	for (int64 i = events.n; i-- > 0;)
		if (events[i].lease != 0 && events[i].type != journal::EventType::asked_cancel &&
			events[i].type != journal::EventType::superseded)
			return &events[i];
	return nullptr;
}

// Returns the job if it is dead, and this was its last death.
void put_death(DeadStream *d, const journal::Segment &segment, journal::Walk *walk, const Death &death)
{
	journal::Candidate job;
	journal::Fold fold;
	if (!journal::walk_find(walk, death.id, &job) || !d->mine->may(job.queue_id, kMayLook))
		return;
	journal::walk_fold(walk, death.id, &fold);
	if (!fold.dead())
		return;
	const pg::Array<journal::EventRow> events = journal::job_events(segment, job.id, GetActiveSnapshot());
	const auto wanted = fold.state == FoldState::buried ? journal::EventType::buried : journal::EventType::dead;
	const journal::EventRow *last = nullptr;
	for (const journal::EventRow &e : events)
		if (e.type == wanted)
			last = &e;
	if (last == nullptr || last->step != death.step)
		return;
	const bool readable = d->mine->may_read(job.queue_id);
	const journal::EventRow *attempt = last_attempt_of(events);
	pg::RowValues r;
	r.add_int8(job.id);
	r.add_name(d->names.of(job.queue_id));
	r.add_text(job.has_kind ? job.kind : nullptr);
	r.add_text(name_of(fold.state));
	r.add_int(fold.has_priority ? fold.priority : job.priority);
	r.add_int(fold.attempt);
	r.add_int(attempts_allowed(job.max_attempts, d->names.slot));
	r.add_name(readable ? last->reason : nullptr);
	r.add_pointer(readable ? last->detail : nullptr);
	r.add_name(readable ? last_error_of(events) : nullptr);
	r.add_name(attempt != nullptr ? attempt->worker : nullptr);
	r.add_time(job.enqueued_at);
	r.add_time(attempt != nullptr ? attempt->claimed_at : journal::kNoTime);
	r.add_time(last->at);
	r.add_time(last->at + retention_of_queue(d->names.slot).dead);
	put(*d, r);
}

// Whether memory knows that the segment has no dead job.
bool has_none(const SegmentView &s) noexcept
{
	constexpr uint32 kDeaths = bit_of(FoldState::dead) | bit_of(FoldState::buried);
	const bool none = (dead_known(s.dead) && s.dead <= 0) || !may_have_ended(s, kDeaths);
	return s.tables.number != 0 && none && op_count() == 0 && !has_bulks();
}

void more_dead(DeadStream *d)
{
	const SegmentView &s = d->segments[d->next];
	d->context = CurrentMemoryContext;
	d->found.forget();
	d->pages = std::clamp(d->pages, kFirstPages, kMostPages);
	Snapshot snapshot = GetActiveSnapshot();
	const bool more =
		!has_none(s) && journal::scan_event_pages(s.tables, snapshot, d->page, d->pages, note_death, d);
	journal::Walk *walk = d->found.n > 0 ? journal::walk_open(s.tables, journal::WalkTerms{}, snapshot) : nullptr;
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(row);
	for (int64 i = 0; walk != nullptr && i < d->found.n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		put_death(d, s.tables, walk, d->found[i]);
		MemoryContextReset(row);
	}
	MemoryContextSwitchTo(old);
	if (walk != nullptr)
		journal::walk_close(walk);
	MemoryContextDelete(row);
	d->found.free();
	if (more)
	{
		d->page += d->pages;
		d->pages *= 2;
		return;
	}
	++d->next;
	d->page = 0;
}

} // namespace

// tq.jobs(), behind tq_jobs
TQ_FUNCTION(tq_list_jobs) { return next_row(fcinfo, "tq.jobs()", pg::row_shape(kJobLine, kAddedToJobLine), more_jobs); }

// tq.dead(), behind tq_dead
TQ_FUNCTION(tq_list_dead) { return next_row(fcinfo, "tq.dead()", pg::row_shape(kDead), more_dead); }

} // namespace tq
