-- tq_inbox: COPY tq_inbox FROM STDIN enqueues, from any client. The columns are the arguments of tq_enqueue.

-- Not STRICT, so that it checks a missing queue, too.
CREATE FUNCTION tq.inbox_guard(queue text) RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_inbox_guard';
CREATE DOMAIN tq.inbox_queue AS text CONSTRAINT inbox_trigger_fires CHECK (tq.inbox_guard(VALUE));

CREATE VIEW tq_inbox AS
	SELECT NULL::tq.inbox_queue AS queue, NULL::jsonb AS payload, NULL::text AS kind, NULL::int AS priority,
		NULL::timestamptz AS run_at, NULL::interval AS delay, NULL::timestamptz AS expires_at, NULL::int AS max_attempts,
		NULL::jsonb AS retry, NULL::interval AS timeout, NULL::text AS group_key, NULL::text AS unique_key,
		NULL::text AS unique_mode, NULL::jsonb AS headers, NULL::bigint[] AS depends_on, NULL::jsonb AS options
	WHERE false;
-- COPY does not coerce a column that it leaves out to the column's type, so the default calls the guard.
ALTER VIEW tq_inbox ALTER COLUMN queue SET DEFAULT CASE WHEN tq.inbox_guard(NULL) THEN NULL::text END,
	ALTER COLUMN payload SET DEFAULT '{}', ALTER COLUMN unique_mode SET DEFAULT 'skip';

CREATE FUNCTION tq.inbox_insert() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'tq_inbox_insert';
CREATE TRIGGER tq_inbox_insert INSTEAD OF INSERT ON tq_inbox
	FOR EACH ROW EXECUTE FUNCTION tq.inbox_insert();
