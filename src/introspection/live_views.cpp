// The functions behind the views of running jobs and of workers, from memory.
// Regime: PG. Locks: queue locks, one entry at a time; the registry lock while workers are copied.
#include "database/attach.hpp"
#include "jobs/verbs.hpp"
#include "queues/policy.hpp"
#include "queues/rights.hpp"
#include "shmem/progress.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

constexpr pg::ColumnSpec kRunning[] = {
	{"id", INT8OID},
	{"queue", TEXTOID},
	{"kind", TEXTOID},
	{"lease", INT8OID},
	{"worker", TEXTOID},
	{"attempt", INT4OID},
	{"priority", INT4OID},
	{"claimed_at", TIMESTAMPTZOID},
	{"lease_expires_at", TIMESTAMPTZOID},
	{"open", BOOLOID},
	{"bound", BOOLOID},
	{"cancel_asked", BOOLOID},
	{"pid", INT4OID},
	{"progress", JSONBOID},
};
constexpr pg::ColumnSpec kWorkers[] = {
	{"worker", TEXTOID}, {"running", INT4OID}, {"claimed", INT8OID}, {"seen_at", TIMESTAMPTZOID}, {"draining", BOOLOID},
};

struct Running
{
	Entry e;
	Micros ends; // monotonic
	char queue[core::kNameMax];
	char kind[core::kNameMax];
	char worker[core::kNameMax];
	bool has_progress;
	char progress[kProgressMax + 1];
};

// Copies entry `r` if a job of this database runs in it. The first check takes no lock. A running job keeps its entry,
// so the check misses only jobs that begin or end during the call.
bool copy_running(uint16_t db, const Rights &mine, core::Ref r, Running *out) noexcept
{
	const Entry &e = engine.entry(r);
	const uint16_t home = core::Engine::home_of(e);
	if (home == 0 || e.state != State::running)
		return false;
	const auto slot = static_cast<uint16_t>(home - 1);
	lock_queue(slot);
	const Queue &q = engine.queue(slot);
	const bool ours = e.home == home && q.db == db && e.state == State::running && mine.may(q, kMayLook);
	if (ours)
	{
		out->e = e;
		out->ends = ends_at(q, e);
		strlcpy(out->queue, q.name, sizeof(out->queue));
		strlcpy(out->kind, engine.lane(e.lane).kind, sizeof(out->kind));
		const char *worker = worker_name(e.worker());
		strlcpy(out->worker, worker != nullptr ? worker : "", sizeof(out->worker));
		out->has_progress = mine.may_read(q) && copy_progress(e, out->progress);
	}
	unlock_queue(slot);
	return ours;
}

} // namespace

// tq.running(), behind tq_running
TQ_FUNCTION(tq_list_running)
{
	Db &db = loaded_database(fcinfo);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kRunning));
	const uint16_t d = index_of(db);
	const core::Micros ahead = wall_now() - mono_now();
	const Rights &mine = rights(db);
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_SMALL_SIZES);
	for (core::Ref r = 0; r < engine.limits().entries; ++r)
	{
		if (r % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		Running job;
		if (!copy_running(d, mine, r, &job))
			continue;
		const Entry &e = job.e;
		MemoryContext old = MemoryContextSwitchTo(row);
		const bool marked = e.mark != Verb::none;
		const int32 pid = marked ? pid_of(e.owner) : 0;
		pg::RowValues v;
		v.add_int8(e.id);
		v.add_text(job.queue);
		v.add_name(job.kind);
		v.add_int8(e.lease);
		v.add_name(job.worker);
		v.add_int(e.attempt);
		v.add_int(e.priority);
		v.add_time(e.claimed_at);
		v.add_time(ahead + job.ends);
		v.add_bool(marked && e.mark == Verb::claim);
		v.add_bool(e.has(core::kBound));
		v.add_bool(e.has(core::kCancelAsked));
		v.add(Int32GetDatum(pid), pid == 0);
		v.add(job.has_progress ? DirectFunctionCall1(jsonb_in, CStringGetDatum(job.progress)) : Datum{0},
			  !job.has_progress);
		rows.put(v);
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
	Db &db = database(fcinfo);
	require_right_everywhere(db, "view tq_workers", kMayCount); // a worker's name belongs to no queue
	const pg::RowSet set = pg::begin_rows(fcinfo, pg::row_shape(kWorkers));
	auto *rows = static_cast<Row *>(palloc(sizeof(Row) * engine.limits().workers));
	int n = 0;
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (uint32 i = 0; i < engine.limits().workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		if (!w.used || w.db != index_of(db))
			continue;
		Row &row = rows[n++];
		strlcpy(row.name, w.name, sizeof(row.name));
		row.running = w.running.load();
		row.claimed = w.claimed.load();
		row.seen_at = w.seen_at.load();
		row.draining = w.draining.load();
	}
	LWLockRelease(registry_lock());
	for (int i = 0; i < n; ++i)
	{
		pg::RowValues v;
		v.add_text(rows[i].name);
		v.add_int(rows[i].running);
		v.add_int8(rows[i].claimed);
		v.add(TimestampTzGetDatum(rows[i].seen_at));
		v.add_bool(rows[i].draining);
		set.put(v);
	}
	return static_cast<Datum>(0);
}

} // namespace tq
