// tq_health: memory, segments, and what keeps segments from being dropped.
// Regime: PG; reads the server's statistics views as the bootstrap superuser (pg::server_sql). Locks: each briefly.
#include "introspection/health_report.hpp"

#include "guc.hpp"
#include "introspection/xmin_holders.hpp"
#include "queues/queue_retention.hpp"
#include "retention/segment_policy.hpp"
#include "segments/segments.hpp"
#include "shmem/guarantees.hpp"
#include "pg/owner.hpp"

namespace tq
{

void ask(const Db &db, const char *query, std::initializer_list<std::pair<const char *, char **>> answers,
		 bool of_server)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	if (of_server)
		pg::server_sql(query, 1);
	else
		pg::sql(query, {}, true, 1);
	for (const auto &[column, text] : answers)
	{
		const SPITupleTable &t = *SPI_tuptable;
		char *s = SPI_processed > 0 ? SPI_getvalue(t.vals[0], t.tupdesc, SPI_fnumber(t.tupdesc, column)) : nullptr;
		*text = s != nullptr ? MemoryContextStrdup(scope.outside, s) : nullptr;
	}
	pg::leave_owner(scope);
}

namespace
{

// Groups whose slot can be freed give way to others, so used slots alone are normal.
void groups_item(const Report &r)
{
	const uint32 all = engine.limits().groups;
	int64 used = 0, kept = 0;
	for (core::Ref g = 0; g < all; ++g)
	{
		const core::Group &group = engine.group(g);
		const bool is = engine.is_group(g);
		used += is;
		kept += is && (group.running > 0 || group.held > 0 || group.own.any());
	}
	r.put("groups", psprintf("%lld of %u, %lld cannot leave memory", ll(used), all, ll(kept)),
		  kept * 10 >= int64{all} * 9 ? Verdict::warn : Verdict::ok,
		  "These have jobs that run or wait to be retried, or settings of their own. Jobs of other groups wait. Raise "
		  "tq.max_groups and restart the server.");
}

} // namespace

void memory_items(const Report &r, const Db &db)
{
	const core::Limits &l = engine.limits();
	int64 running = 0, queues = 0, names = 0, pinned = 0;
	const uint16_t d = index_of(db);
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (uint32 i = 0; i < l.queues; ++i)
	{
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		const bool used = q.state != core::QueueState::free;
		queues += used;
		pinned += used ? q.pinned : 0;
	}
	for (uint32 i = 0; i < engine.lane_slots(); ++i)
	{
		const Lane &lane = engine.lane(static_cast<uint16_t>(i));
		if (lane.used && engine.queue(lane.queue).db == d)
			running += lane.counts[static_cast<int>(State::running)];
	}
	for (uint32 i = 0; i < l.workers; ++i)
		names += engine.worker(i).used;
	LWLockRelease(registry_lock());
	r.put("jobs in memory",
		  psprintf("%lld of %u", ll(l.entries - std::max<int64>(engine.free_entries(), 0)), l.entries));
	const int64 again = db.read_again.load();
	r.put("jobs evicted and read again", psprintf("%lld in a minute", ll(again)),
		  again > l.entries / 4 ? Verdict::warn : Verdict::ok,
		  "Memory is short of the backlog, so jobs go to disk and come back. Raise tq.max_live_jobs and restart the "
		  "server.");
	const core::Share share = engine.entry_share();
	// changes are refused before claims are: see Engine::changes_left
	const int64 limit = share.pool + share.guaranteed * queues;
	r.put("jobs that cannot leave memory", psprintf("%lld of %lld", ll(pinned), ll(limit)),
		  pinned * 5 >= limit * 4 || engine.changes_left(d) == 0 ? Verdict::warn : Verdict::ok,
		  "They run, open transactions change them, or they have another time or priority than they were enqueued "
		  "with. Near the limit, and for a database with half of tq.max_live_jobs, changes of jobs raise 53400. Raise "
		  "tq.max_live_jobs and restart the server.");
	put_usage(r, "running jobs", running, l.entries, "Raise tq.max_live_jobs and restart the server.");
	put_usage(r, "queues", queues, l.queues, "Raise tq.max_queues and restart the server.");
	put_usage(r, "kinds", engine.used_kinds(), l.lanes, "Raise tq.max_lanes and restart the server.");
	put_usage(r, "worker names", names, l.workers, "Raise tq.max_workers, or let workers keep their names.");
	groups_item(r);
	char *bytes = nullptr;
	ask(db, "SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'tq %'", {{"sum", &bytes}}, true);
	if (bytes != nullptr)
		r.put("shared memory per live job", psprintf("%.1f bytes", strtod(bytes, nullptr) / l.entries));
}

