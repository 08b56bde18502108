#include "operation.hpp"

#include <algorithm>
#include <sstream>

namespace gateway
{

namespace
{

using enum Field::In;
using enum Operation::Way;
using enum Operation::Shape;

using Fields = std::vector<Field>;

Fields together(Fields first, const Fields &last)
{
	first.insert(first.end(), last.begin(), last.end());
	return first;
}

const Field kId = {kPath, "id", "bigint", "the job", true};
const Field kQueueInPath = {kPath, "queue", "text", "the queue", true};
const Field kQueueInBody = {kBody, "queue", "text", "the queue", true};
const Field kName = {kPath, "name", "text", "the name", true};
const Field kWorkerInPath = {kPath, "worker", "text", "the worker", true};
const Field kUrl = {kBody, "url", "text", "the address", true};
const Field kLease = {kPath, "token", "lease", "the lease, as the claim returned it", true};
const Field kLeases = {kBody, "leases", "leases", "leases, as claims returned them", true};
const Field kReason = {kBody, "reason", "text", "the reason, for people"};
const Field kLongWait = {kQuery, "wait", "interval", "how long to wait for the end of the job, up to max_wait"};

// What all functions that enqueue have.
const Fields kOfJob = {
	{kBody, "kind", "text", "the kind of work"},
	{kBody, "priority", "int", "lower first"},
	{kBody, "run_at", "timestamptz", "the earliest start"},
	{kBody, "delay", "interval", "the earliest start, from now"},
	{kBody, "expires_at", "timestamptz", "the job expires if it has not started by then"},
	{kBody, "max_attempts", "int", "attempts before the job is dead"},
	{kBody, "retry", "jsonb", "the retry policy"},
	{kBody, "timeout", "interval", "the longest time of an attempt"},
	{kBody, "group_key", "text", "jobs of a group start in order"},
	{kBody, "unique_mode", "text", "skip, skip_waiting, ignore, replace, replace_waiting, keep_run_at or error"},
	{kBody, "headers", "jsonb", "an object for tracing and the like"},
	{kBody, "depends_on", "bigint[]", "jobs that must succeed first"},
	{kBody, "options", "jsonb", "lease, tags, unique_for, weight, ..."},
};

const Fields kEnqueueFields = together({kQueueInBody,
										{kBody, "payload", "jsonb", "the payload"},
										{kBody, "unique_key", "text", "at most one live job has the key"},
										kLongWait},
									   kOfJob);

// The conditions of tq_list and of those that change many jobs.
Fields conditions(Field::In in, Fields last = {}, bool state_required = false)
{
	const bool query = in == kQuery;
	return together({{in, "queue", "text", "of this queue", !query},
					 {in, "state", "text", "in this state", state_required},
					 {in, "kind", "text", "of this kind; empty: without a kind"},
					 {in, "worker", "text", "whose running or last attempt had this worker"},
					 {in, "tag", "text", "with this tag"},
					 {in, "group_key", "text", "of this group"},
					 {in, "unique_key", "text", "with this unique key"},
					 {in, "created_from", "timestamptz", "enqueued then or later"},
					 {in, "created_to", "timestamptz", "enqueued then or earlier"},
					 {in, "search", "jsonb", "whose payload contains this"},
					 {in, "after", "bigint", "continue after this id: the next_after of the page before"},
					 {in, query ? "limit" : "max", "int", "the most jobs", false, "max"}},
					last);
}

const Fields kOfSeries = {{kQuery, "since", "interval", "how far back"},
						  {kQuery, "step", "interval", "the time of one row"}};

const Fields kOfGrant = {kQueueInPath,
						 {kBody, "role", "regrole", "the role", true},
						 {kBody, "privilege", "text", "produce, consume, operate, manage, ...", true}};

const Field kWithChildren = {kBody, "with_children", "boolean", "also the jobs that were cancelled because it failed"};
// A condition that only dead and buried jobs meet.
Field error_of(Field::In in) { return {in, "error", "text", "with this error, as /v1/dead/{queue}/groups has it; empty: without one"}; }

const Field kDryRun = {kBody, "dry_run", "boolean", "count the jobs and change nothing"};

Fields claim_fields(Field queue)
{
	return {queue,
			{kBody, "max_jobs", "int", "the most jobs to take"},
			{kBody, "worker", "text", "the name of the worker"},
			{kBody, "lease_for", "interval", "the length of the leases"},
			{kBody, "wait", "interval", "how long to wait if nothing is ready, up to max_wait"},
			{kBody, "kinds", "text[]", "only jobs of these kinds"}};
}

constexpr const char *kState = "state text";
constexpr const char *kCount = "jobs bigint";
constexpr const char *kChanged = "changed bigint, next_after bigint";
constexpr const char *kStatus = "id bigint, status text";

constexpr const char *kClaimed =
	"id bigint, lease lease, queue text, kind text, payload jsonb, headers jsonb, "
	"attempt int, max_attempts int, priority int, checkpoint jsonb, parents jsonb, group_key text, unique_key text, "
	"tags text[], enqueued_at timestamptz, lease_expires_at timestamptz, deadline timestamptz";

constexpr const char *kJob =
	"id bigint, queue text, kind text, state text, priority int, attempt int, "
	"max_attempts int, payload jsonb, headers jsonb, run_at timestamptz, enqueued_at timestamptz, "
	"claimed_at timestamptz, finished_at timestamptz, worker text, result jsonb, error text, checkpoint jsonb, "
	"group_key text, unique_key text, tags text[], expires_at timestamptz, lease_expires_at timestamptz, "
	"origin bigint, policies jsonb";

constexpr const char *kQueue =
	"queue text, state text, ready bigint, delayed bigint, blocked bigint, "
	"running bigint, live bigint, in_memory bigint, on_disk bigint, waiting int, paused_until timestamptz, "
	"kinds jsonb, settings jsonb, created_at timestamptz, groups jsonb";

constexpr const char *kSeries =
	"at timestamptz, span interval, enqueued bigint, claimed bigint, succeeded bigint, failed bigint, lost bigint, "
	"dead bigint, wait_p50 interval, wait_p99 interval, run_p50 interval, run_p99 interval";

constexpr const char *kSchedule =
	"name text, queue text, kind text, payload jsonb, cron text, every interval, "
	"timezone text, catch_up text, overlap text, options jsonb, owner text, state text, next_at timestamptz, "
	"last_at timestamptz, last_job_id bigint, last_outcome text, missed bigint, last_error text";

} // namespace

Columns::Columns(const char *text)
{
	std::istringstream words(text);
	for (Column column; words >> column.name >> column.type; push_back(column))
	{
		if (column.type.ends_with(','))
			column.type.pop_back();
	}
}

const std::vector<Operation> kOperations = {
	// jobs
	{"POST", "/v1/jobs", "enqueue", "Enqueue a job", kEnqueue, kRow, "tq_enqueue_info", "id bigint, outcome text",
	 kEnqueueFields, "", "", 201, true, false, true},
	{"POST", "/tasks", "enqueue_task", "Enqueue a job; the same as POST /v1/jobs", kEnqueue, kRow, "tq_enqueue_info",
	 "id bigint, outcome text", kEnqueueFields, "", "", 201, true, false, true},
	{"POST", "/v1/jobs:enqueue_many", "enqueue_many", "Enqueue a job for each payload, in one transaction", kCall,
	 kRows,
	 "tq_enqueue_many_info", "id bigint, outcome text",
	 together({kQueueInBody,
			   {kBody, "payloads", "jsonb[]", "a payload for each job", true},
			   {kBody, "kinds", "text[]", "the kind of each job"},
			   {kBody, "priorities", "int[]", "the priority of each job"},
			   {kBody, "run_ats", "timestamptz[]", "the earliest start of each job"},
			   {kBody, "unique_keys", "text[]", "the unique key of each job"},
			   {kBody, "group_keys", "text[]", "the group of each job"}},
			  kOfJob),
	 "jobs", "", 201, true, false, true},
	{"GET", "/v1/jobs", "list_jobs", "A page of jobs, the newest first", kCall, kPage, "tq_list",
	 "id bigint, queue text, kind text, state text, priority int, attempt int, max_attempts int, "
	 "run_at timestamptz, enqueued_at timestamptz, expires_at timestamptz, worker text, group_key text, "
	 "unique_key text, tags text[], payload text",
	 conditions(kQuery, {{kQuery, "newest", "boolean", "greatest id first, else least id first"}, error_of(kQuery)}),
	 "jobs"},
	{"GET", "/v1/jobs/{id}", "get_job", "A job; with wait, when it has ended", kWaitJob, kRow, "tq_get", kJob,
	 {kId, kLongWait}},
	{"POST", "/v1/jobs:outcomes", "job_outcomes", "States and results of jobs; with wait, when they have ended", kWaitJobs,
	 kRows, "tq_outcomes", "id bigint, state text, result jsonb, error text",
	 {{kBody, "ids", "bigint[]", "the jobs", true},
	  {kBody, "wait", "interval", "how long to wait for the end of all of them, up to max_wait"},
	  {kBody, "first", "boolean", "wait for the end of one of them only"}},
	 "jobs"},
	{"GET", "/v1/jobs/{id}/history", "job_history", "What happened to a job", kCall, kRows, "tq_history",
	 "step int, at timestamptz, event text, attempt int, worker text, claimed_at timestamptz, retry_at timestamptz, "
	 "reason text, detail jsonb",
	 {kId}, "events"},
	{"GET", "/v1/jobs/{id}/explain", "explain_job", "Why a job does not run", kCall, kRow, "tq_explain",
	 "explanation text", {kId}},
	{"GET", "/v1/jobs/{id}/graph", "job_graph", "The jobs that a job waits for, and those that wait for it", kCall,
	 kRows, "tq_graph",
	 "level int, id bigint, parents bigint[], queue text, kind text, state text, on_parent_failure text",
	 {kId, {kQuery, "max_jobs", "int", "the most jobs"}}, "jobs"},
	{"GET", "/v1/running", "list_running", "Jobs that run, with their leases, up to 5000", kLook, kRows, "tq_running",
	 "id bigint, queue text, kind text, worker text, attempt int, priority int, claimed_at timestamptz, "
	 "lease_expires_at timestamptz, cancel_asked boolean, progress jsonb",
	 {{kQuery, "queue", "text", "of this queue"},
	  {kQuery, "worker", "text", "of this worker"},
	  {kQuery, "id", "bigint", "this job"}},
	 "jobs", "ORDER BY claimed_at, id LIMIT 5000"},
	{"POST", "/v1/jobs/{id}:cancel", "cancel_job", "Cancel a job, or ask its worker to stop", kCall, kRow,
	 "tq_cancel", kState,
	 {kId, kReason}},
	{"POST", "/v1/jobs/{id}:retry", "retry_job", "Make a job ready now", kCall, kRow, "tq_retry", kState,
	 {kId, kWithChildren}},
	{"POST", "/v1/jobs/{id}:reschedule", "reschedule_job", "Change when a job starts, or its priority", kCall,
	 kRow, "tq_reschedule",
	 kState,
	 {kId, {kBody, "run_at", "timestamptz", "the new earliest start"}, {kBody, "priority", "int",
	 "the new priority"}}},
	{"POST", "/v1/jobs:cancel", "cancel_jobs", "Cancel the jobs that match, up to max", kCall, kRow,
	 "tq_cancel_many", kChanged,
	 conditions(kBody, {kDryRun, kReason})},
	{"POST", "/v1/jobs:retry", "retry_jobs", "Retry the jobs that match, up to max", kCall, kRow, "tq_retry_where",
	 kChanged,
	 conditions(kBody, {kDryRun, error_of(kBody), kWithChildren})},
	{"POST", "/v1/jobs:reschedule", "reschedule_jobs", "Reschedule the jobs that match, up to max", kCall, kRow,
	 "tq_reschedule_many",
	 kChanged,
	 conditions(kBody, {kDryRun,
						{kBody, "run_at", "timestamptz", "the new earliest start"},
						{kBody, "priority", "int", "the new priority"}})},
	{"POST", "/v1/jobs:purge", "purge_jobs", "Purge the jobs that match, up to max", kCall, kRow, "tq_purge_many",
	 kChanged,
	 conditions(kBody, {kDryRun, error_of(kBody)}, true)},

	// work
	{"POST", "/v1/queues/{queue}:claim", "claim", "Claim jobs of a queue; with wait, a long poll", kClaim, kRows,
	 "tq_claim_any",
	 kClaimed, claim_fields({kPath, "queue", "text", "the queue", true, "queues"}), "jobs", "", 200, true},
	{"POST", "/v1/jobs:claim", "claim_any", "Claim jobs of several queues; with wait, a long poll", kClaim, kRows,
	 "tq_claim_any",
	 kClaimed, claim_fields({kBody, "queues", "text[]", "the queues, 1 to 8", true}), "jobs", "", 200, true},
	{"POST", "/v1/leases/{token}:heartbeat", "heartbeat", "Extend a lease", kCall, kRow, "tq_heartbeat",
	 "lease_expires_at timestamptz, action text",
	 {kLease,
	  {kBody, "extend", "interval", "the length of the lease from now"},
	  {kBody, "progress", "jsonb", "for people who watch"},
	  {kBody, "checkpoint", "jsonb", "for the next attempt"},
	  {kBody, "worker", "text", "the worker that has the job now"}},
	 "", "", 200, true},
	{"POST", "/v1/leases/{token}:complete", "complete", "Finish a job", kComplete, kRow, "tq_complete", kState,
	 {kLease, {kBody, "result", "jsonb", "the result"}}, "", "", 200, true},
	{"POST", "/v1/leases/{token}:fail", "fail", "Let an attempt fail", kCall, kRow, "tq_fail", kState,
	 {kLease,
	  {kBody, "error", "text", "what went wrong", true},
	  {kBody, "detail", "jsonb", "more of it"},
	  {kBody, "retry_in", "interval", "when to try again"},
	  {kBody, "fatal", "boolean", "no further attempt"}},
	 "", "", 200, true},
	{"POST", "/v1/leases/{token}:release", "release", "Give a job back without counting the attempt", kCall, kRow,
	 "tq_release",
	 kState, {kLease, {kBody, "delay", "interval", "how long no claim gets it"}}, "", "", 200, true},
	{"POST", "/v1/leases/{token}:bury", "bury", "Set a job aside for people", kCall, kRow, "tq_bury", kState,
	 {kLease, {kBody, "reason", "text", "the reason, for people", true}}},
	{"POST", "/v1/leases:heartbeat", "heartbeat_many", "Extend several leases", kCall, kRows, "tq_heartbeat_many",
	 "id bigint, action text", {kLeases, {kBody, "extend", "interval", "the length of the leases from now"}}, "jobs",
	 "", 200, true},
	{"POST", "/v1/leases:complete", "complete_many", "Finish several jobs, each with a status", kCall, kRows,
	 "tq_complete_many",
	 kStatus, {kLeases, {kBody, "results", "jsonb[]", "a result for each job"}}, "jobs", "", 200, true},
	{"POST", "/v1/leases:fail", "fail_many", "Let several attempts fail, each with a status", kCall, kRows,
	 "tq_fail_many", kStatus,
	 {kLeases, {kBody, "errors", "text[]", "an error for each job", true}}, "jobs", "", 200, true},

	// queues
	{"GET", "/v1/queues", "list_queues", "The queues", kLook, kRows, "tq_queues", kQueue, {}, "queues",
	 "ORDER BY queue"},
	{"GET", "/v1/queues/{queue}", "get_queue", "A queue", kLook, kRow, "tq_queues", kQueue, {kQueueInPath}},
	{"PUT", "/v1/queues/{queue}", "put_queue", "Create a queue, or change settings of it", kDefine, kNothing,
	 "tq_create_queue", "",
	 {{kPath, "queue", "text", "the queue", true, "name"}, {kBody, "settings", "jsonb", "settings by name"}}, "",
	 "", 204},
	{"DELETE", "/v1/queues/{queue}", "drop_queue", "Drop an empty queue", kCall, kNothing, "tq_drop_queue", "",
	 {{kPath, "queue", "text", "the queue", true, "name"}}, "", "", 204},
	{"POST", "/v1/queues/{queue}:pause", "pause_queue", "Pause a queue, or a kind or group of it", kCall, kNothing,
	 "tq_pause", "",
	 {kQueueInPath,
	  {kBody, "kind", "text", "only this kind"},
	  {kBody, "group_key", "text", "only this group"},
	  {kBody, "until", "timestamptz", "the end of the pause"}},
	 "", "", 204},
	{"POST", "/v1/queues/{queue}:resume", "resume_queue", "End a pause", kCall, kNothing, "tq_resume", "",
	 {kQueueInPath, {kBody, "kind", "text", "only this kind"}, {kBody, "group_key", "text", "only this group"}},
	 "", "", 204},
	{"POST", "/v1/queues/{queue}:purge", "purge_queue", "Purge the jobs of a queue in one state", kCall, kRow,
	 "tq_purge", kCount,
	 {kQueueInPath, {kBody, "state", "text", "ready, delayed, blocked, succeeded, dead, ... or all", true}}},
	{"GET", "/v1/queues/{queue}/series", "queue_series", "Counters and waiting times of the last day", kCall,
	 kRows, "tq_series", kSeries, together({kQueueInPath}, kOfSeries), "series"},
	{"GET", "/v1/series", "series", "The same for all queues that the role may see", kCall, kRows, "tq_series", kSeries,
	 kOfSeries, "series"},

	// schedules
	{"GET", "/v1/schedules", "list_schedules", "The schedules", kLook, kRows, "tq_schedules", kSchedule,
	 {{kQuery, "queue", "text", "of this queue"}}, "schedules", "ORDER BY name"},
	{"GET", "/v1/schedules/{name}", "get_schedule", "A schedule", kLook, kRow, "tq_schedules", kSchedule, {kName}},
	{"PUT", "/v1/schedules/{name}", "put_schedule", "Define or replace a schedule", kCall, kNothing, "tq_schedule",
	 "",
	 {kName,
	  kQueueInBody,
	  {kBody, "payload", "jsonb", "the payload of its jobs"},
	  {kBody, "kind", "text", "the kind of its jobs"},
	  {kBody, "cron", "text", "the times as a cron expression"},
	  {kBody, "every", "interval", "or as an interval"},
	  {kBody, "timezone", "text", "the time zone, as Europe/Berlin"},
	  {kBody, "catch_up", "text", "none, latest or all"},
	  {kBody, "overlap", "text", "allow, skip or cancel"},
	  {kBody, "options", "jsonb", "priority, jitter, ..."}},
	 "", "", 204},
	{"DELETE", "/v1/schedules/{name}", "remove_schedule", "Remove a schedule", kCall, kNothing, "tq_unschedule",
	 "", {kName}, "", "",
	 204},
	{"POST", "/v1/schedules/{name}:pause", "pause_schedule", "Pause a schedule", kCall, kNothing,
	 "tq_schedule_pause", "", {kName}, "",
	 "", 204},
	{"POST", "/v1/schedules/{name}:resume", "resume_schedule", "Resume a schedule", kCall, kNothing,
	 "tq_schedule_resume", "", {kName},
	 "", "", 204},
	{"POST", "/v1/schedules/{name}:run", "run_schedule", "Enqueue a job of a schedule now", kCall, kRow,
	 "tq_schedule_run",
	 "id bigint", {kName}},
	{"GET", "/v1/schedules:next", "next_times", "The next times of a cron expression", kCall, kRows,
	 "tq_schedule_next",
	 "at timestamptz",
	 {{kQuery, "cron", "text", "the cron expression", true},
	  {kQuery, "timezone", "text", "the time zone"},
	  {kQuery, "n", "int", "how many times"}},
	 "times"},

	// workers and dead letters
	{"GET", "/v1/workers", "list_workers", "The workers", kLook, kRows, "tq_workers",
	 "worker text, running bigint, claimed bigint, seen_at timestamptz, draining boolean", {},
	 "workers", "ORDER BY worker"},
	{"POST", "/v1/workers/{worker}:drain", "drain_worker", "Let a worker claim no more", kCall, kRow, "tq_drain",
	 kCount,
	 {kWorkerInPath}},
	{"POST", "/v1/workers/{worker}:undrain", "undrain_worker", "Let a worker claim again", kCall, kRow, "tq_undrain",
	 "was_draining boolean", {kWorkerInPath}},
	{"GET", "/v1/dead", "list_dead", "Dead and buried jobs, up to 1000", kLook, kRows, "tq_dead",
	 "id bigint, queue text, kind text, state text, attempts int, reason text, worker text, died_at timestamptz",
	 {{kQuery, "queue", "text", "of this queue"}, {kQuery, "kind", "text", "of this kind"}}, "jobs", "LIMIT 1000"},
	{"GET", "/v1/dead/{queue}/groups", "dead_groups", "Dead jobs of a queue by error", kCall, kRows, "tq_dead_groups",
	 "kind text, error text, jobs bigint, first_at timestamptz, last_at timestamptz, example bigint, "
	 "complete boolean",
	 {kQueueInPath, {kQuery, "max_jobs", "int", "how many jobs to read"}}, "groups"},
	{"POST", "/v1/dead:retry", "retry_dead", "Retry dead jobs, or copy them to another queue", kCall, kRow,
	 "tq_retry_many", kCount,
	 {kQueueInBody,
	  {kBody, "state", "text", "dead, buried, cancelled, expired or delayed"},
	  {kBody, "kind", "text", "of this kind"},
	  {kBody, "since", "timestamptz", "that ended then or later"},
	  {kBody, "max_jobs", "int", "the most jobs"},
	  {kBody, "to_queue", "text", "copy them to this queue instead"},
	  kWithChildren}},
	{"POST", "/v1/dead:purge", "purge_dead", "Purge all dead or buried jobs of a queue", kCall, kRow, "tq_purge",
	 kCount,
	 {kQueueInBody, {kBody, "state", "text", "dead or buried", true}}},

	// what else takes jobs
	{"GET", "/v1/handlers", "list_handlers", "Functions that run jobs inside the server", kLook, kRows, "tq_handlers",
	 "queue text, kind text, function text, role text, options jsonb, search_path text, defined_at timestamptz, "
	 "problem text, problem_at timestamptz, retry_at timestamptz",
	 {{kQuery, "queue", "text", "of this queue"}}, "handlers", "ORDER BY queue, kind"},
	{"POST", "/v1/queues/{queue}:unhandle", "unhandle", "Remove a handler: its jobs wait for workers", kCall, kNothing,
	 "tq_unhandle", "",
	 {kQueueInPath,
	  {kBody, "kind", "text", "its kind; null: the one for all kinds without their own", false, nullptr, true}},
	 "", "", 204},
	{"GET", "/v1/subscriptions", "list_subscriptions", "Where jobs are delivered by HTTP", kLook, kRows,
	 "tq_subscriptions",
	 "queue text, url text, options jsonb, role text, defined_at timestamptz, active boolean",
	 {{kQuery, "queue", "text", "of this queue"}}, "subscriptions", "ORDER BY queue, url"},
	{"POST", "/v1/queues/{queue}:subscribe", "subscribe", "Deliver jobs to a URL, or change how", kCall, kNothing,
	 "tq_subscribe", "", {kQueueInPath, kUrl, {kBody, "options", "jsonb", "secret, timeout, concurrency, kinds"}},
	 "", "", 204},
	{"POST", "/v1/queues/{queue}:unsubscribe", "unsubscribe", "Deliver no more to a URL", kCall, kNothing,
	 "tq_unsubscribe", "", {kQueueInPath, kUrl}, "", "", 204},

	// rights
	{"GET", "/v1/me", "me", "The role of this call, and what it may do on which queues; * are all", kLook, kRow,
	 "(SELECT current_user::text AS role, current_database()::text AS database, tq_now() AS now, extversion AS version, "
	 "(SELECT jsonb_object_agg(queue, privileges) FROM tq_rights) AS rights FROM pg_extension WHERE extname = 'tq') me",
	 "role text, database text, version text, now timestamptz, rights jsonb", {}},
	{"GET", "/v1/grants", "list_grants", "Who may do what", kLook, kRows, "tq_grants",
	 "queue text, role text, privilege text", {{kQuery, "queue", "text", "on this queue; * for all"}}, "grants",
	 "ORDER BY queue, role::text, privilege"},
	{"POST", "/v1/queues/{queue}:grant", "grant", "Grant a privilege on a queue, or on all as *", kCall, kNothing,
	 "tq_grant", "", kOfGrant, "", "", 204},
	{"POST", "/v1/queues/{queue}:revoke", "revoke", "Revoke a privilege", kCall, kNothing, "tq_revoke", "", kOfGrant, "",
	 "", 204},
	{"GET", "/v1/audit", "list_audit", "Who administered what, the newest first, up to 200", kLook, kRows, "tq_audit",
	 "id bigint, at timestamptz, role text, session_role text, action text, queue text, job_id bigint, detail jsonb",
	 {{kQuery, "queue", "text", "of this queue"},
	  {kQuery, "action", "text", "such as pause"},
	  {kQuery, "role", "text", "by this role"},
	  {kQuery, "job", "bigint", "of this job", false, "job_id"},
	  {kQuery, "before", "bigint", "older than this id: the last one of the page before", false, "id <"}},
	 "entries", "ORDER BY id DESC LIMIT 200"},

	// the whole
	{"GET", "/v1/stats", "stats", "Figures of all queues", kCall, kRows, "tq_stats",
	 "queue text, state text, ready bigint, delayed bigint, blocked bigint, running bigint, live bigint, "
	 "in_memory bigint, on_disk bigint, waiting int, paused_until timestamptz, kinds jsonb, enqueued bigint, "
	 "claimed bigint, succeeded bigint, failed bigint, lost bigint, dead bigint, released bigint, cancelled bigint, "
	 "expired bigint",
	 {}, "queues"},
	{"GET", "/v1/health", "health", "What is wrong, and what to do about it", kCall, kRows, "tq_health",
	 "item text, value text, status text, hint text", {}, "items"},
	{"GET", "/v1/metrics", "database_metrics", "Figures of queues and database, for Prometheus", kText, kNothing,
	 "tq_metrics", "", {}},
	{"GET", "/v1/settings", "list_settings", "Settings of the server for tq, and which of them a queue may set for itself",
	 kLook, kRows,
	 "(SELECT s.name, current_setting(s.name) AS value, s.source, s.short_desc AS help, "
	 "s.name = ANY ('{tq.cancel_grace,tq.dead_retention,tq.expires_in,tq.lease,tq.lease_grace,tq.max_attempts,"
	 "tq.max_depth,tq.on_lost,tq.priority,tq.retention,tq.retry,tq.strict_timeout,tq.timeout,tq.unique_for}') AS for_queues FROM pg_settings s WHERE s.name LIKE 'tq.%') "
	 "settings",
	 "name text, value text, source text, help text, for_queues boolean", {}, "settings", "ORDER BY name"},
	{"GET", "/v1/events", "events", "Figures each second, and changes, as server-sent events", kChanges, kNothing, "",
	 "",
	 {{kQuery, "queue", "text", "changes of the jobs of this queue, which must have change_retention"},
	  {kQuery, "job", "bigint", "changes of the state of this job"}}},
	{"GET", "/metrics", "metrics", "Figures of the gateway, for Prometheus", kMetrics, kNothing, "", "", {}},
	{"GET", "/healthz", "healthz", "Whether the gateway lives", kAlive, kNothing, "", "", {}, "", "", 200, false,
	 true},
	{"GET", "/readyz", "readyz", "Whether the database can be reached and written", kReady, kNothing, "", "", {},
	 "", "", 200, false,
	 true},
	{"GET", "/openapi.json", "openapi", "This description", kDescribe, kNothing, "", "", {}, "", "", 200, false,
	 true},
};

const Operation &operation_named(std::string_view name)
{
	return *std::find_if(kOperations.begin(), kOperations.end(),
						 [name](const Operation &one) { return one.name == name; });
}

} // namespace gateway
