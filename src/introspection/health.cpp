// tq_health: reports for operators, one item per row, each with a verdict and a hint.
// Regime: PG; reads tq's tables through SPI as the extension's owner. Locks: each briefly.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "handlers/handler_functions.hpp"
#include "introspection/health_report.hpp"
#include "introspection/queue_counts.hpp"
#include "processes/slots.hpp"
#include "queues/queue_retention.hpp"
#include "queues/rights.hpp"
#include "queues/stored_roles.hpp"
#include "segments/segments.hpp"
#include "shmem/asked_kinds.hpp"
#include "shmem/versions.hpp"
#include "pg/extension.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/rows.hpp"

extern "C"
{
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
}

namespace tq
{

namespace
{

void clock_item(const Report &r)
{
	core::Micros ahead = 0;
	if (!clock_is_fake(&ahead))
	{
		r.put("clock", "the server's");
		return;
	}
	const bool behind = ahead < 0;
	const core::Micros seconds = (behind ? -ahead : ahead) / 1000000;
	r.put("clock",
		  psprintf("%s, %lld d %02lld:%02lld:%02lld %s the server's", timestamptz_to_str(wall_now()),
				   ll(seconds / 86400), ll(seconds / 3600 % 24), ll(seconds / 60 % 60), ll(seconds % 60),
				   behind ? "behind" : "ahead of"),
		  Verdict::warn,
		  "tq.fake_now or tq_set_now has set it, which is for tests only. Reset it, or jobs go by a wrong clock.");
}

void load_item(const Report &r, const Db &db)
{
	constexpr const char *kUntil = "Until then jobs can be enqueued, but not claimed.";
	if (db.load_state.load() == static_cast<uint32>(LoadState::loaded))
		return r.put("live state", psprintf("loaded at %s in %lld ms", timestamptz_to_str(db.loaded_at.load()),
											ll(db.load_took.load() / 1000)));
	const char *began = timestamptz_to_str(db.load_began.load());
	if (db.too_small.load())
		r.put("live state",
			  psprintf("cannot be loaded: tq.max_live_jobs is %d and tq.max_groups %d", guc::max_live_jobs,
					   guc::max_groups),
			  Verdict::error,
			  psprintf("One of them is too small for the jobs that run or were rescheduled: raise it and restart the "
					   "server. %s",
					   kUntil));
	else if (db.load_failed.load())
		r.put("live state", psprintf("cannot be loaded: the load of %s failed", began), Verdict::error,
			  psprintf("The server log says why; tq tries again. %s", kUntil));
	else if (db.loader.load() != 0)
		r.put("live state", psprintf("loading since %s, %d segments read", began, db.load_read.load()), Verdict::warn,
			  psprintf("The journal is being read. %s", kUntil));
	else
		r.put("live state", "not loaded", Verdict::warn,
			  "The scheduler loads it when it starts, or the first claim does.");
}

void activation_item(const Report &r, Activation activation)
{
	switch (activation)
	{
		case Activation::active:
			r.put("activation", "active");
			break;
		case Activation::unused:
			r.put("activation", "unused: active at the first use");
			break;
		case Activation::inactive:
			r.put("activation", "inactive", Verdict::error,
				  "tq does nothing here until SELECT tq_activate(). The database was restored, copied or upgraded, or "
				  "tq_deactivate() was called.");
			break;
	}
	if (const char *segments = incomplete_segments(); segments != nullptr)
		r.put("incomplete segments", segments, Verdict::error,
			  activation == Activation::inactive
				  ? "They lack indexes or triggers. Complete the restore before SELECT tq_activate()."
				  : "They lack indexes or triggers. Call tq_deactivate(), repair them, and call tq_activate().");
}

// The slots of tq.max_databases. Databases that are not active need none.
void databases_item(const Report &r, Activation activation, bool has_slot)
{
	const int n = slots_kept();
	const char *value = psprintf("%d of %d", n, guc::max_databases);
	if (activation == Activation::active && !has_slot)
		r.put("databases", psprintf("%s, no place for this one", value), Verdict::error,
			  psprintf("Calls raise an error, and delayed jobs and schedules wait. %s", kNoSlotHint));
	else
		r.put("databases", value, has_slot || n < guc::max_databases ? Verdict::ok : Verdict::warn,
			  psprintf("No place is left for this database. %s", kNoSlotHint));
}

// Roles that a restore has not found.
void roles_item(const Report &r, const Db &db)
{
	const char *names = missing_roles(db);
	r.put("missing roles", names != nullptr ? names : "none", names != nullptr ? Verdict::warn : Verdict::ok,
		  "Their rows have no effect. Create the roles and call tq_activate(), also if the database is active.");
}

// tq runs no worker in a template, because CREATE DATABASE fails while a session uses its template.
bool in_template()
{
	HeapTuple tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	const bool is =
		HeapTupleIsValid(tuple) && reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple))->datistemplate;
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return is;
}

