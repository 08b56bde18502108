SELECT array_agg(id) AS ids, array_agg(lease) AS leases FROM tq_claim('bench', 100) \gset
SELECT 1 AS all_of_them FROM tq_complete_many(:ids, :leases) HAVING count(*) FILTER (WHERE status = 'ok') = 100 \gset
