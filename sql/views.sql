-- The views of jobs, running jobs, dead jobs and workers.
\pset null -
SET timezone = 'UTC';

SELECT tq_create_queue('v_jobs');
SELECT tq_enqueue('v_jobs', kind => 'a', priority => 1) AS one \gset
SELECT tq_enqueue('v_jobs', priority => 2, max_attempts => 4) AS two \gset
SELECT tq_enqueue('v_jobs', run_at => '2100-01-01', priority => 3) AS three \gset
SELECT tq_enqueue('v_jobs', priority => 4) AS four \gset
SELECT tq_enqueue('v_jobs', priority => 5) AS five \gset
SELECT lease FROM tq_claim('v_jobs', worker => 'v_ann') \gset

SELECT queue, kind, state, priority, attempt, max_attempts, run_at, enqueued_at <= clock_timestamp() AS enqueued, expires_at
	FROM tq_jobs WHERE queue = 'v_jobs' ORDER BY id;
SELECT id = :one AS is_one, kind, lease = :lease AS lease, worker, attempt, priority, claimed_at <= clock_timestamp() AS claimed,
	lease_expires_at > clock_timestamp() AS leased, open, bound, cancel_asked, pid FROM tq_running WHERE queue = 'v_jobs';
SELECT worker, running, claimed, seen_at <= clock_timestamp() AS seen, draining FROM tq_workers WHERE worker ~ '^v_';
SELECT tq_drain('v_ann');
SELECT worker, running, draining FROM tq_workers WHERE worker ~ '^v_';
SELECT tq_undrain('v_ann');
-- a worker that never claimed, or a typo
SET client_min_messages = notice;
SELECT tq_drain('v_amn');
SELECT tq_drain('v_amn');
RESET client_min_messages;
SELECT tq_undrain('v_amn');

-- an open claim shows its process
BEGIN;
SELECT lease AS lease2 FROM tq_claim('v_jobs', worker => 'v_bob', bind_session => true) \gset
SELECT id = :two AS is_two, open, bound, pid = pg_backend_pid() AS mine FROM tq_running WHERE worker = 'v_bob';
ROLLBACK;
SELECT count(*) FROM tq_running WHERE worker = 'v_bob';
SELECT state, attempt FROM tq_jobs WHERE id = :two;

-- a job that was asked to stop
SELECT tq_cancel(:one);
SELECT cancel_asked FROM tq_running WHERE id = :one;
SELECT tq_complete(:one, :lease);

-- dead and buried jobs, with the reason
SELECT lease FROM tq_claim('v_jobs', worker => 'v_ann') \gset
SELECT tq_fail(:two, :lease, 'no address', '{"code": 7}', fatal => true);
SELECT lease FROM tq_claim('v_jobs') \gset
SELECT tq_bury(:four, :lease, 'look at it');
SELECT kind, state, priority, attempts, reason, detail, worker, died_at BETWEEN enqueued_at AND clock_timestamp() AS died
	FROM tq_dead WHERE queue = 'v_jobs' ORDER BY id;
SELECT tq_retry(:four);
SELECT id = :two AS is_two FROM tq_dead WHERE queue = 'v_jobs';
SELECT tq_cancel(:five);

-- a job's state as the transaction that changes it sees it
BEGIN;
SELECT tq_cancel(:four);
SELECT state FROM tq_jobs WHERE id = :four;
SELECT tq_enqueue('v_jobs') AS six \gset
SELECT state FROM tq_jobs WHERE id = :six;
ROLLBACK;
SELECT count(*) FROM tq_jobs WHERE id = :six;
SELECT state, count(*) FROM tq_jobs WHERE queue = 'v_jobs' GROUP BY 1 ORDER BY 1;

-- LIMIT, cursors, and no lock on any segment (H24)
SELECT count(*) FROM (SELECT * FROM tq_jobs LIMIT 2) l;
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM tq_jobs;
MOVE 3 IN c;
SELECT count(*) FROM pg_locks l JOIN pg_class r ON r.oid = l.relation WHERE l.pid = pg_backend_pid() AND r.relname ~ '^(job|event)_';
COMMIT;
SET work_mem = '64kB';
SELECT count(tq_enqueue('v_more', jsonb_build_object('i', i), delay => '1 d')) FROM generate_series(1, 2000) i;
SELECT count(*) FROM (SELECT * FROM tq_jobs LIMIT 1500) l;
SELECT count(*), count(DISTINCT id), min(state), max(state) FROM tq_jobs WHERE queue = 'v_more';
RESET work_mem;
-- a LIMIT ends the reading
CREATE FUNCTION v_pages(statement text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	plan jsonb;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || statement INTO plan;
	RETURN (plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::int + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::int;
END
$$;
SELECT v_pages('SELECT * FROM tq_jobs LIMIT 10') * 5 < v_pages('SELECT * FROM tq_jobs') AS less;
DROP FUNCTION v_pages;

-- closed by default (P8)
SELECT count(*) FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'tq'
	JOIN pg_class c ON c.oid = d.objid, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
	WHERE d.deptype = 'e' AND d.classid = 'pg_class'::regclass AND c.relkind NOT IN ('c', 'v') AND a.grantee <> c.relowner;
CREATE ROLE v_nobody;
SET ROLE v_nobody;
SELECT count(*) FROM tq_queues;
SELECT count(*) FROM tq_jobs;
SELECT count(*) FROM tq_workers;
SELECT tq_enqueue('v_jobs');
SELECT * FROM tq_claim('no such queue');
SELECT count(*) FROM tq_stats();
SELECT count(*) FROM tq.job_0;
SELECT count(*) FROM tq.jobs();
INSERT INTO tq_inbox (queue) VALUES ('v_jobs');
RESET ROLE;
SELECT tq_grant('v_jobs', 'v_nobody', 'monitor');
SELECT * FROM tq_grants;
SET ROLE v_nobody;
SELECT queue FROM tq_queues;
SELECT tq_pause('v_jobs');
RESET ROLE;
SELECT tq_revoke('v_jobs', 'v_nobody', 'monitor');
DROP ROLE v_nobody;

SELECT count(tq_cancel(id)) FROM tq_jobs WHERE queue ~ '^v_' AND state IN ('ready', 'delayed');
SELECT tq_drop_queue(queue) FROM tq_queues WHERE queue ~ '^v_';
