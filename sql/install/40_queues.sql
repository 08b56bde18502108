-- Queues: making and changing them, waiting for their jobs, how they stand.

CREATE FUNCTION tq_create_queue(name text, settings jsonb DEFAULT '{}')
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_alter_queue(name text, settings jsonb)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_drop_queue(name text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_pause(queue text, kind text DEFAULT NULL, until timestamptz DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_resume(queue text, kind text DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_grant(queue text, role regrole, privilege text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_revoke(queue text, role regrole, privilege text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE PROCEDURE tq_wait(queues text[], timeout interval)
LANGUAGE C AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_stats()
RETURNS TABLE (
	queue text, state text, ready bigint, delayed bigint, blocked bigint, running bigint, live bigint, in_memory bigint, on_disk bigint,
	waiting int, paused_until timestamptz, kinds jsonb, enqueued bigint, claimed bigint, succeeded bigint, failed bigint,
	lost bigint, dead bigint, released bigint, cancelled bigint, expired bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';

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

CREATE FUNCTION tq_activate()
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';