namespace
{

void guaranteed_item(const Report &r)
{
	ShortSize sizes[kSizes];
	const int n = short_sizes(sizes);
	StringInfoData text;
	initStringInfo(&text);
	for (int i = 0; i < n; ++i)
		appendStringInfo(&text, "%s%s: %d of %d %s", i > 0 ? ", " : "", sizes[i].setting, sizes[i].guaranteed,
						 sizes[i].most, sizes[i].holders);
	r.put("guaranteed shares", n > 0 ? text.data : psprintf("all %d queues", guc::max_queues),
		  n > 0 ? Verdict::warn : Verdict::ok, n > 0 ? advice(sizes[0]) : nullptr);
}

} // namespace

// Queues whose jobs that cannot be evicted fill their share of memory, or what changes may take of it.
void share_items(const Report &r, const Db &db)
{
	StringInfoData full;
	initStringInfo(&full);
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		char name[core::kNameMax];
		lock_queue(slot);
		const uint32 pinned = q.pinned, running = q.running;
		const bool is_full = q.state != core::QueueState::free && q.db == index_of(db) && engine.changes_left(q) == 0;
		const bool starts = engine.places_to_start(q) > 0;
		strlcpy(name, q.name, sizeof(name));
		unlock_queue(slot);
		if (is_full)
			appendStringInfo(&full, "%s%s (%u jobs, %u of them run%s)", full.len > 0 ? ", " : "", name, pinned, running,
							 starts ? ", more can start" : "");
	});
	guaranteed_item(r);
	r.put("queues at their share of memory", full.len > 0 ? full.data : "none",
		  full.len > 0 ? Verdict::warn : Verdict::ok,
		  "Until some of these jobs have ended, none of the others can be changed, and more of them start only where "
		  "it says so. These run, are changed by open transactions, or were rescheduled. tq.max_live_jobs sets how "
		  "much memory there is.");
}

namespace
{

// Segments that were opened or finished at a time that has not come.
void future_item(const Report &r, const pg::Array<SegmentView> &segments, core::Micros now)
{
	constexpr core::Micros kTolerated = 60 * core::kSecond;
	core::Micros latest = 0;
	int count = 0;
	for (const SegmentView &s : segments)
	{
		const core::Micros at = std::max({s.opened_at, s.sealed_at, s.finished_at});
		count += s.tables.number != 0 && at > now + kTolerated;
		latest = std::max(latest, s.tables.number != 0 ? at : 0);
	}
	r.put("segments of the future", count == 0 ? "none" : psprintf("%d, up to %s", count, timestamptz_to_str(latest)),
		  count == 0 ? Verdict::ok : Verdict::warn,
		  "The server's clock was ahead, or is behind. Segments are sealed and dropped all the same. Jobs that were "
		  "delayed or claimed meanwhile keep the times that they got: tq_reschedule them, or wait.");
}

// A segment that takes jobs for much longer than it should.
void open_item(const Report &r, const Db &db, const pg::Array<SegmentView> &segments, core::Micros now)
{
	const SegmentRules rules = rules_of(db, segments, now);
	const SegmentView *open = std::find_if(segments.begin(), segments.end(), [](const SegmentView &s) noexcept {
		return s.state == SegmentState::open;
	});
	if (open == segments.end())
		return;
	const bool late = wants_next(db, *open, rules) &&
					  (open->rows >= 2 * int64{guc::segment_rows} ||
					   age_of(*open, open->opened_at, rules) >= 2 * guc::segment_interval * core::kSecond);
	r.put("open segment", psprintf("tq.job_%d with %lld jobs", open->tables.number, ll(open->rows)),
		  late ? Verdict::warn : Verdict::ok,
		  "The janitor should have opened the next one, so this one grows. See the items janitor, background workers "
		  "and segments.");
}

// Sessions whose locks keep tq from writing to a segment. Short ones are normal.
void lock_item(const Report &r, const Db &db)
{
	char *holders;
	ask(db,
		"SELECT string_agg(format('tq.%s by %s', c.relname, coalesce('process ' || l.pid, 'a prepared transaction')), "
		"', ' ORDER BY c.oid, l.pid) AS holders"
		" FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
		" WHERE l.granted AND c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^(job|event)_'"
		" AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
		" AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
		" AND l.pid IS DISTINCT FROM pg_backend_pid() AND coalesce(a.backend_type, '') !~ '^(tq |autovacuum)'"
		" AND coalesce(a.xact_start < clock_timestamp() - interval '1 s', true)",
		{{"holders", &holders}}, true);
	r.put("segments locked by others", holders != nullptr ? holders : "none",
		  holders != nullptr ? Verdict::warn : Verdict::ok,
		  "No session can claim or end jobs of these segments, and their lost leases wait. End these transactions.");
}

} // namespace

