-- complain if the script is sourced in psql rather than run by CREATE EXTENSION
\echo Use "CREATE EXTENSION tq" to load this file. \quit
-- The journal: append-only tables, and the small registries beside them.
-- Segment pairs tq.job_N / tq.event_N are children of the two empty parents (docs/architecture.md).

DO $$
BEGIN
	IF '@extschema@' = 'tq' THEN
		RAISE EXCEPTION 'extension "tq" cannot be created in schema "tq"'
			USING ERRCODE = 'invalid_schema_name',
				HINT = 'The schema "tq" holds the extension''s own tables. Create the extension in another schema, such as "public".';
	END IF;
END
$$;

CREATE SCHEMA tq;
REVOKE ALL ON SCHEMA tq FROM PUBLIC;

-- One row per enqueued job; never updated, never deleted, but in segment 0.
CREATE TABLE tq.job (
	id           bigint NOT NULL,          -- ordered; below 2^53
	enqueued_at  timestamptz NOT NULL,
	queue_id     int NOT NULL,             -- tq.queue.id
	priority     int NOT NULL,             -- lower first; events may override it
	run_at       timestamptz,              -- not before
	expires_at   timestamptz,              -- not started after
	timeout      bigint,                   -- hard limit of one attempt, microseconds
	lease        bigint,                   -- lease without heartbeat, microseconds; null: the queue's
	origin       bigint,                   -- the job this one is a copy of
	max_attempts int,                      -- null: the queue's
	weight       real,
	kind         text COLLATE "C",         -- "C": indexed, and no new version of a locale may reorder an index
	group_key    text COLLATE "C",
	unique_key   text COLLATE "C",
	payload      jsonb NOT NULL,
	headers      jsonb,
	retry        jsonb,
	options      jsonb,
	depends_on   bigint[],                 -- it waits for these until freed; empty: the callback of a batch
	tags         text[],
	-- for rows written by hand; tq's own path checks before it writes
	CONSTRAINT job_id_range CHECK (id > 0 AND id < 9007199254740992),
	CONSTRAINT job_kind_is_name CHECK (
		pg_catalog.octet_length(kind) BETWEEN 1 AND 63 AND kind OPERATOR(pg_catalog.!~) '[[:cntrl:]]'),
	CONSTRAINT job_group_key_is_name CHECK (
		pg_catalog.octet_length(group_key) BETWEEN 1 AND 127 AND group_key OPERATOR(pg_catalog.!~) '[[:cntrl:]]'),
	CONSTRAINT job_is_empty CHECK (false) NO INHERIT
) USING heap;

-- One row per durable change of a job. type: c claimed, s succeeded, f failed (to be retried), l lease lost
-- (to be retried), r released, d dead, b buried, x cancelled, e expired, p purged, m moved, R retried,
-- o override (priority, retry_at), k checkpoint, a asked to cancel, u freed (its parents have ended).
CREATE TABLE tq.event (
	job_id       bigint NOT NULL,
	at           timestamptz NOT NULL,
	lease        bigint,                   -- lease number this event belongs to
	claimed_at   timestamptz,              -- start of the attempt that this event ends or journals
	retry_at     timestamptz,              -- not claimable before (f, l, r, R, o)
	lease_until  timestamptz,              -- c: end of the lease when it was granted
	step         int NOT NULL,             -- the job's steps order its history; unique per job
	attempt      int,
	priority     int,                      -- o: new priority
	type         "char" NOT NULL,
	bound        boolean,                  -- c: lease is bound to its session
	worker       text,
	reason       text,                     -- error, reason
	detail       jsonb,                    -- result, error detail, checkpoint, u: the outcomes of its parents
	CONSTRAINT event_step_range CHECK (step > 0),
	CONSTRAINT event_is_empty CHECK (false) NO INHERIT
) USING heap;

