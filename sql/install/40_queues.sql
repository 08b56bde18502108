-- Queues: functions that create and change them, wait for their jobs, and show their state.

CREATE FUNCTION tq_create_queue(name text, settings jsonb DEFAULT '{}')
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_alter_queue(name text, settings jsonb)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_drop_queue(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

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
-- revoked. A queue's row is deleted with it.
CREATE TABLE tq.creator (
	queue_id int PRIMARY KEY,              -- tq.queue.id
	role     tq.role NOT NULL
);
REVOKE ALL ON TABLE tq.creator FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.creator', 'WHERE creator.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = creator.role::oid)');

CREATE FUNCTION tq_pause(queue text, kind text DEFAULT NULL, until timestamptz DEFAULT NULL, group_key text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_resume(queue text, kind text DEFAULT NULL, group_key text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_limit_group(queue text, group_key text, max_running int DEFAULT NULL, rate text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_grant(
	queue text, role regrole, privilege text, privilege2 text DEFAULT NULL, privilege3 text DEFAULT NULL,
	privilege4 text DEFAULT NULL, privilege5 text DEFAULT NULL, privilege6 text DEFAULT NULL,
	privilege7 text DEFAULT NULL, privilege8 text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_revoke(
	queue text, role regrole, privilege text, privilege2 text DEFAULT NULL, privilege3 text DEFAULT NULL,
	privilege4 text DEFAULT NULL, privilege5 text DEFAULT NULL, privilege6 text DEFAULT NULL,
	privilege7 text DEFAULT NULL, privilege8 text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE PROCEDURE tq_wait(queues text[] DEFAULT NULL, timeout interval DEFAULT NULL, kinds text[] DEFAULT NULL, all_roles boolean DEFAULT false)
LANGUAGE C AS 'MODULE_PATHNAME';

CREATE PROCEDURE tq_wait_jobs(ids bigint[], timeout interval DEFAULT NULL, first boolean DEFAULT false)
LANGUAGE C AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_ended(ids bigint[])
RETURNS bigint[] LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_outcomes(ids bigint[])
RETURNS TABLE (id bigint, state text, result jsonb, error text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_ready(queues text[] DEFAULT NULL, kinds text[] DEFAULT NULL, all_roles boolean DEFAULT false)
RETURNS TABLE (queue text, kind text, jobs bigint, role text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_stats()
RETURNS TABLE (
	queue text, state text, ready bigint, delayed bigint, blocked bigint, running bigint, live bigint, in_memory bigint, on_disk bigint,
	waiting int, paused_until timestamptz, kinds jsonb, enqueued bigint, claimed bigint, succeeded bigint, failed bigint,
	lost bigint, dead bigint, released bigint, cancelled bigint, expired bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_series(queue text = null, since interval = '1 day', step interval = '1 min')
RETURNS TABLE (
	at timestamptz, span interval, enqueued bigint, claimed bigint, succeeded bigint, failed bigint, lost bigint, dead bigint,
	wait_p50 interval, wait_p99 interval, run_p50 interval, run_p99 interval)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1440 AS 'MODULE_PATHNAME';

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

CREATE FUNCTION tq_activate(discard boolean DEFAULT false, dry_run boolean DEFAULT false)
RETURNS TABLE (relation text, id bigint, problem text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_deactivate()
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';
