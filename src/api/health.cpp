// tq_health: what an operator should know, item by item, each with a verdict and what to do.
// Regime: PG; reads statistics views through SPI as the extension's owner. Locks: each briefly.
#include "api/args.hpp"
#include "api/handle.hpp"
#include "guc.hpp"
#include "live/activation.hpp"
#include "live/attach.hpp"
#include "live/retention.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/versions.hpp"
#include "pg/extension.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"

namespace tq::api
{

namespace
{

using live::Db;
using live::engine;

enum class Verdict : uint8
{
	ok,
	warn,
	error,
};

struct Report
{
	ReturnSetInfo *rs;

	// The hint is shown only where something is wrong.
	void put(const char *item, const char *value, Verdict verdict = Verdict::ok, const char *hint = nullptr) const
	{
		constexpr const char *kWords[] = {"ok", "warn", "error"};
		Datum values[4] = {CStringGetTextDatum(item), CStringGetTextDatum(value),
						   CStringGetTextDatum(kWords[static_cast<int>(verdict)]), static_cast<Datum>(0)};
		bool nulls[4] = {false, false, false, verdict == Verdict::ok || hint == nullptr};
		if (!nulls[3])
			values[3] = CStringGetTextDatum(hint);
		tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
	}
};

long long ll(int64 n) noexcept { return static_cast<long long>(n); }

// "used of max", a warning from nine tenths on.
void put_room(const Report &r, const char *item, int64 used, int64 max, const char *hint)
{
	r.put(item, psprintf("%lld of %lld", ll(used), ll(max)), used * 10 >= max * 9 ? Verdict::warn : Verdict::ok, hint);
}

// Runs a query of one row as the owner; its columns as text, null where they are, in the caller's memory.
void ask(const Db &db, const char *query, char **out, int n, bool of_server = false)
{
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	if (of_server)
		pg::server_sql(query, 1);
	else
		pg::sql(query, 0, nullptr, nullptr, nullptr, true, 1);
	for (int i = 0; i < n; ++i)
	{
		char *s = SPI_processed > 0 ? SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1) : nullptr;
		out[i] = s != nullptr ? MemoryContextStrdup(caller, s) : nullptr;
	}
	pg::leave_owner(scope);
	MemoryContextSwitchTo(caller);
}

void clock_item(const Report &r)
{
	core::Micros ahead = 0;
	if (!live::clock_is_fake(&ahead))
	{
		r.put("clock", "the server's");
		return;
	}
	const bool behind = ahead < 0;
	const core::Micros seconds = (behind ? -ahead : ahead) / 1000000;
	r.put("clock",
		  psprintf("%s, %lld d %02lld:%02lld:%02lld %s the server's", timestamptz_to_str(live::wall_now()), ll(seconds / 86400),
				   ll(seconds / 3600 % 24), ll(seconds / 60 % 60), ll(seconds % 60), behind ? "behind" : "ahead of"),
		  Verdict::warn, "tq.fake_now is set, which is for tests only. Reset it, or jobs go by a wrong clock.");
}

void workers_items(const Report &r, const Db &db)
{
	const uint32 s = db.scheduler.load();
	if (s != 0)
		r.put("scheduler", psprintf("process %d", ProcGlobal->allProcs[s - 1].pid));
	else
		r.put("scheduler", "not running", Verdict::error,
			  guc::workers
				  ? "Look into the server log; max_worker_processes may be used up. Delayed jobs and lost leases wait."
				  : "Set tq.workers to on. Delayed jobs and lost leases wait.");
	switch (static_cast<live::LoadState>(db.load_state.load()))
	{
		case live::LoadState::loaded:
			r.put("live state", psprintf("loaded at %s in %lld ms", timestamptz_to_str(db.loaded_at.load()),
										 ll(db.load_took.load() / 1000)));
			break;
		case live::LoadState::loading:
			r.put("live state", "loading", Verdict::warn,
				  "Jobs can be enqueued; claims wait until the journal has been read.");
			break;
		default:
			r.put("live state", "not loaded", Verdict::warn,
				  "The scheduler loads it when it starts, or the first claim does.");
			break;
	}
	const int64 audited = db.counted_at.load();
	r.put("last audit", audited != 0 ? timestamptz_to_str(audited) : "never");
	const live::Identity identity = live::read_identity(db);
	if (identity == live::Identity::active && db.dormant.load() && db.was_fresh.load())
		r.put("activation", "held", Verdict::warn,
			  "A restore into this database may be under way. Schedules and executors start ten minutes after the last sign of it, or when "
			  "tq_activate() is called.");
	else if (identity == live::Identity::active)
		r.put("activation", "active");
	else if (identity == live::Identity::fresh)
		r.put("activation", "dormant until first used");
	else
		r.put("activation", "dormant", Verdict::warn,
			  "This database is a copy. Schedules and executors are held; call tq_activate() if they are to run here.");
}

// Executors, and handlers that cannot be called.
void handler_items(const Report &r, const Db &db)
{
	const Crew crew = crew_of();
	char *v[3] = {};
	ask(db,
		"SELECT count(*), count(problem), string_agg(q.name || coalesce('/' || nullif(h.kind, ''), '') || ': ' || h.problem, '; ' ORDER BY q.name, h.kind)"
		" FROM tq.handler h JOIN tq.queue q ON q.id = h.queue_id",
		v, 3);
	const bool any = strcmp(v[0], "0") != 0;
	const int most = std::min(guc::executors, guc::max_executors);
	r.put("executors", psprintf("%d of %d, %d at work", crew.present, most, crew.busy), any && most == 0 ? Verdict::warn : Verdict::ok,
		  "There are handlers, but no executors to run them: raise tq.executors and tq.max_executors.");
	if (v[2] == nullptr)
		r.put("handlers", v[0]);
	else
		r.put("handlers", psprintf("%s of %s cannot be called: %s", v[1], v[0], v[2]), Verdict::warn,
			  "Their jobs wait and use no attempts. Mend what is said, or call tq_handle or tq_unhandle.");
}

void memory_items(const Report &r, const Db &db)
{
	const core::Limits &l = engine.limits();
	int64 running = 0, queues = 0, lanes = 0, names = 0;
	const uint16_t d = live::index_of(db);
	LWLockAcquire(live::registry_lock(), LW_SHARED);
	for (uint32 i = 0; i < l.queues; ++i)
		queues += engine.queue(static_cast<uint16_t>(i)).state != core::QueueState::free;
	for (uint32 i = 0; i < l.lanes; ++i)
	{
		const live::Lane &lane = engine.lane(static_cast<uint16_t>(i));
		lanes += lane.used;
		if (lane.used && engine.queue(lane.queue).db == d)
			running += lane.counts[static_cast<int>(live::State::running)];
	}
	for (uint32 i = 0; i < l.workers; ++i)
		names += engine.worker(i).used;
	LWLockRelease(live::registry_lock());
	r.put("jobs in memory",
		  psprintf("%lld of %u", ll(l.entries - std::max<int64>(engine.free_entries(), 0)), l.entries));
	// what runs cannot leave memory
	put_room(r, "running jobs", running, l.entries, "Raise tq.max_live_jobs and restart the server.");
	put_room(r, "queues", queues, l.queues, "Raise tq.max_queues and restart the server.");
	put_room(r, "kinds", lanes, l.lanes, "Raise tq.max_lanes and restart the server.");
	put_room(r, "worker names", names, l.workers, "Raise tq.max_workers, or let workers keep their names.");
	char *bytes = nullptr;
	ask(db, "SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'tq%'", &bytes, 1, true);
	if (bytes != nullptr)
		r.put("shared memory per live job", psprintf("%.1f bytes", strtod(bytes, nullptr) / l.entries));
}

void segment_items(const Report &r, const Db &db, core::Micros now)
{
	auto *list =
		static_cast<live::SegmentView *>(palloc(sizeof(live::SegmentView) * static_cast<Size>(guc::max_segments)));
	const int n = live::view_segments(db, list, guc::max_segments);
	put_room(r, "segments", n, guc::max_segments, "Raise tq.max_segments, lower tq.retention, or purge dead letters.");
	const core::Micros keep = live::retention_of(db).finished;
	constexpr core::Micros kPatience = 600 * core::Micros{1000000};
	const live::SegmentView *oldest = nullptr;
	int overdue = 0, kept = 0;
	for (int i = 0; i < n; ++i)
	{
		const live::SegmentView &s = list[i];
		if (s.tables.number != 0 && (oldest == nullptr || s.tables.number < oldest->tables.number))
			oldest = &s;
		const bool past = s.state == live::SegmentState::finished && s.finished_at + keep + kPatience < now;
		overdue += past && s.dead <= 0;
		kept += past && s.dead > 0;
	}
	if (oldest != nullptr)
		r.put("oldest segment",
			  psprintf("tq.job_%d of %s", oldest->tables.number, timestamptz_to_str(oldest->opened_at)));
	r.put("segments past retention", psprintf("%d", overdue), overdue > 0 ? Verdict::warn : Verdict::ok,
		  "They are dropped when nobody reads or writes them: look for old transactions, also prepared ones.");
	r.put("segments kept for dead letters", psprintf("%d", kept));
	pfree(list);
	journal::SegmentTables *all = nullptr;
	const int nall = journal::list_segments(&all);
	StringInfoData broken;
	initStringInfo(&broken);
	for (int i = 0; i < nall; ++i)
		if (!all[i].complete && !live::is_mapped(db, all[i].tables.job))
			appendStringInfo(&broken, "%s%d", broken.len > 0 ? ", " : "", all[i].tables.number);
	if (broken.len > 0)
		r.put("segments that are not whole", broken.data, Verdict::warn,
			  "They have no indexes or triggers, so their jobs are not known. If no restore is under way, create what segment 0 has, or drop both "
			  "tables of each.");
}

void horizon_item(const Report &r, const Db &db)
{
	char *v[4] = {};
	ask(db,
		"SELECT who, xids, seconds::bigint, xids > 10000000 OR seconds > 3600 FROM ("
		" SELECT 'backend ' || pid AS who, age(backend_xmin) AS xids, extract(epoch FROM clock_timestamp() - "
		"xact_start) AS seconds"
		"  FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
		" UNION ALL SELECT 'replication slot ' || slot_name, greatest(age(xmin), age(catalog_xmin)), NULL FROM "
		"pg_replication_slots"
		"  WHERE coalesce(xmin, catalog_xmin) IS NOT NULL"
		" UNION ALL SELECT 'prepared transaction ' || gid, age(transaction), extract(epoch FROM clock_timestamp() - "
		"prepared)"
		"  FROM pg_prepared_xacts) pins ORDER BY xids DESC NULLS LAST, seconds DESC NULLS LAST LIMIT 1",
		v, 4, true);
	if (v[0] == nullptr)
		r.put("oldest snapshot", "none");
	else
		r.put("oldest snapshot",
			  psprintf("%s, %s transactions, %s s", v[0], v[1] != nullptr ? v[1] : "?", v[2] != nullptr ? v[2] : "?"),
			  v[3] != nullptr && v[3][0] == 't' ? Verdict::warn : Verdict::ok,
			  "It does not slow tq down, but keeps vacuum from cleaning other tables, and segments from being dropped "
			  "if it reads them.");
}

void queue_items(const Report &r, const Db &db)
{
	StringInfoData held;
	initStringInfo(&held);
	int closing = 0;
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		const live::Queue &q = engine.queue(slot);
		char name[core::kNameMax];
		int64 jobs = 0;
		uint32 users = 0;
		live::lock_queue(slot);
		const bool ours = q.state == core::QueueState::closing && q.db == live::index_of(db);
		if (ours)
		{
			strlcpy(name, q.name, sizeof(name));
			users = q.users.load();
			jobs = engine.live_jobs(q);
		}
		live::unlock_queue(slot);
		if (!ours)
			continue;
		++closing;
		if (jobs > 0 || users > 0)
			appendStringInfo(&held, "%s%s (%lld jobs, %u open transactions)", held.len > 0 ? ", " : "", name, ll(jobs),
							 users);
	}
	if (held.len > 0)
		r.put("queues being dropped", held.data, Verdict::warn,
			  "They go when these jobs have ended: cancel them, or let workers finish them.");
	else
		r.put("queues being dropped", psprintf("%d", closing));
	const int64 unknown = db.rows_unknown.load();
	r.put("jobs of unknown queues", psprintf("%lld", ll(unknown)), unknown > 0 ? Verdict::warn : Verdict::ok,
		  "Their rows name a queue that tq.queue does not have: rows were written by hand, or tq.queue was not "
		  "restored.");
	int64 blocked = 0;
	for (uint32 i = 0; i < engine.limits().lanes; ++i)
	{
		const live::Lane &lane = engine.lane(static_cast<uint16_t>(i));
		if (lane.used && engine.queue(lane.queue).db == live::index_of(db))
			blocked += lane.blocked;
	}
	const int64 orphans = db.orphans.load();
	if (orphans > 0)
		r.put("jobs that wait for others", psprintf("%lld, of which nobody frees %lld", ll(blocked), ll(orphans)), Verdict::warn,
			  "By the last audit. Their rows of tq.dependency were deleted by hand, or not restored: cancel these jobs, or enqueue them again.");
	else
		r.put("jobs that wait for others", psprintf("%lld", ll(blocked)));
	const int64 found = db.lost_found.load();
	r.put("jobs found again by audits", psprintf("%lld", ll(found)), found > 0 ? Verdict::warn : Verdict::ok,
		  "They were in the journal and not in memory. After rows were written by hand this is how they come in; else "
		  "please report it.");
	const int64 gone = db.rows_gone.load();
	r.put("jobs whose row was gone", psprintf("%lld", ll(gone)), gone > 0 ? Verdict::warn : Verdict::ok,
		  "Rows of tq.job_* must not be deleted by hand; cancel the jobs instead.");
	const int64 unfollowed = db.follow_ups_lost.load();
	r.put("follow-ups that could not be enqueued", psprintf("%lld", ll(unfollowed)), unfollowed > 0 ? Verdict::warn : Verdict::ok,
		  "Since the server started. The queue named in follow_up is full, or is there no more; the log says which.");
	r.put("claims rolled back", psprintf("%lld", ll(db.aborted_claims.load())));
	char *names = nullptr;
	ask(db,
		"SELECT string_agg(DISTINCT quote_ident(p.pubname), ', ') FROM pg_publication p WHERE p.puballtables OR EXISTS "
		"("
		"SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = 'tq'::regnamespace)",
		&names, 1);
	r.put("publications of tq's tables", names != nullptr ? names : "none",
		  names != nullptr ? Verdict::warn : Verdict::ok,
		  "They publish all of them, and each new segment, at which a subscriber stops that does not have it. Publish tq.event by "
		  "name, and what is to be known of it (docs/guides/news.md).");
}

