// What the views show: running jobs and workers from memory, all jobs and the dead ones from the journal (H24: one segment at a time, its
// lock released before the next, nothing planned over the parents).
// Regime: PG. Locks: queue locks, one entry at a time; the registry lock while workers are copied.
#include "api/args.hpp"
#include "api/names.hpp"
#include "guc.hpp"
#include "journal/reasons.hpp"
#include "live/attach.hpp"
#include "live/load.hpp"
#include "live/loader.hpp"
#include "live/progress.hpp"
#include "live/retention.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "pg/function.hpp"

namespace tq::api
{

namespace
{

using journal::FoldState;
using live::engine;

void put_text(Datum *value, bool *null, const char *s)
{
	*null = s == nullptr || *s == '\0';
	if (!*null)
		*value = CStringGetTextDatum(s);
}

// Null: there is none, or no calendar shows it (rows written by hand may have any).
void put_time(Datum *value, bool *null, TimestampTz t)
{
	*null = !IS_VALID_TIMESTAMP(t);
	*value = TimestampTzGetDatum(t);
}

// Names of queues by tq.queue.id; neighbouring rows mostly share theirs.
struct QueueNames
{
	const live::Db *db;
	int32 id = -1;
	bool known = false;
	uint16_t slot = live::kNoQueue;
	char name[core::kNameMax] = {};

