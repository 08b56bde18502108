-- Assertions about jobs for pgTAP (https://pgtap.org). Load this file with psql's \i where pgTAP is installed:
--
--   CREATE EXTENSION pgtap;
--   \i tq_assertions.sql
--   SELECT plan(1);
--   SELECT place_order(42); -- enqueues
--   SELECT tq_enqueued_ok('mail', 'receipt', '{"order": 42}');
--
-- They also count jobs that the open transaction has enqueued, so a test can roll back. The caller needs consume or
-- inspect on the queue.

CREATE FUNCTION tq_what(queue text, kind text, payload jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT concat(queue, ': a job', ' of kind ' || kind, ' with ' || payload::text)
$$;

-- At least one job of that kind (null: any) whose payload contains that (null: anything) is enqueued.
CREATE FUNCTION tq_enqueued_ok(queue text, kind text DEFAULT NULL, payload jsonb DEFAULT NULL, description text DEFAULT NULL)
RETURNS text LANGUAGE sql AS $$
	SELECT ok(tq_enqueued(queue, kind, payload) > 0, coalesce(description, tq_what(queue, kind, payload) || ' is enqueued'))
$$;

-- Exactly n of these jobs are enqueued.
CREATE FUNCTION tq_enqueued_is(
	queue text, n bigint, kind text DEFAULT NULL, payload jsonb DEFAULT NULL, description text DEFAULT NULL)
RETURNS text LANGUAGE sql AS $$
	SELECT is(tq_enqueued(queue, kind, payload), n,
		coalesce(description, tq_what(queue, kind, payload) || format(' is enqueued %s times', n)))
$$;

-- None of these jobs is enqueued.
CREATE FUNCTION tq_not_enqueued_ok(queue text, kind text DEFAULT NULL, payload jsonb DEFAULT NULL, description text DEFAULT NULL)
RETURNS text LANGUAGE sql AS $$
	SELECT is(tq_enqueued(queue, kind, payload), 0::bigint,
		coalesce(description, tq_what(queue, kind, payload) || ' is not enqueued'))
$$;

-- The job is in that state: ready, delayed, blocked, running, succeeded, dead, ...
CREATE FUNCTION tq_state_is(job bigint, state text, description text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	found_state text;
BEGIN
	BEGIN
		SELECT g.state INTO found_state FROM tq_get(job) g;
	EXCEPTION WHEN SQLSTATE 'TQ004' THEN
		found_state := 'no such job';
	END;
	RETURN is(found_state, state, coalesce(description, format('job %s is %s', job, state)));
END
$$;
