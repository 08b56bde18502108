-- Schedules.

-- Volatile: it counts from the time of the clock.
CREATE FUNCTION tq_schedule_next(cron text, timezone text DEFAULT 'UTC', n int DEFAULT 5)
RETURNS SETOF timestamptz LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 5 AS 'MODULE_PATHNAME', 'tq_schedule_next';