// Whether its last attempt failed.
void janitor_item(const Report &r, const Db &db)
{
	const bool opens = db.opening.length.load() == 0, tidies = db.tidying.length.load() == 0;
	r.put("janitor", opens && tidies ? "nothing failed" : opens ? "cannot tidy up" : "cannot open segments",
		  opens && tidies ? Verdict::ok : Verdict::warn,
		  opens ? "It cannot drop segments, move jobs or delete old rows. The server log says why; it tries again."
				: "All jobs go to one segment, which grows. The server log says why; it tries again.");
}

// The workers of all databases that wait for a free background worker. A wait of some seconds is normal.
void background_workers_item(const Report &r)
{
	constexpr core::Micros kLong = 10 * core::kSecond;
	const core::Micros now = steady_now(), turn = last_turn();
	bool warn = turn != 0 && now - turn < 60 * core::kSecond;
	StringInfoData waiting;
	initStringInfo(&waiting);
	for (int i = 0; i < slot_count(); ++i)
	{
		const DatabaseView v = view(i);
		const char *database = OidIsValid(v.database) ? get_database_name(v.database) : nullptr;
		for (const Kind kind : {Kind::scheduler, Kind::janitor})
		{
			const WorkerView &worker = v.workers[static_cast<int>(kind)];
			if (database == nullptr || worker.waits_since == 0 || worker.stage != Stage::none)
				continue;
			appendStringInfo(&waiting, "%s%s of database \"%s\"", waiting.len > 0 ? ", " : "", kind_name(kind),
							 database);
			warn = warn || now - worker.waits_since > kLong;
		}
	}
	const char *value = waiting.len > 0 ? psprintf("none free for the %s", waiting.data)
						: warn			? "none free in the last minute"
										: "enough";
	r.put("background workers", value, warn ? Verdict::warn : Verdict::ok,
		  "Schedulers and janitors of all databases take turns, so timers are late. Raise max_worker_processes and "
		  "restart the server.");
}

// Whether the scheduler of this database waits for a free background worker.
bool scheduler_waits()
{
	const int slot = find_slot(MyDatabaseId);
	return slot >= 0 && view(slot).workers[static_cast<int>(Kind::scheduler)].waits_since != 0;
}

void workers_items(const Report &r, Db &db)
{
	const uint32 s = db.scheduler.load();
	if (s != 0)
		r.put("scheduler", psprintf("process %d", ProcGlobal->allProcs[s - 1].pid));
	else if (scheduler_waits())
		r.put("scheduler", "waits for a free background worker", Verdict::error,
			  "Raise max_worker_processes and restart the server. Delayed jobs and lost leases wait.");
	else if (in_template())
		r.put("scheduler", "not running", Verdict::error,
			  "The database is a template, in which tq runs no workers. Delayed jobs and lost leases wait until ALTER "
			  "DATABASE ... IS_TEMPLATE false.");
	else
		r.put("scheduler", "not running", Verdict::error,
			  guc::workers ? "Look into the server log. Delayed jobs and lost leases wait."
						   : "Set tq.workers to on. Delayed jobs and lost leases wait.");
	janitor_item(r, db);
	background_workers_item(r);
	load_item(r, db);
	const int64 audited = db.counted_at.load();
	r.put("last audit", audited != 0 ? timestamptz_to_str(audited) : "never");
}

// Executors, and handlers that cannot be called.
void handler_items(const Report &r, const Db &db)
{
	const PoolStatus pool = pool_status();
	char *handlers, *broken, *problems;
	ask(db,
		"SELECT count(*), count(problem) AS broken,"
		" string_agg(q.name || coalesce('/' || nullif(h.kind, ''), '') || ': ' || h.problem, '; '"
		" ORDER BY q.name, h.kind) AS problems FROM tq.handler h JOIN tq.queue q ON q.id = h.queue_id",
		{{"count", &handlers}, {"broken", &broken}, {"problems", &problems}});
	const bool any = strcmp(handlers, "0") != 0;
	const int most = std::min(guc::executors, guc::max_executors);
	constexpr core::Micros kLong = 60 * core::kSecond;
	const core::Micros since = db.executors_full_since.load(), waits = since != 0 ? mono_now() - since : 0;
	const char *value = psprintf("%d of %d, %d at work", pool.present, most, pool.busy);
	if (any && most == 0)
		r.put("executors", value, Verdict::warn,
			  "There are handlers, but no executors to run them: raise tq.executors and tq.max_executors.");
	else if (waits > kLong && pool.busy + 1 >= most) // the last one may be kept for another handler
		r.put("executors", psprintf("%s, jobs have waited for one for %lld s", value, ll(waits / core::kSecond)),
			  Verdict::warn,
			  "Raise tq.executors and tq.max_executors, make the handlers faster, or limit a slow one by \"max\" of "
			  "tq_handle.");
	else
		r.put("executors", value);
	if (problems == nullptr)
		r.put("handlers", handlers);
	else
		r.put("handlers", psprintf("%s of %s cannot be called: %s", broken, handlers, problems), Verdict::warn,
			  "Their jobs wait and use no attempts. Fix the cause, or call tq_handle or tq_unhandle.");
}