-- Segment 0 always exists, is a member of the extension, is dumped, and is an ordinary mutable pair.
CREATE TABLE tq.job_0 () INHERITS (tq.job) USING heap;
CREATE UNIQUE INDEX job_0_id ON tq.job_0 (id);
CREATE INDEX job_0_lane ON tq.job_0 (queue_id, kind, priority, id) WHERE group_key IS NULL;
CREATE INDEX job_0_group ON tq.job_0 (queue_id, group_key, priority, id) WHERE group_key IS NOT NULL;
CREATE INDEX job_0_due ON tq.job_0 (run_at, id) WHERE run_at IS NOT NULL;
CREATE TABLE tq.event_0 () INHERITS (tq.event) USING heap;
CREATE UNIQUE INDEX event_0_step ON tq.event_0 (job_id, step);
CREATE INDEX event_0_due ON tq.event_0 (retry_at, job_id) WHERE retry_at IS NOT NULL;
CREATE INDEX event_0_override ON tq.event_0 (job_id) WHERE type = 'o';
-- Published like every other table by FOR ALL TABLES, and rows of segment 0 are deleted.
ALTER TABLE tq.job REPLICA IDENTITY FULL;
ALTER TABLE tq.event REPLICA IDENTITY FULL;
ALTER TABLE tq.job_0 REPLICA IDENTITY USING INDEX job_0_id;
ALTER TABLE tq.event_0 REPLICA IDENTITY USING INDEX event_0_step;

-- Whoever writes rows past tq makes it read the journal again: by statement, also on a table named only through its parent; and by
-- row where rows come without statements, from logical replication. tq's own path fires no triggers.
CREATE FUNCTION tq.reload_trigger() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_reload_trigger';
REVOKE ALL ON FUNCTION tq.reload_trigger() FROM PUBLIC;
CREATE TRIGGER tq_reload AFTER UPDATE OR DELETE ON tq.job
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload AFTER UPDATE OR DELETE ON tq.event
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.job_0
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.event_0
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload_row AFTER INSERT OR UPDATE OR DELETE ON tq.job_0
	FOR EACH ROW EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload_row AFTER INSERT OR UPDATE OR DELETE ON tq.event_0
	FOR EACH ROW EXECUTE FUNCTION tq.reload_trigger();
ALTER TABLE tq.job ENABLE ALWAYS TRIGGER tq_reload;
ALTER TABLE tq.event ENABLE ALWAYS TRIGGER tq_reload;
ALTER TABLE tq.job_0 ENABLE ALWAYS TRIGGER tq_reload, ENABLE REPLICA TRIGGER tq_reload_row;
ALTER TABLE tq.event_0 ENABLE ALWAYS TRIGGER tq_reload, ENABLE REPLICA TRIGGER tq_reload_row;

