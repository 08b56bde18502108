-- From 0.1.0 to 0.2.0. docs/releasing.md has the rules for such a script. test/t/extension_update.pl compares its
-- objects with those of sql/install.
\echo Use "ALTER EXTENSION tq UPDATE" to load this file. \quit

-- A server that was not restarted since tq's files were replaced runs the library that it loaded at its start.
DO $$
BEGIN
	CREATE FUNCTION tq.require_library() RETURNS void
		LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_require_library';
EXCEPTION
	WHEN undefined_function THEN
		RAISE EXCEPTION 'the library that the server has loaded is of an older version of tq than this'
			USING ERRCODE = 'TQ007', DETAIL = SQLERRM, HINT = 'Restart the server, and try again.';
END
$$;
SELECT tq.require_library();

-- The database's default must not decide what the tables are made of.
SET LOCAL default_table_access_method = heap;

ALTER TYPE tq_job ADD ATTRIBUTE group_key text, ADD ATTRIBUTE tags text[], ADD ATTRIBUTE unique_key text,
	ADD ATTRIBUTE deadline timestamptz;

ALTER TYPE tq.job_line ADD ATTRIBUTE group_key text, ADD ATTRIBUTE unique_key text, ADD ATTRIBUTE tags text[];
CREATE OR REPLACE VIEW tq_jobs AS
	SELECT (l.line).id, (l.line).queue, (l.line).kind, (l.line).state, (l.line).priority, (l.line).attempt,
		(l.line).max_attempts, (l.line).run_at, (l.line).enqueued_at, (l.line).expires_at, (l.line).group_key,
		(l.line).unique_key, (l.line).tags
	FROM (SELECT tq.jobs() AS line) l;

-- A role, in tables that are dumped: its oid, printed as its name; or a name that no role had when it was read.
CREATE TYPE tq.role;
CREATE FUNCTION tq.role_in(cstring) RETURNS tq.role
	LANGUAGE C STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_role_in';
CREATE FUNCTION tq.role_out(tq.role) RETURNS cstring
	LANGUAGE C STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_role_out';
CREATE TYPE tq.role (INPUT = tq.role_in, OUTPUT = tq.role_out);
CREATE FUNCTION tq.role_oid(tq.role) RETURNS oid
	LANGUAGE C IMMUTABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_role_oid';
CREATE CAST (tq.role AS oid) WITH FUNCTION tq.role_oid(tq.role) AS IMPLICIT;
CREATE CAST (regrole AS tq.role) WITH INOUT AS ASSIGNMENT;
CREATE CAST (tq.role AS bytea) WITHOUT FUNCTION AS IMPLICIT;	-- for its operator class

-- The views keep their columns while those of the tables change. Dropped roles have no names.
CREATE OR REPLACE VIEW tq_grants WITH (security_barrier) AS SELECT NULL::text AS queue, NULL::regrole AS role,
	NULL::text COLLATE "C" AS privilege;
CREATE OR REPLACE VIEW tq_handlers WITH (security_barrier) AS
	SELECT NULL::text AS queue, NULL::text COLLATE "C" AS kind, NULL::text AS function, NULL::regrole AS role, NULL::jsonb AS options,
		NULL::text AS search_path, NULL::timestamptz AS defined_at, NULL::text AS problem, NULL::timestamptz AS problem_at,
		NULL::timestamptz AS retry_at;
DELETE FROM tq.acl a WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = a.role::oid);
ALTER TABLE tq.acl ALTER COLUMN role TYPE tq.role USING role::text::tq.role;
ALTER TABLE tq.schedule ALTER COLUMN owner TYPE tq.role USING owner::text::tq.role;
ALTER TABLE tq.handler ALTER COLUMN role TYPE tq.role USING role::text::tq.role;
SELECT pg_catalog.pg_extension_config_dump('tq.acl', 'WHERE acl.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = acl.role::oid)');
SELECT pg_catalog.pg_extension_config_dump('tq.schedule', 'WHERE schedule.owner::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = schedule.owner::oid)');
SELECT pg_catalog.pg_extension_config_dump('tq.handler', 'WHERE handler.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = handler.role::oid)');

-- With an operator that only the server has.
CREATE OR REPLACE VIEW tq_grants WITH (security_barrier) AS
	SELECT CASE a.queue_id WHEN 0 THEN '*' ELSE q.name END AS queue, a.role::oid::regrole AS role, a.privilege
	FROM tq.acl a LEFT JOIN tq.queue q ON q.id = a.queue_id
	WHERE (a.queue_id = 0 OR q.id IS NOT NULL) AND tq.may_list(a.queue_id, a.role)
		AND EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = a.role::oid);

