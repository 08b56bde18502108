-- Functions that later versions bring; each raises feature_not_supported.

CREATE FUNCTION tq_schedule(
	name text, queue text, payload jsonb DEFAULT '{}', kind text DEFAULT NULL, cron text DEFAULT NULL,
	every interval DEFAULT NULL, timezone text DEFAULT 'UTC', catch_up text DEFAULT 'latest',
	overlap text DEFAULT 'allow', options jsonb DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_later';

CREATE FUNCTION tq_unschedule(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_later';

CREATE FUNCTION tq_schedule_pause(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_later';

CREATE FUNCTION tq_schedule_resume(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_later';

CREATE FUNCTION tq_schedule_run(name text)
RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_later';