void queue_items(const Report &r, const Db &db)
{
	StringInfoData held;
	initStringInfo(&held);
	int closing = 0;
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		char name[core::kNameMax];
		int64 jobs = 0;
		uint32 users = 0;
		lock_queue(slot);
		const bool ours = q.state == core::QueueState::closing && q.db == index_of(db);
		if (ours)
		{
			strlcpy(name, q.name, sizeof(name));
			users = q.users.load();
			jobs = engine.live_jobs(q);
		}
		unlock_queue(slot);
		if (!ours)
			return;
		++closing;
		if (jobs > 0 || users > 0)
			appendStringInfo(&held, "%s%s (%lld jobs, %u open transactions)", held.len > 0 ? ", " : "", name, ll(jobs),
							 users);
	});
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
	for (uint32 i = 0; i < engine.lane_slots(); ++i)
	{
		const Lane &lane = engine.lane(static_cast<uint16_t>(i));
		if (lane.used && engine.queue(lane.queue).db == index_of(db))
			blocked += lane.blocked;
	}
	const int64 orphans = db.orphans.load();
	if (orphans > 0)
		r.put("jobs that wait for others", psprintf("%lld, of which no parent frees %lld", ll(blocked), ll(orphans)),
			  Verdict::warn,
			  "By the last audit. Their rows of tq.dependency were deleted by hand, or not restored: cancel these "
			  "jobs, or enqueue them again.");
	else
		r.put("jobs that wait for others", psprintf("%lld", ll(blocked)));
	const int64 found = db.lost_found.load();
	r.put("jobs found again by audits", psprintf("%lld", ll(found)), found > 0 ? Verdict::warn : Verdict::ok,
		  "They were in the journal and not in memory, and no other program had written to tq's tables: please report "
		  "it.");
	const int64 gone = db.rows_gone.load();
	r.put("jobs whose row was gone", psprintf("%lld", ll(gone)), gone > 0 ? Verdict::warn : Verdict::ok,
		  "Rows of tq.job_* must not be deleted by hand; cancel the jobs instead.");
	const int64 unfollowed = db.follow_ups_lost.load();
	r.put(
		"follow-ups that could not be enqueued", psprintf("%lld", ll(unfollowed)),
		unfollowed > 0 ? Verdict::warn : Verdict::ok,
		"Since the server started. The queue in follow_up was dropped, or the role that requested the follow-up may no "
		"longer enqueue to it; the server log says which.");
	r.put("claims rolled back", psprintf("%lld", ll(db.aborted_claims.load())));
	char *names = nullptr;
	ask(db,
		"SELECT string_agg(DISTINCT quote_ident(p.pubname), ', ') AS names FROM pg_publication p"
		" WHERE p.puballtables OR EXISTS (SELECT FROM pg_publication_namespace n"
		" WHERE n.pnpubid = p.oid AND n.pnnspid = 'tq'::regnamespace)",
		{{"names", &names}});
	r.put("publications of tq's tables", names != nullptr ? names : "none",
		  names != nullptr ? Verdict::warn : Verdict::ok,
		  "They publish all tables of tq, and each new segment. A subscriber that lacks the new table stops. Publish "
		  "tq.event by name instead (docs/guides/notifications.md).");
}

// Whether the queue has ready jobs of some kind that no claim has asked for in the last minute. Queue lock held.
bool has_unwanted_kind(const Queue &q, core::Micros now) noexcept
{
	constexpr core::Micros kLong = 60 * core::kSecond;
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
	{
		const Lane &lane = engine.lane(l);
		if (counts_of(lane).ready > 0 && std::max(q.asked_at, lane.asked_at) < now - kLong)
			return true;
	}
	return false;
}

// Kinds that claims ask for and that no job has. That is normal unless jobs of another kind wait.
void kinds_item(const Report &r, const Db &db)
{
	const core::Micros now = wall_now();
	StringInfoData all;
	initStringInfo(&all);
	bool unwanted = false;
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		char name[core::kNameMax];
		AskedKinds asked{};
		lock_queue(slot);
		if (q.state != core::QueueState::free && q.db == index_of(db))
			copy_asked_kinds(q, &asked);
		unwanted = unwanted || (asked.n > 0 && has_unwanted_kind(q, now));
		strlcpy(name, q.name, sizeof(name));
		unlock_queue(slot);
		for (int i = 0; i < asked.n; ++i)
			appendStringInfo(&all, "%s\"%s\" of %s", all.len > 0 ? ", " : "", asked.kinds[i], name);
	});
	r.put(
		"kinds that workers ask for in vain", all.len > 0 ? all.data : "none", unwanted ? Verdict::warn : Verdict::ok,
		"Their queues have no jobs of these kinds, but jobs of other kinds that no worker asks for: compare the names "
		"with kinds in tq_queues.");
}

