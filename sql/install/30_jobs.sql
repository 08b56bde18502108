-- Functions on single jobs beside claiming and finishing them: heartbeats, changes from outside, looking at them.

CREATE FUNCTION tq_heartbeat(
	id bigint, lease bigint, extend interval DEFAULT NULL, progress jsonb DEFAULT NULL, checkpoint jsonb DEFAULT NULL,
	OUT lease_expires_at timestamptz, OUT action text)
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_heartbeat_many(ids bigint[], leases bigint[], extend interval DEFAULT NULL)
RETURNS TABLE (id bigint, action text) LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME';
