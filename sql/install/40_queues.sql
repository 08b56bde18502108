-- Queues: waiting for their jobs, and how they stand.

CREATE PROCEDURE tq_wait(queues text[], timeout interval)
LANGUAGE C AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_stats()
RETURNS TABLE (
	queue text, state text, ready bigint, delayed bigint, running bigint, live bigint, in_memory bigint, on_disk bigint,
	waiting int, paused_until timestamptz, kinds jsonb, enqueued bigint, claimed bigint, succeeded bigint, failed bigint,
	lost bigint, dead bigint, released bigint, cancelled bigint)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20 AS 'MODULE_PATHNAME';
