SELECT id, lease, payload FROM tq_claim('bench') \gset
SELECT tq_complete(:id, :lease);