-- Registries.
CREATE TABLE tq.queue (
	id         int PRIMARY KEY,
	name       text NOT NULL UNIQUE,
	settings   jsonb NOT NULL DEFAULT '{}',
	paused     boolean NOT NULL DEFAULT false,
	paused_until timestamptz,              -- null with paused: until resumed
	paused_kinds jsonb NOT NULL DEFAULT '{}',  -- kind -> until (null: until resumed)
	closing    boolean NOT NULL DEFAULT false, -- tq_drop_queue was called; refused for new jobs
	created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE SEQUENCE tq.queue_id_seq AS int;

-- Who may do what with a queue (tq_grant). A queue's rows go with it; those of a role that was dropped are of no effect, and go later.
CREATE TABLE tq.acl (
	queue_id  int NOT NULL,                -- 0: all queues
	role      regrole NOT NULL,
	privilege text COLLATE "C" NOT NULL
		CONSTRAINT acl_privilege_known CHECK (privilege IN ('produce', 'consume', 'manage', 'monitor')
			OR (privilege = 'create' AND queue_id = 0)),
	PRIMARY KEY (queue_id, role, privilege)
);
-- Every session hears of changes, also of those by hand, by a restore and by logical replication.
CREATE FUNCTION tq.acl_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_acl_changed';
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE ON tq.acl
	FOR EACH ROW EXECUTE FUNCTION tq.acl_changed();
CREATE TRIGGER tq_truncated AFTER TRUNCATE ON tq.acl
	FOR EACH STATEMENT EXECUTE FUNCTION tq.acl_changed();
ALTER TABLE tq.acl ENABLE ALWAYS TRIGGER tq_changed, ENABLE ALWAYS TRIGGER tq_truncated;

-- What is known of numbered segments beyond their tables.
CREATE TABLE tq.segment (
	number      int PRIMARY KEY,
	opened_at   timestamptz NOT NULL,
	sealed_at   timestamptz,               -- takes no more jobs
	finished_at timestamptz                -- every job in it was terminal; never read again
);

-- Who has a unique key: the job that was last enqueued or retried with it. The only table that changes with jobs, and only with those
-- that have such a key. Nothing is written when they end; a row whose job has ended means nothing, and the janitor deletes it.
CREATE TABLE tq.unique_key (
	queue_id int NOT NULL,                 -- tq.queue.id
	key      text COLLATE "C" NOT NULL,
	job_id   bigint NOT NULL,
	until    timestamptz,                  -- until then the key is taken even if the job has ended
	PRIMARY KEY (queue_id, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- Who waits for whom: a row for each parent of a job that waits, and for each job of a batch. It goes when the child is free or has ended;
-- until then the parent's own record is kept, or its outcome here. Written by the scheduler alone, once it is there.
CREATE TABLE tq.dependency (
	parent_id  bigint NOT NULL,            -- 0: the batch that child_id is the callback of can still be joined
	child_id   bigint NOT NULL,
	on_failure "char" NOT NULL             -- c: if the parent fails, the child is cancelled; r: it runs all the same
		CONSTRAINT dependency_on_failure_known CHECK (on_failure IN ('c', 'r')),
	shown      boolean NOT NULL,           -- the child is given the parent's result: who enqueued it may read that
	state      text,                       -- how the parent has ended; null: not yet
	outcome    jsonb,                      -- what the child is given
	PRIMARY KEY (parent_id, child_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX dependency_child ON tq.dependency (child_id, parent_id);

-- Batches, and how far they are; the id is that of the callback job.
CREATE TABLE tq.batch (
	id         bigint PRIMARY KEY,
	on_failure "char" NOT NULL
		CONSTRAINT batch_on_failure_known CHECK (on_failure IN ('c', 'r')),
	opened_at  timestamptz NOT NULL,
	closed_at  timestamptz,                -- when nobody was joining any more
	total      bigint,                     -- known from then on
	done       bigint NOT NULL DEFAULT 0,
	succeeded  bigint NOT NULL DEFAULT 0,
	failed     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- Whoever writes there past tq makes it look through both.
CREATE FUNCTION tq.dependencies_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_dependencies_changed';
REVOKE ALL ON FUNCTION tq.dependencies_changed() FROM PUBLIC;
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.dependency
	FOR EACH STATEMENT EXECUTE FUNCTION tq.dependencies_changed();
CREATE TRIGGER tq_changed_row AFTER INSERT OR UPDATE OR DELETE ON tq.dependency
	FOR EACH ROW EXECUTE FUNCTION tq.dependencies_changed();
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.batch
	FOR EACH STATEMENT EXECUTE FUNCTION tq.dependencies_changed();
CREATE TRIGGER tq_changed_row AFTER INSERT OR UPDATE OR DELETE ON tq.batch
	FOR EACH ROW EXECUTE FUNCTION tq.dependencies_changed();
ALTER TABLE tq.dependency ENABLE ALWAYS TRIGGER tq_changed, ENABLE REPLICA TRIGGER tq_changed_row;
ALTER TABLE tq.batch ENABLE ALWAYS TRIGGER tq_changed, ENABLE REPLICA TRIGGER tq_changed_row;

-- Ids and leases are drawn in blocks: the increment is the block's size.
CREATE SEQUENCE tq.job_id_seq AS bigint INCREMENT BY 4096 MINVALUE 1 START WITH 4096;
CREATE SEQUENCE tq.lease_seq AS bigint MINVALUE 1 START WITH 1;

-- The places where these queues were in use: a row by the first use, or by tq_activate(). A clone or a restored dump finds rows of
-- other places only, a new extension none.
CREATE TABLE tq.meta (
	system_identifier bigint NOT NULL,
	database          oid NOT NULL,
	activated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (system_identifier, database)
);

-- Default privileges may have opened them.
REVOKE ALL ON ALL TABLES IN SCHEMA tq FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA tq FROM PUBLIC;

SELECT pg_catalog.pg_extension_config_dump('tq.job_0', '');
SELECT pg_catalog.pg_extension_config_dump('tq.event_0', '');
SELECT pg_catalog.pg_extension_config_dump('tq.queue', '');
SELECT pg_catalog.pg_extension_config_dump('tq.queue_id_seq', '');
-- A role that was dropped would come back as a number, which may be another role's.
SELECT pg_catalog.pg_extension_config_dump('tq.acl', 'WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = acl.role)');
SELECT pg_catalog.pg_extension_config_dump('tq.segment', '');
SELECT pg_catalog.pg_extension_config_dump('tq.unique_key', '');
SELECT pg_catalog.pg_extension_config_dump('tq.dependency', '');
SELECT pg_catalog.pg_extension_config_dump('tq.batch', '');
SELECT pg_catalog.pg_extension_config_dump('tq.meta', '');
SELECT pg_catalog.pg_extension_config_dump('tq.job_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('tq.lease_seq', '');
-- Schedules, and which of their times have been dealt with. Rows of the first change only by tq_schedule and its like, and when rows of the
-- second are pruned.

CREATE TABLE tq.schedule (
	name        text COLLATE "C" PRIMARY KEY,
	queue       text NOT NULL,
	payload     jsonb NOT NULL,
	kind        text,
	cron        text,
	every       interval,
	timezone    text NOT NULL,
	catch_up    text NOT NULL,
	overlap     text NOT NULL,
	options     jsonb NOT NULL,            -- as given; start and end of it are the next two
	starts_at   timestamptz,               -- no time before it
	ends_at     timestamptz,               -- no time after it
	owner       regrole NOT NULL,          -- with whose rights its jobs are enqueued
	anchor      timestamptz NOT NULL,      -- `every` counts from here
	fired_until timestamptz NOT NULL,      -- nothing at or before it ever fires (again)
	defined_at  timestamptz NOT NULL,
	revision    bigint NOT NULL,           -- grows with each change by tq_schedule, tq_schedule_pause, tq_schedule_resume
	paused      boolean NOT NULL,
	missed      bigint NOT NULL DEFAULT 0, -- of rows of schedule_fire that were pruned
	last_error  text,                      -- why a time could not be dealt with; null once one was
	CONSTRAINT schedule_cron_or_every CHECK ((cron IS NULL) <> (every IS NULL)),
	CONSTRAINT schedule_catch_up_known CHECK (catch_up IN ('none', 'latest', 'all')),
	CONSTRAINT schedule_overlap_known CHECK (overlap IN ('allow', 'skip', 'cancel'))
);

-- One row per schedule and time, written by the transaction that enqueues the job: so there is exactly one job. The last hundred are kept.
CREATE TABLE tq.schedule_fire (
	schedule   text COLLATE "C" NOT NULL,
	fire_at    timestamptz NOT NULL,
	job_id     bigint,                     -- null: none; of a duplicate: who has its unique key
	at         timestamptz NOT NULL,       -- when that was
	kept_until timestamptz,                -- till then the journal has the job, whatever becomes of it
	missed     bigint NOT NULL DEFAULT 0,  -- times between the row before and this one for which there is no job
	outcome    text NOT NULL
		CONSTRAINT schedule_fire_outcome_known CHECK (outcome IN ('fired', 'skipped', 'missed', 'duplicate', 'denied', 'manual')),
	PRIMARY KEY (schedule, fire_at)
);

-- The scheduler hears of changes, also of those by hand, by a restore and by logical replication.
CREATE FUNCTION tq.schedule_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_schedule_changed';
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE ON tq.schedule
	FOR EACH ROW EXECUTE FUNCTION tq.schedule_changed();
CREATE TRIGGER tq_truncated AFTER TRUNCATE ON tq.schedule
	FOR EACH STATEMENT EXECUTE FUNCTION tq.schedule_changed();
ALTER TABLE tq.schedule ENABLE ALWAYS TRIGGER tq_changed, ENABLE ALWAYS TRIGGER tq_truncated;

REVOKE ALL ON TABLE tq.schedule, tq.schedule_fire FROM PUBLIC;

-- A role that was dropped would come back as a number, which may be another role's.
SELECT pg_catalog.pg_extension_config_dump('tq.schedule', 'WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = schedule.owner)');
SELECT pg_catalog.pg_extension_config_dump('tq.schedule_fire', '');
-- The SQL-callable functions (docs/reference.md). They are in the schema that CREATE EXTENSION names. Everybody may call them; each checks
-- for itself what the caller may do with the queue (90_rights.sql).

CREATE TYPE tq_job AS (
	id bigint, lease bigint, queue text, kind text, payload jsonb, attempt int, max_attempts int, checkpoint jsonb,
	headers jsonb, priority int, enqueued_at timestamptz, lease_expires_at timestamptz, parents jsonb
);

CREATE FUNCTION tq_enqueue(
	queue text, payload jsonb DEFAULT '{}', kind text DEFAULT NULL, priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
	max_attempts int DEFAULT NULL, retry jsonb DEFAULT NULL, timeout interval DEFAULT NULL,
	group_key text DEFAULT NULL, unique_key text DEFAULT NULL, unique_mode text DEFAULT 'skip',
	headers jsonb DEFAULT NULL, depends_on bigint[] DEFAULT NULL, options jsonb DEFAULT NULL)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_enqueue_many(
	queue text, payloads jsonb[], kind text DEFAULT NULL, priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
	max_attempts int DEFAULT NULL, retry jsonb DEFAULT NULL, timeout interval DEFAULT NULL,
	group_key text DEFAULT NULL, unique_mode text DEFAULT 'skip',
	headers jsonb DEFAULT NULL, depends_on bigint[] DEFAULT NULL, options jsonb DEFAULT NULL,
	kinds text[] DEFAULT NULL, priorities int[] DEFAULT NULL, run_ats timestamptz[] DEFAULT NULL,
	unique_keys text[] DEFAULT NULL, group_keys text[] DEFAULT NULL)
RETURNS bigint[] LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_claim(
	queue text, max_jobs int DEFAULT 1, worker text DEFAULT NULL, lease_for interval DEFAULT NULL,
	wait interval DEFAULT NULL, kinds text[] DEFAULT NULL, bind_session boolean DEFAULT false)
RETURNS SETOF tq_job LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_claim_any(
	queues text[], max_jobs int DEFAULT 1, worker text DEFAULT NULL, lease_for interval DEFAULT NULL,
	wait interval DEFAULT NULL, kinds text[] DEFAULT NULL, bind_session boolean DEFAULT false)
RETURNS SETOF tq_job LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_complete(id bigint, lease bigint, result jsonb DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_complete_many(ids bigint[], leases bigint[], results jsonb[] DEFAULT NULL)
RETURNS TABLE (id bigint, status text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_fail(
	id bigint, lease bigint, error text, detail jsonb DEFAULT NULL, retry_in interval DEFAULT NULL,
	fatal boolean DEFAULT false)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_fail_many(ids bigint[], leases bigint[], errors text[])
RETURNS TABLE (id bigint, status text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_release(id bigint, lease bigint, delay interval DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_bury(id bigint, lease bigint, reason text)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';
-- Functions on single jobs beside claiming and finishing them: heartbeats, changes from outside, looking at them.

CREATE FUNCTION tq_heartbeat(
	id bigint, lease bigint, extend interval DEFAULT NULL, progress jsonb DEFAULT NULL, checkpoint jsonb DEFAULT NULL,
	OUT lease_expires_at timestamptz, OUT action text)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_heartbeat_many(ids bigint[], leases bigint[], extend interval DEFAULT NULL)
RETURNS TABLE (id bigint, action text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_drain(worker text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_undrain(worker text)
RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_cancel(id bigint, reason text DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_retry(id bigint)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_retry_many(
	queue text, state text DEFAULT 'dead', kind text DEFAULT NULL, since timestamptz DEFAULT NULL,
	max_jobs int DEFAULT NULL, to_queue text DEFAULT NULL)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_purge(queue text, state text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_reschedule(id bigint, run_at timestamptz DEFAULT NULL, priority int DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- A job as it is now; an open claim counts, other changes of transactions that have not committed do not.
CREATE FUNCTION tq_get(
	id bigint, OUT id bigint, OUT queue text, OUT kind text, OUT state text, OUT priority int, OUT attempt int,
	OUT max_attempts int, OUT payload jsonb, OUT headers jsonb, OUT run_at timestamptz, OUT enqueued_at timestamptz,
	OUT claimed_at timestamptz, OUT lease bigint, OUT lease_expires_at timestamptz, OUT worker text,
	OUT finished_at timestamptz, OUT result jsonb, OUT error text, OUT checkpoint jsonb, OUT group_key text,
	OUT unique_key text, OUT expires_at timestamptz, OUT tags text[], OUT origin bigint, OUT policies jsonb)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_history(id bigint)
RETURNS TABLE (
	step int, at timestamptz, event text, attempt int, worker text, claimed_at timestamptz, retry_at timestamptz,
	lease bigint, reason text, detail jsonb)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_explain(id bigint)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- Batches: jobs that belong together, and a job that runs when all of them are done.
CREATE FUNCTION tq_batch_open(
	queue text, payload jsonb DEFAULT '{}', kind text DEFAULT NULL, on_failure text DEFAULT 'run', options jsonb DEFAULT NULL)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_batch_close(batch bigint)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_batch(
	batch bigint, OUT id bigint, OUT open boolean, OUT total bigint, OUT done bigint, OUT succeeded bigint, OUT failed bigint,
	OUT opened_at timestamptz, OUT closed_at timestamptz)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';
-- Queues: making and changing them, waiting for their jobs, how they stand.

CREATE FUNCTION tq_create_queue(name text, settings jsonb DEFAULT '{}')
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_alter_queue(name text, settings jsonb)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_drop_queue(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_pause(queue text, kind text DEFAULT NULL, until timestamptz DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_resume(queue text, kind text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_grant(queue text, role regrole, privilege text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_revoke(queue text, role regrole, privilege text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE PROCEDURE tq_wait(queues text[], timeout interval)
LANGUAGE C AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_stats()
RETURNS TABLE (
	queue text, state text, ready bigint, delayed bigint, blocked bigint, running bigint, live bigint, in_memory bigint, on_disk bigint,
	waiting int, paused_until timestamptz, kinds jsonb, enqueued bigint, claimed bigint, succeeded bigint, failed bigint,
	lost bigint, dead bigint, released bigint, cancelled bigint, expired bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_health()
RETURNS TABLE (item text, value text, status text, hint text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_now()
RETURNS timestamptz LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_metrics()
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_check()
RETURNS TABLE (item text, expected bigint, found bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 12 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_reload()
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_activate()
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';
-- tq_inbox: COPY tq_inbox FROM STDIN enqueues, from any client. The columns are the arguments of tq_enqueue.

-- Not STRICT: a missing queue is checked too.
CREATE FUNCTION tq.inbox_guard(queue text) RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_inbox_guard';
CREATE DOMAIN tq.inbox_queue AS text CONSTRAINT inbox_trigger_fires CHECK (tq.inbox_guard(VALUE));

CREATE VIEW tq_inbox AS
	SELECT NULL::tq.inbox_queue AS queue, NULL::jsonb AS payload, NULL::text AS kind, NULL::int AS priority,
		NULL::timestamptz AS run_at, NULL::interval AS delay, NULL::timestamptz AS expires_at, NULL::int AS max_attempts,
		NULL::jsonb AS retry, NULL::interval AS timeout, NULL::text AS group_key, NULL::text AS unique_key,
		NULL::text AS unique_mode, NULL::jsonb AS headers, NULL::bigint[] AS depends_on, NULL::jsonb AS options
	WHERE false;
-- A column that COPY leaves out is not coerced to its type, hence the guard in the default.
ALTER VIEW tq_inbox ALTER COLUMN queue SET DEFAULT CASE WHEN tq.inbox_guard(NULL) THEN NULL::text END,
	ALTER COLUMN payload SET DEFAULT '{}', ALTER COLUMN unique_mode SET DEFAULT 'skip';

CREATE FUNCTION tq.inbox_insert() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'tq_inbox_insert';
CREATE TRIGGER tq_inbox_insert INSTEAD OF INSERT ON tq_inbox
	FOR EACH ROW EXECUTE FUNCTION tq.inbox_insert();
-- Views. The functions that they call show what whoever queries them may see; the tables are read with the owner's rights, so a view that
-- reads one is a security barrier: no condition of the query is evaluated on rows that the view leaves out.

CREATE VIEW tq_queues WITH (security_barrier) AS
	SELECT s.queue, s.state, s.ready, s.delayed, s.blocked, s.running, s.live, s.in_memory, s.on_disk, s.waiting, s.paused_until, s.kinds,
		q.settings, q.created_at
	FROM tq_stats() s LEFT JOIN tq.queue q ON q.name = s.queue;

CREATE FUNCTION tq.running()
RETURNS TABLE (
	id bigint, queue text, kind text, lease bigint, worker text, attempt int, priority int, claimed_at timestamptz,
	lease_expires_at timestamptz, open boolean, bound boolean, cancel_asked boolean, pid int, progress jsonb)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'tq_list_running';
CREATE VIEW tq_running AS SELECT * FROM tq.running();

CREATE FUNCTION tq.workers()
RETURNS TABLE (worker text, running int, claimed bigint, seen_at timestamptz, draining boolean)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME', 'tq_list_workers';
CREATE VIEW tq_workers AS SELECT * FROM tq.workers();

-- In the select list, not in FROM, the function is asked for one row at a time, so LIMIT ends its walk over the segments.
CREATE TYPE tq.job_line AS (
	id bigint, queue text, kind text, state text, priority int, attempt int, max_attempts int, run_at timestamptz,
	enqueued_at timestamptz, expires_at timestamptz
);
CREATE FUNCTION tq.jobs() RETURNS SETOF tq.job_line
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1000000 AS 'MODULE_PATHNAME', 'tq_list_jobs';
CREATE VIEW tq_jobs AS
	SELECT (l.line).id, (l.line).queue, (l.line).kind, (l.line).state, (l.line).priority, (l.line).attempt,
		(l.line).max_attempts, (l.line).run_at, (l.line).enqueued_at, (l.line).expires_at
	FROM (SELECT tq.jobs() AS line) l;

CREATE FUNCTION tq.dead()
RETURNS TABLE (
	id bigint, queue text, kind text, state text, priority int, attempts int, max_attempts int, reason text, detail jsonb,
	last_error text, worker text, enqueued_at timestamptz, claimed_at timestamptz, died_at timestamptz,
	kept_until timestamptz)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1000 AS 'MODULE_PATHNAME', 'tq_list_dead';
CREATE VIEW tq_dead AS SELECT * FROM tq.dead();

CREATE FUNCTION tq.may_list(queue_id int, role oid) RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_may_list';
CREATE VIEW tq_grants WITH (security_barrier) AS
	SELECT CASE a.queue_id WHEN 0 THEN '*' ELSE q.name END AS queue, a.role, a.privilege
	FROM tq.acl a LEFT JOIN tq.queue q ON q.id = a.queue_id
	WHERE (a.queue_id = 0 OR q.id IS NOT NULL) AND tq.may_list(a.queue_id, a.role)
		AND EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = a.role);

CREATE FUNCTION tq.schedules()
RETURNS TABLE (
	name text, queue text, kind text, payload jsonb, cron text, every interval, timezone text, catch_up text,
	overlap text, options jsonb, owner regrole, state text, next_at timestamptz, last_at timestamptz, last_job_id bigint,
	last_outcome text, missed bigint, last_error text, defined_at timestamptz, starts_at timestamptz, ends_at timestamptz)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'tq_list_schedules';
CREATE VIEW tq_schedules AS SELECT * FROM tq.schedules();
-- Schedules.

CREATE FUNCTION tq_schedule(
	name text, queue text, payload jsonb DEFAULT '{}', kind text DEFAULT NULL, cron text DEFAULT NULL,
	every interval DEFAULT NULL, timezone text DEFAULT 'UTC', catch_up text DEFAULT 'latest',
	overlap text DEFAULT 'allow', options jsonb DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_unschedule(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_schedule_pause(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_schedule_resume(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_schedule_run(name text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- Volatile: it counts from the time of the clock.
CREATE FUNCTION tq_schedule_next(cron text, timezone text DEFAULT 'UTC', n int DEFAULT 5)
RETURNS SETOF timestamptz LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 5 AS 'MODULE_PATHNAME', 'tq_schedule_next';
-- Handlers: functions that executors inside the server run jobs with (docs/guides/handlers.md).

CREATE TABLE tq.handler (
	queue_id    int NOT NULL,              -- tq.queue.id
	kind        text COLLATE "C" NOT NULL, -- '': every kind without a handler of its own
	function    text NOT NULL,             -- with its schema, quoted; takes a tq_job
	role        regrole NOT NULL,          -- who named it; it runs as
	search_path text NOT NULL,             -- when it was named
	options     jsonb NOT NULL DEFAULT '{}',
	defined_at  timestamptz NOT NULL,
	problem     text,                      -- why its jobs are not run; null: they are
	problem_at  timestamptz,
	retry_at    timestamptz,               -- not tried again before
	PRIMARY KEY (queue_id, kind)
);
REVOKE ALL ON TABLE tq.handler FROM PUBLIC;
-- A role that was dropped would come back as a number, which may be another role's.
SELECT pg_catalog.pg_extension_config_dump('tq.handler', 'WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = handler.role)');

-- Schedulers and executors hear of changes at commit, also of those by hand, by a restore and by logical replication.
CREATE FUNCTION tq.handler_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_handler_changed';
REVOKE ALL ON FUNCTION tq.handler_changed() FROM PUBLIC;
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.handler
	FOR EACH STATEMENT EXECUTE FUNCTION tq.handler_changed();
CREATE TRIGGER tq_changed_row AFTER INSERT OR UPDATE OR DELETE ON tq.handler
	FOR EACH ROW EXECUTE FUNCTION tq.handler_changed();
ALTER TABLE tq.handler ENABLE ALWAYS TRIGGER tq_changed, ENABLE REPLICA TRIGGER tq_changed_row;

CREATE FUNCTION tq_handle(queue text, kind text, handler regprocedure, options jsonb DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_unhandle(queue text, kind text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE VIEW tq_handlers WITH (security_barrier) AS
	SELECT q.name AS queue, nullif(h.kind, '') AS kind, h.function, h.role, h.options, h.search_path, h.defined_at, h.problem,
		h.problem_at, h.retry_at
	FROM tq.handler h JOIN tq.queue q ON q.id = h.queue_id
	WHERE tq.may_list(h.queue_id, h.role);
-- Closed by default (P8): whatever the default privileges of this database have opened is closed first. Then everybody may call the
-- functions, query the views and insert into tq_inbox, since these check for themselves what the caller may do with the queue
-- (docs/adr/0006-rights-in-a-table.md). The tables and sequences of schema tq stay closed: tq's functions read and write them for
-- the caller.
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		WITH member AS (
			SELECT 'ROUTINE' AS kind, p.oid::regprocedure::text AS name, p.proowner AS owner, p.proacl AS acl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_proc p ON p.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			UNION ALL
			SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, c.relowner, c.relacl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_class c ON c.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
				AND c.relkind IN ('r', 'v', 'S')
			UNION ALL
			SELECT 'TYPE', t.oid::regtype::text, t.typowner, t.typacl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_type t ON t.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_type'::regclass
				-- since 17 the types of arrays and of tables' rows are members as well; they have no rights of their own
				AND t.typcategory <> 'A'
				AND NOT EXISTS (SELECT FROM pg_class r WHERE r.oid = t.typrelid AND r.relkind <> 'c')
			UNION ALL
			SELECT 'SCHEMA', n.oid::regnamespace::text, n.nspowner, n.nspacl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_namespace n ON n.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_namespace'::regclass
		)
		SELECT format('REVOKE ALL ON %s %s FROM %s', m.kind, m.name, g.who)
		FROM member m CROSS JOIN LATERAL (
			SELECT 'PUBLIC' AS who
			UNION
			SELECT a.grantee::regrole::text FROM aclexplode(m.acl) a WHERE a.grantee NOT IN (0, m.owner)
		) g
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;

DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		-- trigger functions are called by their triggers only
		SELECT format('GRANT EXECUTE ON ROUTINE %s TO PUBLIC', p.oid::regprocedure)
		FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_proc p ON p.oid = d.objid
		WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			AND p.prorettype <> 'trigger'::regtype
		UNION ALL
		SELECT format('GRANT %s ON %s TO PUBLIC', CASE c.relname WHEN 'tq_inbox' THEN 'SELECT, INSERT' ELSE 'SELECT' END, c.oid::regclass)
		FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_class c ON c.oid = d.objid
		WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
			AND c.relkind = 'v'
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
GRANT USAGE ON TYPE @extschema@.tq_job TO PUBLIC;