-- How jobs of a finished segment ended.
ALTER TABLE tq.segment ADD COLUMN ended text;

-- The function of each handler. A function that was registered by its name only is recorded as the one of that name
-- now.
ALTER TABLE tq.handler ADD COLUMN owner tq.role;
ALTER TABLE tq.handler ADD COLUMN function_oid oid;
UPDATE tq.handler h SET owner = p.proowner::pg_catalog.regrole, function_oid = p.oid
	FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
	WHERE pg_catalog.format('%I.%I', n.nspname, p.proname) OPERATOR(pg_catalog.=) h.function AND p.pronargs OPERATOR(pg_catalog.=) 1
		AND p.proargtypes[0] OPERATOR(pg_catalog.=) '@extschema@.tq_job'::pg_catalog.regtype::pg_catalog.oid;

CREATE OR REPLACE VIEW tq_handlers WITH (security_barrier) AS
	SELECT q.name AS queue, nullif(h.kind, '') AS kind, pg_catalog.left(h.function, 8192) AS function, h.role::oid::regrole AS role, h.options,
		pg_catalog.left(h.search_path, 8192) AS search_path, h.defined_at, pg_catalog.left(h.problem, 8192) AS problem, h.problem_at, h.retry_at
	FROM tq.handler h JOIN tq.queue q ON q.id = h.queue_id
	WHERE tq.may_list(h.queue_id, h.role);

-- The roles that have asked for follow-ups. "by" in their settings is tq's own.
CREATE TABLE tq.requester (
	id   text COLLATE "C" PRIMARY KEY,
	role tq.role NOT NULL
);
CREATE INDEX requester_role ON tq.requester ((role::oid));
SELECT pg_catalog.pg_extension_config_dump('tq.requester', 'WHERE requester.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = requester.role::oid)');
-- For the limits of a queue and of a role.
CREATE INDEX schedule_queue ON tq.schedule (queue);
CREATE INDEX schedule_owner ON tq.schedule ((owner::oid));

-- Groups that are paused (tq_pause with group_key) or have limits of their own. A queue's rows are deleted with it.
CREATE TABLE tq.group_setting (
	queue_id     int NOT NULL,             -- tq.queue.id
	group_key    text COLLATE "C" NOT NULL,
	paused_until timestamptz,              -- null: not paused; infinity: until resumed
	max_running  int,                      -- null: group_max_running of the queue
	rate         text,                     -- null: group_rate of the queue
	PRIMARY KEY (queue_id, group_key)
);
REVOKE ALL ON TABLE tq.group_setting FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.group_setting', '');

-- The roles that created queues with the privilege create, for their limits. Not only their privileges: these can be
-- revoked. A queue's row is deleted with it. Of older queues, it is the only role with all that a creator was given.
CREATE TABLE tq.creator (
	queue_id int PRIMARY KEY,              -- tq.queue.id
	role     tq.role NOT NULL
);
REVOKE ALL ON TABLE tq.creator FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.creator', 'WHERE creator.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = creator.role::oid)');
INSERT INTO tq.creator (queue_id, role)
	SELECT queue_id, (pg_catalog.array_agg(role))[1] FROM (
		SELECT queue_id, role FROM tq.acl WHERE queue_id OPERATOR(pg_catalog.<>) 0
			AND privilege OPERATOR(pg_catalog.=) ANY ('{produce,consume,manage,monitor}'::pg_catalog.text[])
		GROUP BY queue_id, role HAVING pg_catalog.count(*) OPERATOR(pg_catalog.=) 4) a
	GROUP BY queue_id HAVING pg_catalog.count(*) OPERATOR(pg_catalog.=) 1;

CREATE FUNCTION tq_limit_group(queue text, group_key text, max_running int DEFAULT NULL, rate text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq.may_list_groups(queue_id int) RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_may_list_groups';
CREATE FUNCTION tq.rights_on(queue_id int) RETURNS text[]
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_rights_on';
CREATE VIEW tq_rights WITH (security_barrier) AS
	SELECT '*'::text AS queue, tq.rights_on(0) AS privileges
	UNION ALL
	SELECT m.queue, m.privileges
	FROM (SELECT q.name AS queue, tq.rights_on(q.id) AS privileges FROM tq.queue q) m
	WHERE NOT m.privileges OPERATOR(pg_catalog.<@) tq.rights_on(0);

CREATE OR REPLACE VIEW tq_queues WITH (security_barrier) AS
	SELECT s.queue, s.state, s.ready, s.delayed, s.blocked, s.running, s.live, s.in_memory, s.on_disk, s.waiting, s.paused_until, s.kinds,
		CASE WHEN pg_catalog.jsonb_typeof(q.settings OPERATOR(pg_catalog.->) 'follow_up') OPERATOR(pg_catalog.=) 'object'
			THEN q.settings OPERATOR(pg_catalog.#-) '{follow_up,by}'
			ELSE q.settings	-- a row by hand may hold anything
		END AS settings,
		q.created_at,
		(SELECT pg_catalog.jsonb_object_agg(g.group_key, pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
				'paused_until', CASE WHEN g.paused_until OPERATOR(pg_catalog.>) tq_now() THEN g.paused_until END,
				'max_running', g.max_running, 'rate', g.rate)))
			FROM tq.group_setting g
			WHERE g.queue_id OPERATOR(pg_catalog.=) q.id AND tq.may_list_groups(g.queue_id)
				AND (g.paused_until OPERATOR(pg_catalog.>) tq_now() OR g.max_running IS NOT NULL OR g.rate IS NOT NULL)
		) AS groups
	FROM tq_stats() s LEFT JOIN tq.queue q ON q.name = s.queue;

