\if :id = 0
SELECT id, lease FROM tq_claim('bench', lease_for => '1 hour') \gset
\endif
SELECT action FROM tq_heartbeat(:id, :lease);
