// tq_metrics of queues: their counters and histograms, and the age of the oldest ready job.
// Regime: PG; may raise: reads the rows of a few jobs. Locks: queue locks, one at a time.
#include "introspection/queue_metrics.hpp"

#include "handlers/handler_functions.hpp"
#include "introspection/queue_counts.hpp"
#include "segments/segments.hpp"
#include "pg/array.hpp"

namespace tq
{

using core::Histogram;
using core::Micros;

constexpr int kTotals = 9;
constexpr int kHeads = 16; // jobs of a queue that are compared to find the oldest ready one

// A ready job that may be the oldest of its queue.
struct Head
{
	core::JobId id;
	ItemPointerData tid;
	uint16_t segment;
	bool as_enqueued; // no step was taken since the enqueue, so its row shows since when it is ready
};

struct QueueNumbers
{
	char name[core::kNameMax];
	QueueCounts n;
	int waiting;
	bool paused;
	uint64 totals[kTotals];
	Histogram waits, runs;
	Micros oldest; // how long the oldest ready job has been ready
	Micros late;   // how long its most overdue schedule has been due
	int nheads;
	Head heads[kHeads];
};

namespace
{

// If there are too many jobs, keeps those with the least ids.
void add_head(QueueNumbers *f, core::Ref r) noexcept
{
	const Entry &e = engine.entry(r);
	Head *h = &f->heads[f->nheads];
	if (f->nheads < kHeads)
		++f->nheads;
	else
	{
		h = std::max_element(f->heads, f->heads + kHeads,
							 [](const Head &a, const Head &b) noexcept { return a.id < b.id; });
		if (h->id < e.id)
			return;
	}
	h->id = e.id;
	ItemPointerSet(&h->tid, e.block, e.offset);
	h->segment = e.segment;
	h->as_enqueued = e.step == 1;
}

// Adds the first job of each priority of a lane. Jobs of one priority start in the order of their ids, so the first one
// has usually waited longest. The caller holds the queue's lock.
void add_heads(QueueNumbers *f, const Lane &l) noexcept
{
	if (l.heads.min != core::kNil)
		add_head(f, l.heads.min);
	int n = 0;
	for (core::Ref r = l.ready.min; r != core::kNil && n < kHeads; ++n)
	{
		add_head(f, r);
		const int32 priority = engine.entry(r).priority;
		r = priority < INT32_MAX ? engine.ready_from(l, priority + 1) : core::kNil;
	}
}

// Copies a queue. False if the slot is not a queue of this database that the caller may monitor.
bool look(uint16_t slot, uint16_t db, const Rights &mine, Micros now, QueueNumbers *f) noexcept
{
	Queue &q = engine.queue(slot);
	lock_queue(slot);
	const bool ours = q.state != core::QueueState::free && q.db == db && mine.may(q, kMetrics);
	if (ours)
	{
		strlcpy(f->name, q.name, sizeof(f->name));
		f->n = QueueCounts{};
		f->nheads = 0;
		f->waiting = waiting_in(q);
		f->paused = q.paused_until > now;
		f->late = late_by(q, now);
		const uint64 totals[] = {q.enqueued, q.claimed, q.succeeded, q.failed, q.lost,
								 q.released, q.dead, q.cancelled, q.expired};
		std::copy_n(totals, kTotals, f->totals);
		f->waits = q.waits;
		f->runs = q.runs;
		for (uint16_t i = q.lanes; i != core::kNoLane; i = engine.lane(i).next)
		{
			f->n.add(counts_of(engine.lane(i)));
			add_heads(f, engine.lane(i));
		}
	}
	unlock_queue(slot);
	return ours;
}

// Since when a job is ready, by the journal; `now` if the job is gone.
Micros ready_since(const Db &db, Head *h, Micros now)
{
	journal::Segment tables;
	journal::JobRow row;
	if (!tables_at(db, h->segment, &tables) || !journal::fetch_job(tables, &h->tid, h->id, false, &row))
		return now;
	Micros since = row.run_at != journal::kNoTime ? std::max(row.run_at, row.enqueued_at) : row.enqueued_at;
	if (!h->as_enqueued)
	{
		journal::Fold fold;
		Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
		journal::fold_job(tables, h->id, snapshot, &fold);
		UnregisterSnapshot(snapshot);
		since = std::max(fold.due != journal::kNoTime ? fold.due : since, fold.ended_at);
	}
	return std::min(since, now);
}

// The queues that the caller may monitor, by name.
pg::Array<QueueNumbers> collect(const Db &db, const Rights &mine)
{
	const Micros now = wall_now();
	pg::Array<QueueNumbers> list;
	for_queues(db, [&](uint16_t slot, const Queue &) {
		list.reserve(CurrentMemoryContext, 1);
		list.n += look(slot, index_of(db), mine, now, list.end());
	});
	std::sort(list.begin(), list.end(),
			  [](const QueueNumbers &a, const QueueNumbers &b) noexcept { return strcmp(a.name, b.name) < 0; });
	for (QueueNumbers &queue : list)
	{
		queue.oldest = 0;
		for (int k = 0; k < queue.nheads; ++k)
			queue.oldest = std::max(queue.oldest, now - ready_since(db, &queue.heads[k], now));
	}
	return list;
}

} // namespace

void queue_families(Text *t, const Db &db, const Rights &mine)
{
	struct Total
	{
		const char *name;
		const char *help;
	};
	constexpr Total kNames[] = {
		{"tq_jobs_enqueued_total", "Jobs enqueued, since the server started."},
		{"tq_jobs_claimed_total", "Claims committed, one for each job."},
		{"tq_jobs_succeeded_total", "Jobs completed."},
		{"tq_jobs_failed_total", "Attempts that tq_fail ended."},
		{"tq_jobs_lost_total", "Attempts that ended because their lease did, or their time."},
		{"tq_jobs_released_total", "Attempts given back with tq_release."},
		{"tq_jobs_dead_total", "Jobs that became dead letters: dead or buried."},
		{"tq_jobs_cancelled_total", "Jobs cancelled, or purged while they waited."},
		{"tq_jobs_expired_total", "Jobs that no worker had started when they expired."},
	};
	static_assert(lengthof(kNames) == kTotals);
	const pg::Array<QueueNumbers> list = collect(db, mine);
	if (list.n == 0)
		return;
	t->gauge("tq_jobs", "Live jobs by state, in memory or on disk.");
	for (const QueueNumbers &queue : list)
	{
		const int64 numbers[] = {queue.n.ready, queue.n.delayed, queue.n.blocked, queue.n.running};
		const char *states[] = {"ready", "delayed", "blocked", "running"};
		for (size_t k = 0; k < lengthof(states); ++k)
		{
			t->begin();
			t->label("queue", queue.name);
			t->label("state", states[k], false);
			appendStringInfoChar(&t->s, '}');
			t->end(numbers[k]);
		}
	}
	const auto gauge = [&](const char *name, const char *help, auto &&value_of) {
		t->gauge(name, help);
		for (const QueueNumbers &queue : list)
			t->sample("queue", queue.name, value_of(queue));
	};
	gauge("tq_jobs_on_disk", "Live jobs that wait on disk only.",
		  [](const QueueNumbers &q) { return std::max<int64>(q.n.live - q.n.in_memory, 0); });
	gauge("tq_oldest_ready_age_seconds",
		  "How long the oldest job that could start has been ready; 0 if there is none.",
		  [](const QueueNumbers &q) { return seconds(q.oldest); });
	gauge("tq_schedule_lateness_seconds",
		  "For how long the most overdue schedule of the queue is due; 0 if none waits for its turn.",
		  [](const QueueNumbers &q) { return seconds(q.late); });
	gauge("tq_waiting_sessions", "Calls that wait for a job of the queue.",
		  [](const QueueNumbers &q) { return int64{q.waiting}; });
	gauge("tq_queue_paused", "1 if the queue is paused.", [](const QueueNumbers &q) { return int64{q.paused}; });
	for (int k = 0; k < kTotals; ++k)
	{
		t->counter(kNames[k].name, kNames[k].help);
		for (const QueueNumbers &queue : list)
			t->sample("queue", queue.name, static_cast<int64>(queue.totals[k]));
	}
	t->family("tq_job_wait_seconds", "histogram",
			  "From when a job could start to its first claim; not of jobs that were rescheduled.");
	for (const QueueNumbers &queue : list)
		t->histogram(queue.name, queue.waits);
	t->family("tq_job_run_seconds", "histogram", "From the claim to the end of an attempt, however it ended.");
	for (const QueueNumbers &queue : list)
		t->histogram(queue.name, queue.runs);
}

} // namespace tq
