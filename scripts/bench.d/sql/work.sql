SELECT count(*) AS jobs, array_agg(id) AS ids, array_agg(lease) AS leases FROM tq_claim('bench', 10, wait => '1 s') \gset
\if :jobs
\set ms 2 * :jobs
\sleep :ms ms
SELECT count(*) FROM tq_complete_many(:ids, :leases);
\endif