void schedule_items(const Report &r, const Db &db)
{
	char *v[2] = {};
	ask(db, "SELECT count(*), string_agg(quote_ident(name), ', ' ORDER BY name) FILTER (WHERE last_error IS NOT NULL) FROM tq.schedule", v, 2);
	if (v[1] == nullptr)
		r.put("schedules", v[0]);
	else
		r.put("schedules", psprintf("%s; cannot enqueue: %s", v[0], v[1]), Verdict::warn, "last_error of tq_schedules says why.");
	const int64 again = db.fires_again.load();
	r.put("scheduled jobs made again", psprintf("%lld", ll(again)), again > 0 ? Verdict::warn : Verdict::ok,
		  "They were gone from the journal: rows were deleted by hand, or not restored. The log names them.");
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_health)
{
	InitMaterializedSRF(fcinfo, 0);
	const Report r{reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo)};
	if (!live::preloaded())
	{
		r.put("shared_preload_libraries", "tq is missing", Verdict::error, "Add tq to it and restart the server.");
		return static_cast<Datum>(0);
	}
	r.put("shared_preload_libraries", "tq is loaded");
	if (RecoveryInProgress())
	{
		r.put("recovery", "this server is a standby", Verdict::warn,
			  "tq works on the primary; here it starts at promotion.");
		return static_cast<Datum>(0);
	}
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(live::extension_of_call(fcinfo), &facts))
		elog(ERROR, "the extension is not there");
	const live::Fit fit = live::fit_of(facts.version);
	const char *versions = psprintf("library %s, extension %s", live::library_version(), facts.version);
	if (!live::is_served(fit))
	{
		r.put("version", versions, Verdict::error, live::hint_for(fit));
		return static_cast<Datum>(0);
	}
	Db &db = live::database(fcinfo);
	live::require_right_everywhere(db, "tq_health", live::kManage | live::kMonitor);
	r.put("version", versions, fit == live::Fit::same ? Verdict::ok : Verdict::warn, live::hint_for(fit));
	clock_item(r);
	workers_items(r, db);
	handler_items(r, db);
	memory_items(r, db);
	segment_items(r, db, live::wall_now());
	horizon_item(r, db);
	queue_items(r, db);
	schedule_items(r, db);
	return static_cast<Datum>(0);
}
