-- The SQL-callable functions (docs/reference.md), in the schema that CREATE EXTENSION names. Every role may call them;
-- each function checks what the caller may do with the queue (90_rights.sql).

CREATE TYPE tq_job AS (
	id bigint, lease bigint, queue text, kind text, payload jsonb, attempt int, max_attempts int, checkpoint jsonb,
	headers jsonb, priority int, enqueued_at timestamptz, lease_expires_at timestamptz, parents jsonb,
	group_key text, tags text[], unique_key text, deadline timestamptz
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

CREATE FUNCTION tq_claim(
	queue text, max_jobs int DEFAULT 1, worker text DEFAULT NULL, lease_for interval DEFAULT NULL,
	wait interval DEFAULT NULL, kinds text[] DEFAULT NULL, bind_session boolean DEFAULT false,
	bind_worker boolean DEFAULT false)
RETURNS SETOF tq_job LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_claim_any(
	queues text[], max_jobs int DEFAULT 1, worker text DEFAULT NULL, lease_for interval DEFAULT NULL,
	wait interval DEFAULT NULL, kinds text[] DEFAULT NULL, bind_session boolean DEFAULT false,
	bind_worker boolean DEFAULT false)
RETURNS SETOF tq_job LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME';

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
