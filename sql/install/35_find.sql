-- Functions that find jobs by conditions. Their first ten arguments are the same.

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

-- The last row of a page may have only next_after: see docs/reference.md.
CREATE FUNCTION tq_changes(
	after text DEFAULT NULL, queue text DEFAULT NULL, max int DEFAULT 1000, wait interval DEFAULT NULL)
RETURNS TABLE (
	id bigint, queue text, event text, state text, at timestamptz, step int, next_after text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';
