-- Views. Their functions show what the role that queries them may see. Tables are read with the owner's rights, so a
-- view that reads one is a security barrier: it evaluates no condition of the query on rows that it leaves out.

CREATE FUNCTION tq.may_list(queue_id int, role oid) RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_may_list';
CREATE FUNCTION tq.may_list_groups(queue_id int) RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_may_list_groups';
CREATE FUNCTION tq.rights_on(queue_id int) RETURNS text[]
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_rights_on';

CREATE VIEW tq_queues WITH (security_barrier) AS
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

-- In the select list, unlike in FROM, the executor asks the function for one row at a time, so LIMIT ends its walk over
-- the segments.
CREATE TYPE tq.job_line AS (
	id bigint, queue text, kind text, state text, priority int, attempt int, max_attempts int, run_at timestamptz,
	enqueued_at timestamptz, expires_at timestamptz, group_key text, unique_key text, tags text[]
);
CREATE FUNCTION tq.jobs() RETURNS SETOF tq.job_line
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1000000 AS 'MODULE_PATHNAME', 'tq_list_jobs';
CREATE VIEW tq_jobs AS
	SELECT (l.line).id, (l.line).queue, (l.line).kind, (l.line).state, (l.line).priority, (l.line).attempt,
		(l.line).max_attempts, (l.line).run_at, (l.line).enqueued_at, (l.line).expires_at, (l.line).group_key,
		(l.line).unique_key, (l.line).tags
	FROM (SELECT tq.jobs() AS line) l;

CREATE FUNCTION tq.dead()
RETURNS TABLE (
	id bigint, queue text, kind text, state text, priority int, attempts int, max_attempts int, reason text, detail jsonb,
	last_error text, worker text, enqueued_at timestamptz, claimed_at timestamptz, died_at timestamptz,
	kept_until timestamptz)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1000 AS 'MODULE_PATHNAME', 'tq_list_dead';
CREATE VIEW tq_dead AS
	SELECT (l.line).id, (l.line).queue, (l.line).kind, (l.line).state, (l.line).priority, (l.line).attempts,
		(l.line).max_attempts, (l.line).reason, (l.line).detail, (l.line).last_error, (l.line).worker, (l.line).enqueued_at,
		(l.line).claimed_at, (l.line).died_at, (l.line).kept_until
	FROM (SELECT tq.dead() AS line) l;

CREATE VIEW tq_grants WITH (security_barrier) AS
	SELECT CASE a.queue_id WHEN 0 THEN '*' ELSE q.name END AS queue, a.role::oid::regrole AS role, a.privilege
	FROM tq.acl a LEFT JOIN tq.queue q ON q.id = a.queue_id
	WHERE (a.queue_id = 0 OR q.id IS NOT NULL) AND tq.may_list(a.queue_id, a.role)
		AND EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = a.role::oid);

CREATE VIEW tq_rights WITH (security_barrier) AS
	SELECT '*'::text AS queue, tq.rights_on(0) AS privileges
	UNION ALL
	SELECT m.queue, m.privileges
	FROM (SELECT q.name AS queue, tq.rights_on(q.id) AS privileges FROM tq.queue q) m
	WHERE NOT m.privileges OPERATOR(pg_catalog.<@) tq.rights_on(0);

CREATE FUNCTION tq.schedules()
RETURNS TABLE (
	name text, queue text, kind text, payload jsonb, cron text, every interval, timezone text, catch_up text,
	overlap text, options jsonb, owner regrole, state text, next_at timestamptz, last_at timestamptz, last_job_id bigint,
	last_outcome text, missed bigint, last_error text, defined_at timestamptz, starts_at timestamptz, ends_at timestamptz)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'tq_list_schedules';
CREATE VIEW tq_schedules AS SELECT * FROM tq.schedules();
