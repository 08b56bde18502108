\if :id = 0
SELECT id, lease FROM tq_claim('bench', lease_for => '1 hour') \gset
\endif
SELECT lease_expires_at FROM tq_heartbeat(:id, :lease) WHERE action = 'run' \gset