void segment_items(const Report &r, const Db &db, core::Micros now)
{
	pg::Array<SegmentView> segments = view_segments(db);
	StringInfoData damaged;
	initStringInfo(&damaged);
	for (const SegmentView &s : segments)
		if (s.damaged)
			appendStringInfo(&damaged, "%s%d", damaged.len > 0 ? ", " : "", s.tables.number);
	put_usage(r, "segments", segments.n, guc::max_segments,
			  "End jobs that run for long and old transactions, lower tq.retention, or raise tq.max_segments.");
	const core::Micros keep = retention_of(db).finished;
	constexpr core::Micros kPatience = 600 * core::kSecond;
	const SegmentView *oldest = nullptr;
	int overdue = 0, kept = 0;
	for (const SegmentView &s : segments)
	{
		if (s.tables.number != 0 && (oldest == nullptr || s.tables.number < oldest->tables.number))
			oldest = &s;
		const bool past = s.state == SegmentState::finished && s.finished_at + keep + kPatience < now;
		overdue += past && s.dead <= 0;
		kept += past && s.dead > 0;
	}
	if (oldest != nullptr)
		r.put("oldest segment", psprintf("tq.job_%d of %s, %lld unfinished jobs", oldest->tables.number,
										 timestamptz_to_str(oldest->opened_at), ll(oldest->live)));
	r.put("segments past retention", psprintf("%d", overdue), overdue > 0 ? Verdict::warn : Verdict::ok,
		  "They are dropped when no session reads or writes them: look for old transactions, also prepared ones.");
	r.put("segments kept for dead letters", psprintf("%d", kept));
	r.put("segments that cannot be read", damaged.len > 0 ? damaged.data : "none",
		  damaged.len > 0 ? Verdict::error : Verdict::ok,
		  "The data of tq.job_N or tq.event_N is damaged; the server log has the error. All other jobs can be "
		  "processed. Repair both tables, or drop both, and call tq_reload().");
	open_item(r, db, segments, now);
	future_item(r, segments, now);
	lock_item(r, db);
	segments.free();
}

void horizon_item(const Report &r, const Db &db)
{
	char *holder, *xids, *seconds, *old;
	ask(db,
		psprintf("SELECT holder, xids, seconds::bigint, xids > 10000000 OR seconds > 3600 AS old FROM (%s) pins"
				 " ORDER BY xids DESC NULLS LAST, seconds DESC NULLS LAST LIMIT 1",
				 kXminHolders),
		{{"holder", &holder}, {"xids", &xids}, {"seconds", &seconds}, {"old", &old}}, true);
	if (holder == nullptr)
		r.put("oldest snapshot", "none");
	else
		r.put("oldest snapshot",
			  psprintf("%s, %s transactions, %s s", holder, xids != nullptr ? xids : "?",
					   seconds != nullptr ? seconds : "?"),
			  old != nullptr && old[0] == 't' ? Verdict::warn : Verdict::ok,
			  "It does not slow tq down, but keeps vacuum from cleaning other tables, and segments from being dropped "
			  "if it reads them.");
}

} // namespace tq