	const char *of(int32 queue_id) noexcept
	{
		if (queue_id != id)
		{
			id = queue_id;
			LWLockAcquire(live::registry_lock(), LW_SHARED);
			slot = live::queue_of_id(*db, queue_id);
			known = slot != live::kNoQueue;
			if (known)
				strlcpy(name, engine.queue(slot).name, sizeof(name));
			LWLockRelease(live::registry_lock());
		}
		return known ? name : nullptr;
	}
};

// --- running -----------------------------------------------------------------------------------------------------

struct Running
{
	live::Entry e;
	char queue[core::kNameMax];
	char kind[core::kNameMax];
	char worker[core::kNameMax];
	bool has_progress;
	char progress[live::kProgressMax + 1];
};

// Copies entry `r` if a job of this database runs in it. The first look is without a lock: a job keeps its entry while it runs, so one
// that is missed began or ended during the call.
bool copy_running(uint16_t db, const live::Rights &mine, core::Ref r, Running *out) noexcept
{
	live::Entry &e = engine.entry(r);
	const uint16_t home = std::atomic_ref<uint16_t>(e.home).load(std::memory_order_acquire);
	if (home == 0 || e.state != live::State::running)
		return false;
	const auto slot = static_cast<uint16_t>(home - 1);
	live::lock_queue(slot);
	const live::Queue &q = engine.queue(slot);
	const bool ours =
		e.home == home && q.db == db && e.state == live::State::running && mine.may(q, live::kMayLook);
	if (ours)
	{
		out->e = e;
		strlcpy(out->queue, q.name, sizeof(out->queue));
		strlcpy(out->kind, engine.lane(e.lane).kind, sizeof(out->kind));
		const char *worker = live::worker_name(e.worker());
		strlcpy(out->worker, worker != nullptr ? worker : "", sizeof(out->worker));
		out->has_progress = mine.may(q, live::kMayRead) && live::copy_progress(e, out->progress);
	}
	live::unlock_queue(slot);
	return ours;
}

int32 pid_of(uint32 proc) noexcept { return proc < ProcGlobal->allProcCount ? ProcGlobal->allProcs[proc].pid : 0; }

// --- jobs --------------------------------------------------------------------------------------------------------

bool copy_entry(const live::Db &db, core::JobId id, live::Entry *out) noexcept
{
	uint16_t slot = 0;
	const core::Ref r = engine.find(live::index_of(db), id, &slot);
	if (r == core::kNil)
		return false;
	live::lock_queue(slot);
	const bool found = engine.is(engine.queue(slot), r, id);
	if (found)
		*out = engine.entry(r);
	live::unlock_queue(slot);
	// of what this transaction has done the journal tells, as in tq_get
	return found && (out->owner != live::my_proc || core::goes_on(out->mark)) &&
		   (out->state == live::State::ready || out->state == live::State::delayed || out->state == live::State::running);
}

// A walk over all segments; rows of one segment wait in `store`, so that no lock outlives a call.
struct JobWalk
{
	live::Db *db;
	live::SegmentView *segments;
	int n;
	int next;
	TupleDesc desc;
	Tuplestorestate *store;
	TupleTableSlot *slot;
	QueueNames names;
	core::Micros now;
	const live::Rights *mine; // while one segment is read
};

void visit_job(const journal::Candidate &c, const journal::Fold &fold, void *arg)
{
	auto &w = *static_cast<JobWalk *>(arg);
	// what was moved is met again in segment 0, what was purged is off the books
	if (fold.state == FoldState::moved || fold.state == FoldState::purged)
		return;
	if (!w.mine->may(c.queue_id, live::kMayLook))
		return;
	// of a job that is neither running by the journal nor ended, memory and the clock tell
	const char *state = fold.terminal() || fold.state == FoldState::running ? name_of(fold.state) : nullptr;
	int32 attempt = fold.attempt;
	int32 priority = fold.has_priority ? fold.priority : c.priority;
	TimestampTz run_at = fold.due != journal::kNoTime ? fold.due : fold.state == FoldState::waiting ? journal::kNoTime : c.run_at;
	live::Entry e;
	bool waits = !fold.terminal() && fold.state != FoldState::running;
	if (!fold.terminal() && copy_entry(*w.db, c.id, &e))
	{
		waits = e.state != live::State::running;
		attempt = e.attempt;
		priority = e.priority;
		state = name_of(e.state);
		if (e.state == live::State::delayed)
			run_at = e.timer;
	}
	else if (state == nullptr)
	{
		core::Micros due = core::kNever;
		state = name_of(live::state_of(c, fold, w.now, &due));
	}
	const TimestampTz expires_at = fold.new_life ? journal::kNoTime : c.expires_at;
	if (waits && live::is_overdue(attempt, expires_at, w.now))
		state = name_of(FoldState::expired);
	Datum values[10] = {};
	bool nulls[10] = {};
	values[0] = Int64GetDatum(c.id);
	put_text(&values[1], &nulls[1], w.names.of(c.queue_id));
	nulls[2] = !c.has_kind;
	if (c.has_kind)
		values[2] = CStringGetTextDatum(c.kind);
	values[3] = CStringGetTextDatum(state);
	values[4] = Int32GetDatum(priority);
	values[5] = Int32GetDatum(attempt);
	nulls[6] = c.max_attempts == 0;
	values[6] = Int32GetDatum(c.max_attempts);
	put_time(&values[7], &nulls[7], run_at);
	put_time(&values[8], &nulls[8], c.enqueued_at);
	put_time(&values[9], &nulls[9], expires_at);
	tuplestore_putvalues(w.store, w.desc, values, nulls);
}

void end_store(JobWalk *w)
{
	if (w->store != nullptr)
		tuplestore_end(w->store);
	w->store = nullptr;
}

// The query ended before the walk did: temporary files are closed here.
void end_early(Datum arg) { end_store(reinterpret_cast<JobWalk *>(DatumGetPointer(arg))); }

live::SegmentView *all_segments(const live::Db &db, int *n)
{
	auto *list =
		static_cast<live::SegmentView *>(palloc(sizeof(live::SegmentView) * static_cast<Size>(guc::max_segments)));
	*n = live::view_segments(db, list, guc::max_segments);
	return list;
}

// --- dead --------------------------------------------------------------------------------------------------------

struct Dead
{
	int64 id;
	TimestampTz enqueued_at;
	int32 queue_id;
	int32 priority;
	int32 attempt;
	int32 max_attempts; // 0: the queue's
	FoldState state;
	bool has_kind;
	char kind[journal::kKindMax];
};

struct DeadList
{
	Dead *list;
	Size n;
	Size room;
	const live::Rights *mine;
};

void visit_dead(const journal::Candidate &c, const journal::Fold &fold, void *arg)
{
	auto &d = *static_cast<DeadList *>(arg);
	if ((fold.state != FoldState::dead && fold.state != FoldState::buried) ||
		!d.mine->may(c.queue_id, live::kMayLook))
		return;
	if (d.n == d.room)
	{
		d.room *= 2;
		d.list = static_cast<Dead *>(repalloc_huge(d.list, sizeof(Dead) * d.room));
	}
	Dead &to = d.list[d.n++];
	to = Dead{c.id,			c.enqueued_at, c.queue_id, fold.has_priority ? fold.priority : c.priority,
			  fold.attempt, c.max_attempts, fold.state, c.has_kind, {}};
	strlcpy(to.kind, c.kind, sizeof(to.kind));
}

// What tq_fail said last; a death by other causes comes after it.
const char *last_error_of(const journal::EventRow *events, int n) noexcept
{
	for (int i = n; i-- > 0;)
	{
		const journal::EventRow &e = events[i];
		if (e.type == journal::EventType::failed ||
			(e.type == journal::EventType::dead && e.lease != 0 && !journal::is_own_reason(e.reason)))
			return e.reason;
	}
	return nullptr;
}

// Who held it last.
const journal::EventRow *last_attempt_of(const journal::EventRow *events, int n) noexcept
{
	while (n-- > 0)
		if (events[n].lease != 0 && events[n].type != journal::EventType::asked_cancel)
			return &events[n];
	return nullptr;
}

// Why it died is what its last event says.
void put_dead(const journal::Segment &segment, const Dead &job, bool readable, QueueNames *names, ReturnSetInfo *rs)
{
	journal::EventRow *events = nullptr;
	const int n = journal::job_events(segment, job.id, GetActiveSnapshot(), &events);
	const auto wanted = job.state == FoldState::buried ? journal::EventType::buried : journal::EventType::dead;
	const journal::EventRow *last = nullptr;
	for (int i = 0; i < n; ++i)
		if (events[i].type == wanted)
			last = &events[i];
	const journal::EventRow *attempt = last_attempt_of(events, n);
	Datum values[15] = {};
	bool nulls[15] = {};
	values[0] = Int64GetDatum(job.id);
	put_text(&values[1], &nulls[1], names->of(job.queue_id));
	nulls[2] = !job.has_kind;
	if (job.has_kind)
		values[2] = CStringGetTextDatum(job.kind);
	values[3] = CStringGetTextDatum(name_of(job.state));
	values[4] = Int32GetDatum(job.priority);
	values[5] = Int32GetDatum(job.attempt);
	values[6] = Int32GetDatum(live::attempts_allowed(job.max_attempts, names->slot));
	put_text(&values[7], &nulls[7], last != nullptr && readable ? last->reason : nullptr);
	nulls[8] = last == nullptr || last->detail == nullptr || !readable;
	if (!nulls[8])
		values[8] = PointerGetDatum(last->detail);
	put_text(&values[9], &nulls[9], readable ? last_error_of(events, n) : nullptr);
	put_text(&values[10], &nulls[10], attempt != nullptr ? attempt->worker : nullptr);
	put_time(&values[11], &nulls[11], job.enqueued_at);
	put_time(&values[12], &nulls[12], attempt != nullptr ? attempt->claimed_at : journal::kNoTime);
	put_time(&values[13], &nulls[13], last != nullptr ? last->at : journal::kNoTime);
	put_time(&values[14], &nulls[14],
			 last != nullptr ? last->at + live::retention_of_queue(names->slot).dead : journal::kNoTime);
	tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// tq.running(), behind tq_running
TQ_FUNCTION(tq_list_running)
{
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	const uint16_t d = live::index_of(db);
	const core::Micros ahead = live::wall_now() - live::mono_now();
	const live::Rights &mine = live::rights(db);
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_SMALL_SIZES);
	for (core::Ref r = 0; r < engine.limits().entries; ++r)
	{
		if (r % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		Running job;
		if (!copy_running(d, mine, r, &job))
			continue;
		const live::Entry &e = job.e;
		MemoryContext old = MemoryContextSwitchTo(row);
		const bool marked = e.mark != live::Verb::none;
		Datum values[14] = {};
		bool nulls[14] = {};
		values[0] = Int64GetDatum(e.id);
		values[1] = CStringGetTextDatum(job.queue);
		put_text(&values[2], &nulls[2], job.kind);
		values[3] = Int64GetDatum(e.lease);
		put_text(&values[4], &nulls[4], job.worker);
		values[5] = Int32GetDatum(e.attempt);
		values[6] = Int32GetDatum(e.priority);
		put_time(&values[7], &nulls[7], e.claimed_at);
		put_time(&values[8], &nulls[8], ahead + (e.has(core::kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline));
		values[9] = BoolGetDatum(marked && e.mark == live::Verb::claim);
		values[10] = BoolGetDatum(e.has(core::kBound));
		values[11] = BoolGetDatum(e.has(core::kCancelAsked));
		nulls[12] = !marked || pid_of(e.owner) == 0;
		values[12] = Int32GetDatum(marked ? pid_of(e.owner) : 0);
		nulls[13] = !job.has_progress;
		if (job.has_progress)
			values[13] = DirectFunctionCall1(jsonb_in, CStringGetDatum(job.progress));
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row);
	}
	return static_cast<Datum>(0);
}

// tq.workers(), behind tq_workers
TQ_FUNCTION(tq_list_workers)
{
	struct Row
	{
		char name[core::kNameMax];
		int32 running;
		int64 claimed;
		core::Micros seen_at;
		bool draining;
	};
	live::Db &db = live::database(fcinfo);
	live::require_right_everywhere(db, "tq_workers", live::kMayLook); // a worker's name is of no queue
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	auto *rows = static_cast<Row *>(palloc(sizeof(Row) * engine.limits().workers));
	int n = 0;
	LWLockAcquire(live::registry_lock(), LW_SHARED);
	for (uint32 i = 0; i < engine.limits().workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		if (!w.used || w.db != live::index_of(db))
			continue;
		Row &row = rows[n++];
		strlcpy(row.name, w.name, sizeof(row.name));
		row.running = w.running.load();
		row.claimed = w.claimed.load();
		row.seen_at = w.seen_at.load();
		row.draining = w.draining.load();
	}
	LWLockRelease(live::registry_lock());
	for (int i = 0; i < n; ++i)
	{
		Datum values[5] = {CStringGetTextDatum(rows[i].name), Int32GetDatum(rows[i].running),
						   Int64GetDatum(rows[i].claimed), TimestampTzGetDatum(rows[i].seen_at),
						   BoolGetDatum(rows[i].draining)};
		bool nulls[5] = {};
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
	}
	return static_cast<Datum>(0);
}

// tq.jobs(), behind tq_jobs. One row per call, so that a LIMIT reads no more segments than it needs.
TQ_FUNCTION(tq_list_jobs)
{
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	if (SRF_IS_FIRSTCALL())
	{
		if (rs == nullptr || !IsA(rs, ReturnSetInfo))
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("tq.jobs() is to be called as a set")));
		live::Db &db = live::database(fcinfo);
		live::ensure_loaded(db);
		FuncCallContext *context = SRF_FIRSTCALL_INIT();
		MemoryContext old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		auto *w = static_cast<JobWalk *>(palloc0(sizeof(JobWalk)));
		w->db = &db;
		w->segments = all_segments(db, &w->n);
		if (get_call_result_type(fcinfo, nullptr, &w->desc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "tq.jobs() must return a row type");
		w->desc = BlessTupleDesc(CreateTupleDescCopy(w->desc));
		w->slot = MakeSingleTupleTableSlot(w->desc, &TTSOpsMinimalTuple);
		w->names = QueueNames{&db};
		w->now = live::wall_now();
		context->user_fctx = w;
		RegisterExprContextCallback(rs->econtext, end_early, PointerGetDatum(w));
		MemoryContextSwitchTo(old);
	}
	FuncCallContext *context = SRF_PERCALL_SETUP();
	auto *w = static_cast<JobWalk *>(context->user_fctx);
	for (;;)
	{
		// a tuple read back from a file lives as long as the slot holds it
		MemoryContext old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		const bool found = w->store != nullptr && tuplestore_gettupleslot(w->store, true, false, w->slot);
		MemoryContextSwitchTo(old);
		if (found)
			SRF_RETURN_NEXT(context, ExecFetchSlotHeapTupleDatum(w->slot));
		ExecClearTuple(w->slot);
		end_store(w);
		if (w->next == w->n)
			break;
		const live::SegmentView &s = w->segments[w->next++];
		if (s.state == live::SegmentState::free || s.state == live::SegmentState::dropping)
			continue;
		MemoryContextSwitchTo(context->multi_call_memory_ctx);
		w->store = tuplestore_begin_heap(false, false, work_mem);
		MemoryContextSwitchTo(old);
		w->mine = &live::rights(*w->db);
		journal::scan_segment(s.tables, GetActiveSnapshot(), true, visit_job, w);
	}
	UnregisterExprContextCallback(rs->econtext, end_early, PointerGetDatum(w));
	SRF_RETURN_DONE(context);
}

// tq.dead(), behind tq_dead
TQ_FUNCTION(tq_list_dead)
{
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	int n = 0;
	const live::SegmentView *segments = all_segments(db, &n);
	QueueNames names{&db};
	DeadList dead{static_cast<Dead *>(palloc(sizeof(Dead) * 64)), 0, 64, &live::rights(db)};
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < n; ++i)
	{
		if (segments[i].state == live::SegmentState::free || segments[i].state == live::SegmentState::dropping)
			continue;
		dead.n = 0;
		journal::scan_segment(segments[i].tables, GetActiveSnapshot(), true, visit_dead, &dead);
		for (Size k = 0; k < dead.n; ++k)
		{
			CHECK_FOR_INTERRUPTS();
			MemoryContext old = MemoryContextSwitchTo(row);
			put_dead(segments[i].tables, dead.list[k], dead.mine->may(dead.list[k].queue_id, live::kMayRead), &names, rs);
			MemoryContextSwitchTo(old);
			MemoryContextReset(row);
		}
	}
	return static_cast<Datum>(0);
}
