-- Functions on single jobs, other than claims and finishes: heartbeats, changes without a lease, and queries.

CREATE FUNCTION tq_heartbeat(
	id bigint, lease bigint, extend interval DEFAULT NULL, progress jsonb DEFAULT NULL, checkpoint jsonb DEFAULT NULL,
	worker text DEFAULT NULL, OUT lease_expires_at timestamptz, OUT action text)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_heartbeat_many(ids bigint[], leases bigint[], extend interval DEFAULT NULL)
RETURNS TABLE (id bigint, action text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_heartbeat_worker(worker text, OUT jobs bigint, OUT action text)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_release_worker(worker text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_drain(worker text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_undrain(worker text)
RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_cancel(id bigint, reason text DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_cancel_jobs(ids bigint[], reason text DEFAULT NULL)
RETURNS TABLE (id bigint, status text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_retry(id bigint, with_children boolean DEFAULT false)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_retry_many(
	queue text, state text DEFAULT 'dead', kind text DEFAULT NULL, since timestamptz DEFAULT NULL,
	max_jobs int DEFAULT NULL, to_queue text DEFAULT NULL, with_children boolean DEFAULT false)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_purge(queue text, state text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_reschedule(id bigint, run_at timestamptz DEFAULT NULL, priority int DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_free_key(queue text, unique_key text)
RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_find(queue text, unique_key text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- A job in its current state. An open claim counts; other changes of uncommitted transactions do not.
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

-- The jobs that a job waits for (levels below 0) and those that wait for it, over all levels. A job that the caller may
-- not see, and one that is gone, has only an id.
CREATE FUNCTION tq_graph(id bigint, max_jobs int DEFAULT 1000)
RETURNS TABLE (
	level int, id bigint, parents bigint[], queue text, kind text, state text, on_parent_failure text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

-- Dead letters by kind and error. Numbers, quoted strings, UUIDs and hexadecimal digits of an error are replaced by "?".
CREATE FUNCTION tq_dead_groups(queue text, max_jobs int DEFAULT 10000)
RETURNS TABLE (
	kind text, error text, jobs bigint, first_at timestamptz, last_at timestamptz, example bigint, complete boolean)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME';

-- Batches: jobs that belong together, and a callback job that runs when all of them have ended.
CREATE FUNCTION tq_batch_open(
	queue text, payload jsonb DEFAULT '{}', kind text DEFAULT NULL, on_failure text DEFAULT 'run', options jsonb DEFAULT NULL)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_batch_close(batch bigint)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_batch(
	batch bigint, OUT id bigint, OUT open boolean, OUT total bigint, OUT done bigint, OUT succeeded bigint, OUT failed bigint,
	OUT opened_at timestamptz, OUT closed_at timestamptz)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';
