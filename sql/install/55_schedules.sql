-- Functions on schedules.

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

-- Volatile, since it starts from the current time.
CREATE FUNCTION tq_schedule_next(cron text, timezone text DEFAULT 'UTC', n int DEFAULT 5)
RETURNS SETOF timestamptz LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 5 AS 'MODULE_PATHNAME', 'tq_schedule_next';
