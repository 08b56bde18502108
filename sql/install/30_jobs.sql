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
