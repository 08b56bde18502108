SELECT array_agg(id) AS ids, array_agg(lease) AS leases FROM tq_claim('bench', 100) \gset
SELECT count(*) FROM tq_complete_many(:ids, :leases);
