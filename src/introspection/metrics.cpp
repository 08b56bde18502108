// tq_metrics: values for graphs and alerts, in the text format of Prometheus. Families and samples have a fixed order.
// This file has the families of the database and the server; queue_metrics.cpp has those of the queues.
// Regime: PG; reads the server's statistics views as the bootstrap superuser (pg::server_sql). Locks: each briefly.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "handlers/handler_functions.hpp"
#include "introspection/metrics_text.hpp"
#include "introspection/queue_counts.hpp"
#include "introspection/queue_metrics.hpp"
#include "introspection/xmin_holders.hpp"
#include "queues/queue_retention.hpp"
#include "queues/rights.hpp"
#include "segments/segments.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

extern "C"
{
#include "commands/dbcommands.h"
}

namespace tq
{

namespace
{

using core::Micros;

constexpr Micros kRecently = 600 * core::kSecond;
constexpr Micros kUnixEpoch =
	static_cast<Micros>(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY * core::kSecond;

double unix_time(Micros t) noexcept { return t == 0 ? 0 : seconds(t + kUnixEpoch); }

void loading_families(Text *t, const Db &db)
{
	const bool loaded = db.load_state.load() == static_cast<uint32>(LoadState::loaded);
	t->one_gauge("tq_scheduler_up", "1 if the process runs that fires timers and takes back lost leases.",
				 int64{db.scheduler.load() != 0});
	t->one_gauge("tq_janitor_failing", "1 if the last attempt to open, move or drop segments failed.",
				 int64{db.opening.length.load() != 0 || db.tidying.length.load() != 0});
	const PoolStatus pool = pool_status();
	t->one_gauge("tq_executors", "Processes that run jobs by handlers.", int64{pool.present});
	t->one_gauge("tq_executors_busy", "Of them, those that run one now.", int64{pool.busy});
	t->one_gauge("tq_handlers_broken", "Handlers that cannot be called; tq_handlers says why.", broken_handlers(db));
	t->one_gauge("tq_loaded", "1 if the journal has been read into memory; claims wait until then.", int64{loaded});
	t->one_counter("tq_loads_total", "How often the journal was read into memory.", db.loads.load());
	t->one_gauge("tq_load_timestamp_seconds", "When that was last; 0: never.", unix_time(db.loaded_at.load()));
	t->one_gauge("tq_load_duration_seconds", "How long that took.", seconds(db.load_took.load()));
	t->one_counter("tq_refilled_jobs_total", "Jobs read in from disk as memory had room for them.", db.refilled.load());
	t->one_counter("tq_evicted_jobs_total", "Jobs put out of memory to make room; they wait on disk.",
				   db.evicted.load());
	t->one_gauge("tq_longest_publish_seconds", "Longest time that a COMMIT of many jobs took to publish them.",
				 seconds(db.longest_publish.load()));
	t->one_counter("tq_claims_logged_total", "Claims journalled because they lasted longer than tq.claim_log_delay.",
				   db.claims_logged.load());
	t->one_counter("tq_claims_rolled_back_total", "Claims undone by the rollback of their transaction.",
				   db.aborted_claims.load());
	t->one_counter("tq_audits_total", "Comparisons of memory with the journal.", db.audits.load());
	t->one_gauge("tq_audit_timestamp_seconds", "When the journal was last read, to load it or to compare; 0: never.",
				 unix_time(db.counted_at.load()));
	t->counter("tq_audit_findings_total", "What did not agree, and was put right.");
	t->sample("finding", "drifted_counter", db.drifted.load());
	t->sample("finding", "missing_job", db.lost_found.load());
	t->one_counter("tq_schedule_fires_total",
				   "Times of schedules that were dealt with by enqueueing a job, or skipped because of the one before.",
				   db.fires.load());
	t->one_counter("tq_schedule_missed_total", "Times of schedules that were not caught up.", db.fires_missed.load());
	t->one_counter("tq_schedule_errors_total", "Failed attempts to enqueue the job of a schedule.",
				   db.fires_failed.load());
	t->one_counter("tq_rows_gone_total", "Claimed jobs whose row had been deleted by hand.", db.rows_gone.load());
	t->one_counter("tq_follow_ups_lost_total", "Jobs that were to follow others and could not be enqueued.",
				   db.follow_ups_lost.load());
	Micros ahead = 0;
	static_cast<void>(clock_is_fake(&ahead));
	t->one_gauge("tq_clock_offset_seconds",
				 "How far the time that jobs go by is ahead of the server's; 0 unless set for tests.",
				 seconds(ahead));
	t->one_gauge("tq_orphaned_jobs",
				 "Jobs that wait for others, of whom tq.dependency says nothing; by the last audit.",
				 db.orphans.load());
	t->one_gauge("tq_jobs_of_unknown_queues", "Unfinished jobs whose queue does not exist.", db.rows_unknown.load());
}

// Usage of the fixed parts of shared memory, for all databases, and the worker names of this database.
void memory_families(Text *t, const Db &db, Micros now)
{
	const core::Limits &l = engine.limits();
	const uint16_t d = index_of(db);
	int64 queues = 0, names = 0, groups = 0, recent = 0, draining = 0;
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (uint32 i = 0; i < l.queues; ++i)
		queues += engine.queue(static_cast<uint16_t>(i)).state != core::QueueState::free;
	for (uint32 i = 0; i < l.workers; ++i)
	{
		const core::Worker &w = engine.worker(i);
		names += w.used;
		if (!w.used || w.db != d)
			continue;
		recent += w.seen_at.load() > now - kRecently;
		draining += w.draining.load();
	}
	LWLockRelease(registry_lock());
	for (uint32 i = 0; i < l.groups; ++i)
		groups += engine.is_group(i);
	struct Slots
	{
		const char *name;
		int64 used, limit;
	};
	const Slots arrays[] = {
		{"group", groups, l.groups},
		{"job", l.entries - std::max<int64>(engine.free_entries(), 0), l.entries},
		{"kind", engine.used_kinds(), l.lanes},
		{"queue", queues, l.queues},
		{"worker", names, l.workers},
	};
	t->gauge("tq_memory_places_used", "Places in shared memory that are taken, for all databases of the server.");
	for (const Slots &s : arrays)
		t->sample("place", s.name, s.used);
	t->gauge("tq_memory_places_limit", "How many places there are: tq.max_groups, tq.max_live_jobs and so on.");
	for (const Slots &s : arrays)
		t->sample("place", s.name, s.limit);
	t->gauge("tq_workers", "Names of workers that were seen within ten minutes, and those that drain.");
	t->sample("state", "draining", draining);
	t->sample("state", "seen", recent);
}

void segment_families(Text *t, const Db &db, Micros now)
{
	pg::Array<SegmentView> segments = view_segments(db);
	const Micros keep = retention_of(db).finished;
	int64 open = 0, sealed = 0, finished = 0, overdue = 0;
	for (const SegmentView &s : segments)
	{
		const bool over = s.state == SegmentState::finished || s.state == SegmentState::dropping;
		open += s.state == SegmentState::open;
		sealed += s.state == SegmentState::sealed;
		finished += over;
		overdue += over && s.dead <= 0 && s.finished_at + keep + kRecently < now;
	}
	segments.free();
	t->gauge("tq_segments", "Pairs of tables by state.");
	t->sample("state", "finished", finished);
	t->sample("state", "open", open);
	t->sample("state", "sealed", sealed);
	t->one_gauge("tq_segments_limit", "tq.max_segments.", int64{guc::max_segments});
	t->one_gauge("tq_segments_overdue",
				 "Finished ones that should have been dropped ten minutes ago; a session reads them.", overdue);
}

// Values from the server's own views: the size of shared memory, and the session that holds back vacuum.
void server_families(Text *t, const Db &db)
{
	const char *query = psprintf(
		"SELECT k, coalesce(max(xids), 0)::bigint AS xids, greatest(coalesce(max(seconds), 0), 0)::float8 AS seconds,"
		"  (SELECT coalesce(sum(allocated_size), 0)::bigint FROM pg_shmem_allocations WHERE name LIKE 'tq %%') AS bytes"
		" FROM unnest('{prepared_transaction,replication_slot,session,standby}'::text[]) k"
		" LEFT JOIN (%s) pins ON kind = k GROUP BY k ORDER BY k COLLATE \"C\"",
		kXminHolders);
	constexpr int kKinds = 4;
	struct Pin
	{
		char kind[32];
		int64 xids;
		double secs;
	};
	Pin pins[kKinds] = {};
	int64 bytes = 0;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::server_sql(query, 0);
	const int n = static_cast<int>(std::min<uint64>(SPI_processed, kKinds));
	for (int i = 0; i < n; ++i)
	{
		const auto row = static_cast<uint64>(i);
		strlcpy(pins[i].kind, pg::spi_text(row, "k"), sizeof(pins[i].kind));
		pins[i].xids = pg::spi_int8(row, "xids");
		pins[i].secs = DatumGetFloat8(pg::spi_required(row, "seconds", FLOAT8OID));
		bytes = pg::spi_int8(row, "bytes");
	}
	pg::leave_owner(scope);
	t->one_gauge("tq_shared_memory_bytes", "Shared memory that tq takes on this server.", bytes);
	t->gauge("tq_xmin_age_transactions",
			 "How many transactions ago the oldest snapshot or id that holds back vacuum was taken, by holder.");
	for (int i = 0; i < n; ++i)
		t->sample("holder", pins[i].kind, pins[i].xids);
	t->gauge("tq_xmin_age_seconds", "How long the longest of these transactions has been open.");
	for (int i = 0; i < n; ++i)
		if (strcmp(pins[i].kind, "session") == 0 || strcmp(pins[i].kind, "prepared_transaction") == 0)
			t->sample("holder", pins[i].kind, pins[i].secs);
}

} // namespace

TQ_FUNCTION(tq_metrics)
{
	Text t{};
	initStringInfo(&t.s);
	// without the library database() below raises the error
	const bool primary = !preloaded() || !RecoveryInProgress();
	t.gauge("tq_info", "The version of tq, and the database that these metrics are of.");
	t.begin();
	t.label("version", TQ_VERSION);
	t.label("database", get_database_name(MyDatabaseId), false);
	appendStringInfoChar(&t.s, '}');
	t.end(int64{1});
	t.one_gauge("tq_primary", "1 on a primary; a standby has no queues.", int64{primary});
	if (primary)
	{
		const Activation activation = activation_of(database_facts(fcinfo));
		t.one_gauge("tq_inactive", "1 if tq does nothing in this database until tq_activate().",
					int64{activation == Activation::inactive});
		if (activation != Activation::active)
			return PointerGetDatum(cstring_to_text_with_len(t.s.data, t.s.len));
		const Db &db = database(fcinfo);
		const Rights &mine = rights(db);
		const bool everything = (mine.everywhere & kMetrics) != 0;
		// the counts of queues are incomplete during a load, and this function does not wait for its end
		if (db.load_state.load() == static_cast<uint32>(LoadState::loaded))
			queue_families(&t, db, mine);
		if (everything)
		{
			const Micros now = wall_now();
			loading_families(&t, db);
			memory_families(&t, db, now);
			segment_families(&t, db, now);
			server_families(&t, db);
		}
	}
	return PointerGetDatum(cstring_to_text_with_len(t.s.data, t.s.len));
}

} // namespace tq