// Schedules that wait for their turn to fire.
void late_item(const Report &r, const Db &db)
{
	constexpr core::Micros kWarn = 5 * core::kSecond;
	const core::Micros now = wall_now();
	core::Micros most = 0;
	char name[core::kNameMax];
	int n = 0;
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		lock_queue(slot);
		const bool ours = q.state != core::QueueState::free && q.db == index_of(db);
		const core::Micros late = ours ? late_by(q, now) : 0;
		if (late > most)
			strlcpy(name, q.name, sizeof(name));
		unlock_queue(slot);
		n += late >= core::kSecond;
		most = std::max(most, late);
	});
	if (n == 0)
		r.put("late schedules", "none");
	else
		r.put("late schedules",
			  psprintf("of %d queues, most of \"%s\": %.1f s", n, name, static_cast<double>(most) / core::kSecond),
			  most >= kWarn ? Verdict::warn : Verdict::ok,
			  "More is due than the scheduler can enqueue. Roles and queues take turns, so those with fewer schedules "
			  "are in time. "
			  "Use longer intervals or fewer schedules.");
}

void schedule_items(const Report &r, const Db &db)
{
	char *schedules, *failed;
	ask(db,
		"SELECT count(*), string_agg(quote_ident(name), ', ' ORDER BY name) FILTER (WHERE last_error IS NOT NULL)"
		" AS failed FROM tq.schedule",
		{{"count", &schedules}, {"failed", &failed}});
	if (failed == nullptr)
		r.put("schedules", schedules);
	else
		r.put("schedules", psprintf("%s; cannot enqueue: %s", schedules, failed), Verdict::warn,
			  "last_error of tq_schedules says why.");
	late_item(r, db);
	const int64 unreadable = db.schedules_unreadable.load();
	r.put("schedules that cannot be read", psprintf("%lld", ll(unreadable)),
		  unreadable > 0 ? Verdict::warn : Verdict::ok,
		  "They do not fire. tq_schedules says why: their state is invalid. Define them again with tq_schedule.");
}

} // namespace

TQ_FUNCTION(tq_health)
{
	static constexpr pg::ColumnSpec kColumns[] = {
		{"item", TEXTOID}, {"value", TEXTOID}, {"status", TEXTOID}, {"hint", TEXTOID}};
	const Report r{pg::begin_rows(fcinfo, pg::row_shape(kColumns))};
	if (!preloaded())
	{
		r.put("shared_preload_libraries", "tq is missing", Verdict::error, "Add tq to it and restart the server.");
		return static_cast<Datum>(0);
	}
	if (RecoveryInProgress())
	{
		r.put("shared_preload_libraries", "tq is loaded");
		r.put("recovery", "this server is a standby", Verdict::warn,
			  "tq works on the primary; here it starts at promotion.");
		return static_cast<Datum>(0);
	}
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(extension_of_call(fcinfo), &facts))
		elog(ERROR, "the extension is not there");
	const Fit fit = fit_of(facts.version);
	const char *versions = psprintf("library %s, extension %s", library_version(), facts.version);
	if (!is_served(fit))
	{
		r.put("shared_preload_libraries", "tq is loaded");
		r.put("version", versions, Verdict::error, hint_for(fit));
		return static_cast<Datum>(0);
	}
	const Db &facts_here = database_facts(fcinfo);
	require_right_everywhere(facts_here, "function tq_health", kOperate | kManage | kMetrics);
	const Activation activation = activation_of(facts_here);
	activation_item(r, activation);
	roles_item(r, facts_here);
	r.put("shared_preload_libraries", "tq is loaded");
	r.put("version", versions, fit == Fit::same ? Verdict::ok : Verdict::warn, hint_for(fit));
	const bool has_slot = activation == Activation::active && find_or_make_slot(facts_here.extension) != nullptr;
	Db *const slot = has_slot ? &database(fcinfo) : nullptr;
	databases_item(r, activation, has_slot);
	if (!has_slot)
		return static_cast<Datum>(0);
	Db &db = *slot;
	clock_item(r);
	workers_items(r, db);
	handler_items(r, db);
	memory_items(r, db);
	segment_items(r, db, wall_now());
	horizon_item(r, db);
	share_items(r, db);
	queue_items(r, db);
	kinds_item(r, db);
	schedule_items(r, db);
	return static_cast<Datum>(0);
}

} // namespace tq