-- Row by row, so that a LIMIT ends the reading.
CREATE OR REPLACE VIEW tq_dead AS
	SELECT (l.line).id, (l.line).queue, (l.line).kind, (l.line).state, (l.line).priority, (l.line).attempts,
		(l.line).max_attempts, (l.line).reason, (l.line).detail, (l.line).last_error, (l.line).worker, (l.line).enqueued_at,
		(l.line).claimed_at, (l.line).died_at, (l.line).kept_until
	FROM (SELECT tq.dead() AS line) l;

CREATE TABLE tq.edge (
	parent_id bigint NOT NULL,
	child_id  bigint NOT NULL,
	failed    boolean NOT NULL DEFAULT false,
	shown     boolean NOT NULL DEFAULT false,
	own       boolean NOT NULL DEFAULT false,
	PRIMARY KEY (parent_id, child_id)
);
SELECT pg_catalog.pg_extension_config_dump('tq.edge', '');

CREATE FUNCTION tq_graph(id bigint, max_jobs int DEFAULT 1000)
RETURNS TABLE (
	level int, id bigint, parents bigint[], queue text, kind text, state text, on_parent_failure text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_dead_groups(queue text, max_jobs int DEFAULT 10000)
RETURNS TABLE (
	kind text, error text, jobs bigint, first_at timestamptz, last_at timestamptz, example bigint, complete boolean)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME';

-- The row of this database names the extension, and so the database stays active. 0.1.0 wrote the row after the first
-- use, and only if a scheduler ran.
INSERT INTO tq.meta (system_identifier, database)
	SELECT c.system_identifier, d.oid FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d
	WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND NOT EXISTS (SELECT FROM tq.meta)
		AND (EXISTS (SELECT FROM tq.queue) OR EXISTS (SELECT FROM tq.job));
ALTER TABLE tq.meta ADD COLUMN extension oid DEFAULT 0;
UPDATE tq.meta SET extension = e.oid FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'tq';
ALTER TABLE tq.meta ALTER COLUMN extension SET NOT NULL, DROP CONSTRAINT meta_pkey,
	ADD PRIMARY KEY (system_identifier, database, extension);

CREATE FUNCTION tq_deactivate()
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_series(queue text = null, since interval = '1 day', step interval = '1 min')
RETURNS TABLE (
	at timestamptz, span interval, enqueued bigint, claimed bigint, succeeded bigint, failed bigint, lost bigint, dead bigint,
	wait_p50 interval, wait_p99 interval, run_p50 interval, run_p99 interval)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1440 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_free_key(queue text, unique_key text)
RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_find(queue text, unique_key text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_cancel_jobs(ids bigint[], reason text DEFAULT NULL)
RETURNS TABLE (id bigint, status text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_enqueue_info(
	queue text, payload jsonb DEFAULT '{}', kind text DEFAULT NULL, priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
	max_attempts int DEFAULT NULL, retry jsonb DEFAULT NULL, timeout interval DEFAULT NULL,
	group_key text DEFAULT NULL, unique_key text DEFAULT NULL, unique_mode text DEFAULT 'skip',
	headers jsonb DEFAULT NULL, depends_on bigint[] DEFAULT NULL, options jsonb DEFAULT NULL,
	OUT id bigint, OUT outcome text)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_enqueue_many_info(
	queue text, payloads jsonb[], kind text DEFAULT NULL, priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
	max_attempts int DEFAULT NULL, retry jsonb DEFAULT NULL, timeout interval DEFAULT NULL,
	group_key text DEFAULT NULL, unique_mode text DEFAULT 'skip',
	headers jsonb DEFAULT NULL, depends_on bigint[] DEFAULT NULL, options jsonb DEFAULT NULL,
	kinds text[] DEFAULT NULL, priorities int[] DEFAULT NULL, run_ats timestamptz[] DEFAULT NULL,
	unique_keys text[] DEFAULT NULL, group_keys text[] DEFAULT NULL)
RETURNS TABLE (id bigint, outcome text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

-- The last row of a page may have only next_after: see docs/reference.md.
CREATE FUNCTION tq_list(
	queue text DEFAULT NULL, state text DEFAULT NULL, kind text DEFAULT NULL, worker text DEFAULT NULL, tag text DEFAULT NULL,
	group_key text DEFAULT NULL, unique_key text DEFAULT NULL, created_from timestamptz DEFAULT NULL,
	created_to timestamptz DEFAULT NULL, search jsonb DEFAULT NULL,
	after bigint DEFAULT NULL, max int DEFAULT 50, newest boolean DEFAULT true, error text DEFAULT NULL)
RETURNS TABLE (
	id bigint, queue text, kind text, state text, priority int, attempt int, max_attempts int, run_at timestamptz,
	enqueued_at timestamptz, expires_at timestamptz, worker text, group_key text, unique_key text, tags text[], payload text,
	next_after bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 50 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_cancel_many(
	queue text, state text DEFAULT NULL, kind text DEFAULT NULL, worker text DEFAULT NULL, tag text DEFAULT NULL,
	group_key text DEFAULT NULL, unique_key text DEFAULT NULL, created_from timestamptz DEFAULT NULL,
	created_to timestamptz DEFAULT NULL, search jsonb DEFAULT NULL,
	after bigint DEFAULT NULL, max int DEFAULT 1000, dry_run boolean DEFAULT false, reason text DEFAULT NULL,
	OUT changed bigint, OUT next_after bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_reschedule_many(
	queue text, state text DEFAULT NULL, kind text DEFAULT NULL, worker text DEFAULT NULL, tag text DEFAULT NULL,
	group_key text DEFAULT NULL, unique_key text DEFAULT NULL, created_from timestamptz DEFAULT NULL,
	created_to timestamptz DEFAULT NULL, search jsonb DEFAULT NULL,
	after bigint DEFAULT NULL, max int DEFAULT 1000, dry_run boolean DEFAULT false, run_at timestamptz DEFAULT NULL, priority int DEFAULT NULL,
	OUT changed bigint, OUT next_after bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_retry_where(
	queue text, state text DEFAULT 'dead', kind text DEFAULT NULL, worker text DEFAULT NULL, tag text DEFAULT NULL,
	group_key text DEFAULT NULL, unique_key text DEFAULT NULL, created_from timestamptz DEFAULT NULL,
	created_to timestamptz DEFAULT NULL, search jsonb DEFAULT NULL,
	after bigint DEFAULT NULL, max int DEFAULT 1000, dry_run boolean DEFAULT false, error text DEFAULT NULL,
	with_children boolean DEFAULT false,
	OUT changed bigint, OUT next_after bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_purge_many(
	queue text, state text, kind text DEFAULT NULL, worker text DEFAULT NULL, tag text DEFAULT NULL,
	group_key text DEFAULT NULL, unique_key text DEFAULT NULL, created_from timestamptz DEFAULT NULL,
	created_to timestamptz DEFAULT NULL, search jsonb DEFAULT NULL,
	after bigint DEFAULT NULL, max int DEFAULT 1000, dry_run boolean DEFAULT false, error text DEFAULT NULL,
	OUT changed bigint, OUT next_after bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- Waiting for many queues.
CREATE FUNCTION tq_ready(queues text[] DEFAULT NULL, kinds text[] DEFAULT NULL, all_roles boolean DEFAULT false)
RETURNS TABLE (queue text, kind text, jobs bigint, role text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

CREATE PROCEDURE tq_wait_jobs(ids bigint[], timeout interval DEFAULT NULL, first boolean DEFAULT false)
LANGUAGE C AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_ended(ids bigint[])
RETURNS bigint[] LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_outcomes(ids bigint[])
RETURNS TABLE (id bigint, state text, result jsonb, error text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

-- Changes of jobs in queues with the setting change_retention, for tq_changes. They are not dumped: ids of transactions
-- mean nothing elsewhere. state: r ready, d delayed, b blocked, c running, e ended.
CREATE TABLE tq.change (
	xid      xid8 NOT NULL,                -- the transaction that made the change
	job_id   bigint NOT NULL,              -- 0: none
	at       timestamptz NOT NULL,
	queue_id int NOT NULL,                 -- tq.queue.id
	step     int NOT NULL,                 -- that of the event; 0: enqueued
	type     "char" NOT NULL,              -- as tq.event.type; n: enqueued, q: the queue began to record changes
	state    "char" NOT NULL               -- after the change
) USING heap;
CREATE INDEX change_xid ON tq.change (queue_id, xid, job_id, step);
ALTER TABLE tq.change REPLICA IDENTITY FULL;	-- FOR ALL TABLES publishes it, and rows are deleted

-- What was deleted from tq.change: of each queue, the changes up to transaction `last` that the snapshot sees. The row of
-- queue 0 names the log.
CREATE TABLE tq.change_log (
	queue_id int PRIMARY KEY,
	name     text COLLATE "C",
	deleted  pg_snapshot,
	last     xid8
);
INSERT INTO tq.change_log (queue_id, name) VALUES (0, pg_catalog.left(pg_catalog.gen_random_uuid()::text, 8));

-- Which transactions had ended at a time: it tells the age of a change's commit.
CREATE TABLE tq.change_mark (
	at       timestamptz PRIMARY KEY,
	snapshot pg_snapshot NOT NULL
);

-- The last row of a page may have only next_after: see docs/reference.md.
CREATE FUNCTION tq_changes(
	after text DEFAULT NULL, queue text DEFAULT NULL, max int DEFAULT 1000, wait interval DEFAULT NULL)
RETURNS TABLE (
	id bigint, queue text, event text, state text, at timestamptz, step int, next_after text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

-- Claims.
CREATE FUNCTION tq_claim_for(
	queues text[], workers text[], max_jobs int DEFAULT 1, lease_for interval DEFAULT NULL,
	wait interval DEFAULT NULL, kinds text[] DEFAULT NULL, bind_session boolean DEFAULT false,
	bind_worker boolean DEFAULT false)
RETURNS TABLE (worker text, job tq_job) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_claim_next(
	queue text, ids bigint[], leases bigint[], results jsonb[] DEFAULT NULL, max_jobs int DEFAULT 1,
	worker text DEFAULT NULL, lease_for interval DEFAULT NULL, kinds text[] DEFAULT NULL,
	bind_session boolean DEFAULT false,
	bind_worker boolean DEFAULT false)
RETURNS SETOF tq_job LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME';

-- For tests of applications (docs/guides/testing.md).

CREATE FUNCTION tq_set_now(at timestamptz DEFAULT NULL)
RETURNS timestamptz LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_reset(queue text DEFAULT NULL)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_enqueued(queue text, kind text DEFAULT NULL, payload jsonb DEFAULT NULL)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- Who did what (docs/guides/rights.md): a row for each call that administers queues or jobs.

CREATE TABLE tq.audit (
	id           bigint PRIMARY KEY,
	at           timestamptz NOT NULL,
	role         text NOT NULL,            -- the current user: the owner of a SECURITY DEFINER function
	session_role text NOT NULL,            -- who had logged in
	action       text NOT NULL,
	queue_id     int NOT NULL,             -- tq.queue.id; 0: all queues, or none
	queue        text,                     -- its name; outlives the queue
	job_id       bigint,
	detail       jsonb
);
CREATE INDEX audit_at ON tq.audit (at);
CREATE SEQUENCE tq.audit_id_seq AS bigint;
REVOKE ALL ON TABLE tq.audit FROM PUBLIC;
REVOKE ALL ON SEQUENCE tq.audit_id_seq FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.audit', '');
SELECT pg_catalog.pg_extension_config_dump('tq.audit_id_seq', '');

CREATE VIEW tq_audit WITH (security_barrier) AS
	SELECT a.id, a.at, a.role, a.session_role, a.action, a.queue, a.job_id, a.detail
	FROM tq.audit a WHERE tq.may_list(a.queue_id, 0);

-- Targets of deliveries by HTTP, for a gateway (docs/guides/subscriptions.md). tq itself calls no URL.

CREATE TABLE tq.subscription (
	queue_id   int NOT NULL,               -- tq.queue.id
	url        text COLLATE "C" NOT NULL,
	options    jsonb NOT NULL DEFAULT '{}', -- the gateway's; may hold secrets
	role       tq.role NOT NULL,           -- who subscribed
	defined_at timestamptz NOT NULL,
	PRIMARY KEY (queue_id, url)
);
REVOKE ALL ON TABLE tq.subscription FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.subscription', 'WHERE subscription.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = subscription.role::oid)');

CREATE FUNCTION tq_subscribe(queue text, url text, options jsonb DEFAULT '{}')
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_unsubscribe(queue text, url text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq.subscriptions()
RETURNS TABLE (queue text, url text, options jsonb, role regrole, defined_at timestamptz, active boolean)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME', 'tq_list_subscriptions';
CREATE VIEW tq_subscriptions AS SELECT * FROM tq.subscriptions();

-- More privileges.
ALTER TABLE tq.acl DROP CONSTRAINT acl_privilege_known,
	ADD CONSTRAINT acl_privilege_known CHECK (privilege IN ('produce', 'consume', 'operate', 'manage', 'metrics', 'inspect', 'monitor')
			OR (privilege = 'create' AND queue_id = 0));

-- What tq_help prints. The end of this script writes the rows.
CREATE TABLE tq.help (
	position int PRIMARY KEY,
	topic    text NOT NULL,
	name     text NOT NULL,
	summary  text NOT NULL,
	details  text NOT NULL
);

CREATE FUNCTION tq_help(name text DEFAULT NULL)
RETURNS SETOF text LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 80 AS 'MODULE_PATHNAME';

-- Leases that belong to a worker.
CREATE FUNCTION tq_heartbeat_worker(worker text, OUT jobs bigint, OUT action text)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_release_worker(worker text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- Rights of new objects, as in sql/install/90_rights.sql: rights from default privileges are revoked first. Existing
-- objects keep the rights that administrators gave them. From here to the end of the script, no name is looked up in
-- the extension's schema.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format('REVOKE ALL ON ROUTINE %s FROM %s', p.oid::regprocedure, g.grantee)
		FROM pg_proc p CROSS JOIN LATERAL (
			SELECT 'PUBLIC' AS grantee
			UNION
			SELECT a.grantee::regrole::text FROM aclexplode(p.proacl) a WHERE a.grantee NOT IN (0, p.proowner)
		) g
		WHERE p.oid IN ('tq.require_library()'::regprocedure, '@extschema@.tq_deactivate()'::regprocedure,
			'@extschema@.tq_series(text, interval, interval)'::regprocedure,
			'@extschema@.tq_graph(bigint, int)'::regprocedure, '@extschema@.tq_help(text)'::regprocedure,
			'@extschema@.tq_dead_groups(text, int)'::regprocedure,
			'@extschema@.tq_ready(text[],text[],boolean)'::regprocedure,
			'@extschema@.tq_wait_jobs(bigint[],interval,boolean)'::regprocedure, '@extschema@.tq_ended(bigint[])'::regprocedure,
			'@extschema@.tq_outcomes(bigint[])'::regprocedure,
			'@extschema@.tq_claim_for(text[],text[],integer,interval,interval,text[],boolean,boolean)'::regprocedure,
			'@extschema@.tq_claim_next(text,bigint[],bigint[],jsonb[],integer,text,interval,text[],boolean,boolean)'::regprocedure,
			'@extschema@.tq_heartbeat_worker(text)'::regprocedure, '@extschema@.tq_release_worker(text)'::regprocedure)
			OR p.oid IN ('tq.role_in'::regproc, 'tq.role_out'::regproc, 'tq.role_oid'::regproc, 'tq.may_list_groups'::regproc, 'tq.rights_on'::regproc, '@extschema@.tq_list'::regproc, '@extschema@.tq_cancel_many'::regproc, '@extschema@.tq_reschedule_many'::regproc,
				'@extschema@.tq_retry_where'::regproc, '@extschema@.tq_purge_many'::regproc,
				'@extschema@.tq_set_now'::regproc, '@extschema@.tq_reset'::regproc, '@extschema@.tq_enqueued'::regproc,
				'@extschema@.tq_limit_group'::regproc, '@extschema@.tq_changes'::regproc,
				'@extschema@.tq_subscribe'::regproc, '@extschema@.tq_unsubscribe'::regproc, 'tq.subscriptions'::regproc,
				'@extschema@.tq_enqueue_info'::regproc, '@extschema@.tq_enqueue_many_info'::regproc,
				'@extschema@.tq_free_key'::regproc, '@extschema@.tq_find'::regproc, '@extschema@.tq_cancel_jobs'::regproc)
		UNION ALL
		SELECT format('REVOKE ALL ON TABLE %s FROM %s', c.oid::regclass, g.grantee)
		FROM pg_class c CROSS JOIN LATERAL (
			SELECT 'PUBLIC' AS grantee
			UNION
			SELECT a.grantee::regrole::text FROM aclexplode(c.relacl) a WHERE a.grantee NOT IN (0, c.relowner)
		) g
		WHERE c.oid IN ('tq.requester'::regclass, 'tq.edge'::regclass, 'tq.change'::regclass, 'tq.change_log'::regclass,
			'tq.change_mark'::regclass, 'tq.help'::regclass, 'tq.audit'::regclass, 'tq.subscription'::regclass, 'tq.creator'::regclass,
			'tq.group_setting'::regclass, '@extschema@.tq_audit'::regclass, '@extschema@.tq_subscriptions'::regclass, '@extschema@.tq_rights'::regclass)
		UNION ALL
		SELECT format('REVOKE ALL ON SEQUENCE %s FROM %s', c.oid::regclass, g.grantee)
		FROM pg_class c CROSS JOIN LATERAL (
			SELECT 'PUBLIC' AS grantee
			UNION
			SELECT a.grantee::regrole::text FROM aclexplode(c.relacl) a WHERE a.grantee NOT IN (0, c.relowner)
		) g
		WHERE c.oid = 'tq.audit_id_seq'::regclass
		UNION ALL
		SELECT format('REVOKE ALL ON TYPE %s FROM %s', t.oid::regtype, g.grantee)
		FROM pg_type t CROSS JOIN LATERAL (
			SELECT 'PUBLIC' AS grantee
			UNION
			SELECT a.grantee::regrole::text FROM aclexplode(t.typacl) a WHERE a.grantee NOT IN (0, t.typowner)
		) g
		WHERE t.oid = 'tq.role'::regtype
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
GRANT EXECUTE ON ROUTINE tq.require_library(), @extschema@.tq_deactivate(),
	@extschema@.tq_series(text, interval, interval),
	@extschema@.tq_graph(bigint, int), @extschema@.tq_help(text),
	@extschema@.tq_dead_groups(text, int),
	@extschema@.tq_ready(text[], text[], boolean), @extschema@.tq_wait_jobs(bigint[], interval, boolean),
	@extschema@.tq_ended(bigint[]), @extschema@.tq_outcomes(bigint[]),
	@extschema@.tq_claim_for(text[], text[], integer, interval, interval, text[], boolean, boolean),
	@extschema@.tq_claim_next(text, bigint[], bigint[], jsonb[], integer, text, interval, text[], boolean, boolean),
	@extschema@.tq_heartbeat_worker(text), @extschema@.tq_release_worker(text) TO PUBLIC;
GRANT EXECUTE ON ROUTINE @extschema@.tq_changes, @extschema@.tq_list, @extschema@.tq_cancel_many, @extschema@.tq_reschedule_many,
	@extschema@.tq_retry_where, @extschema@.tq_purge_many, @extschema@.tq_set_now, @extschema@.tq_reset,
	@extschema@.tq_enqueued, @extschema@.tq_subscribe, @extschema@.tq_unsubscribe, @extschema@.tq_limit_group, tq.subscriptions,
	@extschema@.tq_enqueue_info, @extschema@.tq_enqueue_many_info, @extschema@.tq_free_key, @extschema@.tq_find,
	@extschema@.tq_cancel_jobs, tq.may_list_groups, tq.rights_on,
	tq.role_in, tq.role_out, tq.role_oid TO PUBLIC;
GRANT SELECT ON @extschema@.tq_audit, @extschema@.tq_subscriptions, @extschema@.tq_rights TO PUBLIC;

-- Functions with more arguments replace those without. Each keeps the rights that administrators gave it.
DO $$
DECLARE
	f record;
	acl aclitem[];
	first aclitem[];
	command text;
BEGIN
	FOR f IN
		SELECT format('%I.%I(%s)', '@extschema@', name, former) AS former, format('%I.%I', '@extschema@', name) AS name, kind, arguments, more
		FROM (VALUES
			('FUNCTION', 'tq_activate', '', 'discard boolean DEFAULT false, dry_run boolean DEFAULT false',
				'RETURNS TABLE (relation text, id bigint, problem text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1'),
			('FUNCTION', 'tq_retry', 'bigint', 'id bigint, with_children boolean DEFAULT false',
				'RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE'),
			('FUNCTION', 'tq_retry_many', 'text, text, text, timestamptz, int, text',
				'queue text, state text DEFAULT ''dead'', kind text DEFAULT NULL, since timestamptz DEFAULT NULL,
				max_jobs int DEFAULT NULL, to_queue text DEFAULT NULL, with_children boolean DEFAULT false',
				'RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE'),
			('FUNCTION', 'tq_heartbeat', 'bigint, bigint, interval, jsonb, jsonb',
				'id bigint, lease bigint, extend interval DEFAULT NULL, progress jsonb DEFAULT NULL, checkpoint jsonb DEFAULT NULL,
				worker text DEFAULT NULL, OUT lease_expires_at timestamptz, OUT action text',
				'LANGUAGE C VOLATILE PARALLEL UNSAFE'),
			('FUNCTION', 'tq_grant', 'text, regrole, text', 'queue text, role regrole, privilege text, privilege2 text DEFAULT NULL,
				privilege3 text DEFAULT NULL, privilege4 text DEFAULT NULL, privilege5 text DEFAULT NULL, privilege6 text DEFAULT NULL,
				privilege7 text DEFAULT NULL, privilege8 text DEFAULT NULL', 'RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE'),
			('FUNCTION', 'tq_revoke', 'text, regrole, text', 'queue text, role regrole, privilege text, privilege2 text DEFAULT NULL,
				privilege3 text DEFAULT NULL, privilege4 text DEFAULT NULL, privilege5 text DEFAULT NULL, privilege6 text DEFAULT NULL,
				privilege7 text DEFAULT NULL, privilege8 text DEFAULT NULL', 'RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE'),
			('FUNCTION', 'tq_pause', 'text, text, timestamptz',
				'queue text, kind text DEFAULT NULL, until timestamptz DEFAULT NULL, group_key text DEFAULT NULL',
				'RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE'),
			('FUNCTION', 'tq_resume', 'text, text', 'queue text, kind text DEFAULT NULL, group_key text DEFAULT NULL',
				'RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE'),
			('FUNCTION', 'tq_claim', 'text, int, text, interval, interval, text[], boolean',
				'queue text, max_jobs int DEFAULT 1, worker text DEFAULT NULL, lease_for interval DEFAULT NULL,
				wait interval DEFAULT NULL, kinds text[] DEFAULT NULL, bind_session boolean DEFAULT false,
				bind_worker boolean DEFAULT false',
				'RETURNS SETOF @extschema@.tq_job LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1'),
			('FUNCTION', 'tq_claim_any', 'text[], int, text, interval, interval, text[], boolean',
				'queues text[], max_jobs int DEFAULT 1, worker text DEFAULT NULL, lease_for interval DEFAULT NULL,
				wait interval DEFAULT NULL, kinds text[] DEFAULT NULL, bind_session boolean DEFAULT false,
				bind_worker boolean DEFAULT false',
				'RETURNS SETOF @extschema@.tq_job LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1'),
			('PROCEDURE', 'tq_wait', 'text[], interval',
				'queues text[] DEFAULT NULL, timeout interval DEFAULT NULL, kinds text[] DEFAULT NULL,
				all_roles boolean DEFAULT false', 'LANGUAGE C')
		) v (kind, name, former, arguments, more)
	LOOP
		SELECT coalesce(p.proacl, acldefault('f', p.proowner)), i.initprivs INTO STRICT acl, first
			FROM pg_proc p LEFT JOIN pg_init_privs i ON i.objoid = p.oid AND i.classoid = 'pg_proc'::regclass
			WHERE p.oid = f.former::regprocedure;
		EXECUTE format('DROP %s %s', f.kind, f.former);
		EXECUTE format('CREATE %s %s(%s) %s AS %L', f.kind, f.name, f.arguments, f.more, 'MODULE_PATHNAME');
		FOR command IN
			SELECT format('REVOKE ALL ON ROUTINE %s FROM %s', f.name, g.who)
			FROM pg_proc p CROSS JOIN LATERAL (
				SELECT 'PUBLIC' AS who
				UNION
				SELECT a.grantee::regrole::text FROM aclexplode(p.proacl) a WHERE a.grantee NOT IN (0, p.proowner)
			) g
			WHERE p.oid = f.name::regproc
			UNION ALL
			SELECT format('GRANT EXECUTE ON ROUTINE %s TO %s%s', f.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
				CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END)
			FROM aclexplode(acl) a
			ORDER BY 1 DESC	-- REVOKE comes first
		LOOP
			EXECUTE command;
		END LOOP;
		-- pg_dump leaves out the first rights of an object, which are those that a script gives it
		UPDATE pg_init_privs SET initprivs = first WHERE objoid = f.name::regproc AND classoid = 'pg_proc'::regclass;
	END LOOP;
END
$$;

-- While the database is active, only tq writes its tables. Those of jobs and events have these triggers from the start.
-- tq.help has no state, so it has none.
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['acl', 'audit', 'batch', 'change', 'change_log', 'change_mark', 'creator', 'dependency', 'edge',
		'group_setting', 'handler', 'meta', 'queue', 'requester', 'schedule', 'schedule_fire', 'segment', 'subscription', 'unique_key']
	LOOP
		EXECUTE format('CREATE TRIGGER tq_reload AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.%I
			FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger()', name);
		EXECUTE format('CREATE TRIGGER tq_reload_row AFTER INSERT OR UPDATE OR DELETE ON tq.%I
			FOR EACH ROW EXECUTE FUNCTION tq.reload_trigger()', name);
		EXECUTE format('ALTER TABLE tq.%I ENABLE ALWAYS TRIGGER tq_reload, ENABLE REPLICA TRIGGER tq_reload_row', name);
	END LOOP;
END
$$;

-- A restored database is never active, so dumps need no rows of tq.meta. If they had the row of this database, restoring
-- them into it would make it active halfway.
SELECT pg_extension_config_dump('tq.meta', 'WHERE false');
