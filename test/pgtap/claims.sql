-- Claims that complete the last job (tq_claim_next), claims for several workers (tq_claim_for), heartbeats that name
-- another holder, and which role may drain a worker.
SET client_min_messages = warning;
SET tq.max_pinned_wait = '1 h';

SELECT * FROM no_plan();

-- ---- tq_claim_next

SELECT tq_create_queue('next');
SELECT tq_enqueue('next', jsonb_build_object('n', n)) FROM generate_series(1, 5) n;
CREATE TABLE mine (n int PRIMARY KEY, id bigint, lease bigint);
CREATE FUNCTION held(n int, OUT ids bigint[], OUT leases bigint[]) LANGUAGE sql AS
	$$SELECT ARRAY[id], ARRAY[lease] FROM mine WHERE mine.n = held.n$$;
-- Completes the job n and claims the next one.
CREATE FUNCTION next_after(n int, results jsonb[] DEFAULT NULL) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	got int;
BEGIN
	INSERT INTO mine SELECT (c.payload ->> 'n')::int, c.id, c.lease
		FROM tq_claim_next('next', (held(n)).ids, (held(n)).leases, results, worker => 'w') c
		RETURNING mine.n INTO got;
	RETURN got;
END
$$;
INSERT INTO mine SELECT (c.payload ->> 'n')::int, c.id, c.lease FROM tq_claim_next('next', '{}', '{}', worker => 'w') c;
SELECT is((SELECT n FROM mine), 1, 'without jobs to complete it is a claim');
SELECT is(next_after(1, ARRAY['{"done": 1}']::jsonb[]), 2, 'it completes a job and claims the next one');
SELECT is((SELECT state || ' ' || result FROM mine, tq_get(id) WHERE n = 1), 'succeeded {"done": 1}', 'with its result');
SELECT is((SELECT state || ' ' || worker FROM mine, tq_get(id) WHERE n = 2), 'running w', 'the next one runs in the name of the worker');

BEGIN;
SELECT is(next_after(2), 3, 'in a transaction, too');
ROLLBACK;
SELECT is((SELECT state FROM mine, tq_get(id) WHERE n = 2), 'running', 'a rollback takes back the end of the job');
SELECT is((SELECT count(*) FROM tq_running WHERE queue = 'next'), 1::bigint, 'and the claim');
SELECT is(next_after(2), 3, 'both are made again');
SELECT is((SELECT attempt FROM mine, tq_get(id) WHERE n = 3), 1, 'and only this one counts');

-- a lost lease: an error, so that nothing of the transaction is kept, and no job is claimed and forgotten
SELECT throws_ok('SELECT next_after(2)', 'TQ001', NULL, 'a job that has ended cannot be completed again');
SELECT throws_ok($$SELECT * FROM tq_claim_next('next', '{9007199254740993}', '{1}')$$, 'TQ004', NULL, 'nor one that does not exist');
SELECT throws_ok($$SELECT * FROM tq_claim_next('next', (SELECT array_agg(id) FROM mine WHERE n IN (1, 3)),
	(SELECT array_agg(lease) FROM mine WHERE n IN (1, 3)))$$, 'TQ001', NULL, 'one lost lease among several is an error');
SELECT is((SELECT state FROM mine, tq_get(id) WHERE n = 3), 'running', 'then none of them is completed');
SELECT is((SELECT count(*) FROM tq_running WHERE queue = 'next'), 1::bigint, 'and none is claimed');

-- limits count the job until the commit
SELECT tq_alter_queue('next', '{"max_running": 1}');
SELECT is(next_after(3), NULL, 'a queue with max_running = 1 has no place before the commit');
SELECT is((SELECT state FROM mine, tq_get(id) WHERE n = 3), 'succeeded', 'the job is completed');
INSERT INTO mine SELECT 4, c.id, c.lease FROM tq_claim('next') c;
SELECT tq_alter_queue('next', '{"max_running": null}');
INSERT INTO mine SELECT 5, c.id, c.lease FROM tq_claim_next('next', (held(4)).ids, (held(4)).leases, kinds => '{x}') c;
SELECT is((SELECT count(*) FROM mine), 4::bigint, 'it takes the arguments of a claim');
INSERT INTO mine SELECT 5, c.id, c.lease FROM tq_claim('next', worker => 'w') c;
SELECT tq_drain('w');
SELECT is(next_after(5), NULL, 'a worker that drains gets no other job');
SELECT is((SELECT state FROM mine, tq_get(id) WHERE n = 5), 'succeeded', 'but completes its own');
SELECT tq_undrain('w');
SELECT is((SELECT count(*) FROM tq_claim_next('next', '{}', '{}')), 0::bigint, 'an empty queue gives nothing');

-- ---- tq_claim_for

SELECT tq_enqueue('for', jsonb_build_object('n', n), kind => CASE n WHEN 6 THEN 'six' END) FROM generate_series(1, 6) n;
CREATE TABLE shared (worker text, n int, id bigint, lease bigint);
INSERT INTO shared SELECT c.worker, ((c.job).payload ->> 'n')::int, (c.job).id, (c.job).lease
	FROM tq_claim_for('{for}', '{a,b,c}', lease_for => '1 h') c;
SELECT results_eq('SELECT worker, n FROM shared ORDER BY n', $$VALUES ('a', 1), ('b', 2), ('c', 3)$$, 'each worker gets one job, in their order');
SELECT results_eq($$SELECT worker FROM tq_running WHERE queue = 'for' ORDER BY id$$, $$VALUES ('a'), ('b'), ('c')$$, 'each job has the name of its worker');
SELECT results_eq($$SELECT worker, running::int, claimed::int FROM tq_workers WHERE worker IN ('a', 'b', 'c') ORDER BY worker$$,
	$$VALUES ('a', 1, 1), ('b', 1, 1), ('c', 1, 1)$$, 'and is counted for it');
SELECT is(tq_drain('b'), 1::bigint, 'one of them drains');
INSERT INTO shared SELECT c.worker, ((c.job).payload ->> 'n')::int, (c.job).id, (c.job).lease FROM tq_claim_for('{for,next}', '{b,c}', kinds => '{six}') c;
SELECT results_eq('SELECT worker, n FROM shared ORDER BY n DESC LIMIT 1', $$VALUES ('c', 6)$$, 'it gets none, and the next worker does');
INSERT INTO shared SELECT c.worker, ((c.job).payload ->> 'n')::int, (c.job).id, (c.job).lease FROM tq_claim_for('{for}', '{a,b}', 5) c;
SELECT results_eq('SELECT worker, n FROM shared WHERE n IN (4, 5) ORDER BY n', $$VALUES ('a', 4), ('a', 5)$$, 'max_jobs is for each worker');
SELECT is((SELECT count(*) FROM tq_claim_for('{for}', '{a,b}')), 0::bigint, 'no job is left');
SELECT tq_undrain('b');

-- ---- a heartbeat that names another holder

CREATE FUNCTION rename(n int, worker text) RETURNS text LANGUAGE sql AS
	$$SELECT h.action FROM shared s, tq_heartbeat(s.id, s.lease, worker => rename.worker) h WHERE s.n = rename.n$$;
CREATE FUNCTION counts() RETURNS text LANGUAGE sql AS
	$$SELECT string_agg(worker || ' ' || running, ' ' ORDER BY worker) FROM tq_workers WHERE worker IN ('a', 'b', 'c', 'd')$$;
SELECT is(rename(1, 'd'), 'run', 'a heartbeat hands a job to another worker');
SELECT is((SELECT g.worker FROM shared s, tq_get(s.id) g WHERE s.n = 1), 'd', 'which holds it from then on');
SELECT is(counts(), 'a 2 b 1 c 2 d 1', 'and is counted for it');
SELECT is(rename(1, NULL), 'run', 'one without a name');
SELECT is(counts(), 'a 2 b 1 c 2 d 1', 'leaves it');
SELECT is(rename(1, 'd'), 'run', 'one with the same name');
SELECT is(counts(), 'a 2 b 1 c 2 d 1', 'too');
SELECT tq_drain('d');
SELECT is(rename(2, 'd'), 'quiet', 'a holder that drains is told');
SELECT is(tq_drain('d'), 2::bigint, 'its jobs are those that it was handed');
SELECT is(tq_complete(id, lease), 'succeeded', 'they can be completed') FROM shared WHERE n IN (1, 2);
SELECT is(counts(), 'a 2 b 0 c 2 d 0', 'and are counted down for it');
SELECT results_eq($$SELECT action FROM shared s, tq_heartbeat(s.id, s.lease, worker => 'c') WHERE s.n = 1$$, $$VALUES ('lost')$$, 'a lost lease hands over nothing');
SELECT is((SELECT count(*) FROM tq_check() WHERE found <> expected), 0::bigint, 'the counters are right');

-- ---- who may drain

CREATE ROLE crew;
CREATE ROLE rival;
SELECT tq_grant('for', 'crew', 'consume');
SELECT tq_grant('for', 'rival', 'consume');
SET ROLE crew;
SELECT throws_ok($$SELECT tq_drain('crew 1')$$, '42501', NULL, 'a role cannot drain a worker that nobody has named');
SELECT count(*) AS claimed FROM tq_claim('for', worker => 'crew 1') \gset
SELECT is(tq_drain('crew 1'), 0::bigint, 'it can drain those that its sessions have named');
SELECT is(tq_undrain('crew 1'), true, 'and undrain them');
SELECT throws_ok($$SELECT tq_drain('a')$$, '42501', NULL, 'not those of another role');
SET ROLE rival;
SELECT count(*) AS claimed FROM tq_claim('for', worker => 'crew 1') \gset
SELECT throws_ok($$SELECT tq_drain('crew 1')$$, '42501', NULL, 'a name is of the role that gave it first');
SELECT throws_ok($$SELECT tq_undrain('crew 1')$$, '42501', NULL, 'also for tq_undrain');
RESET ROLE;
SELECT is(tq_drain('crew 1'), 0::bigint, 'who may manage all queues can drain every worker');

-- ---- leases that belong to a worker

SELECT tq_create_queue('own', '{"retry": {"on_lost": "0 s"}}');
SELECT tq_enqueue('own') FROM generate_series(1, 9);
CREATE TABLE own AS SELECT row_number() OVER (ORDER BY id) AS n, id, lease
	FROM tq_claim('own', 4, worker => 'o', lease_for => '1 h', bind_worker => true);
INSERT INTO own SELECT 5, id, lease FROM tq_claim('own', worker => 'p', bind_worker => true);
INSERT INTO own SELECT 6, id, lease FROM tq_claim('own', worker => 'o');
CREATE FUNCTION becomes(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	done boolean := false;
BEGIN
	FOR i IN 1 .. 18000 LOOP
		EXECUTE query INTO done;
		EXIT WHEN done;
		PERFORM pg_sleep(0.01); -- poll
	END LOOP;
	IF done IS NOT TRUE THEN
		RAISE 'never came true: %', query;
	END IF;
END
$$;
CREATE FUNCTION beat(worker text) RETURNS text LANGUAGE sql AS $$SELECT jobs || ' ' || action FROM tq_heartbeat_worker(worker)$$;
CREATE FUNCTION beat(n int) RETURNS text LANGUAGE sql AS $$SELECT h.action FROM own o, tq_heartbeat(o.id, o.lease) h WHERE o.n = beat.n$$;
SELECT is((SELECT jsonb_agg(DISTINCT bound) FROM tq_running WHERE queue = 'own'), '[false]', 'such a lease does not end with its session');
SELECT is(beat('o'), '4 run', 'one heartbeat is for all of them, not for others in its name');
SELECT is(beat('p'), '1 run', 'or of another worker');
SELECT is(beat('nobody'), '0 run', 'a worker without jobs');
SELECT is((SELECT count(*)::int FROM tq_workers WHERE worker = 'nobody'), 0, 'is not named by it');
SELECT tq_cancel(id) FROM own WHERE n = 1;
SELECT is(beat('o'), '4 cancel', 'it tells of a request to stop');
SELECT is(beat(1) || ' ' || beat(2), 'cancel run', 'the heartbeat of each job tells which');
SELECT is(tq_fail(id, lease, 'stopped'), 'cancelled', 'the job stops') FROM own WHERE n = 1;
SELECT tq_drain('o');
SELECT is(beat('o'), '3 quiet', 'it tells that the worker drains');
SELECT tq_undrain('o');
SELECT is((SELECT action FROM own, tq_heartbeat(id, lease, worker => 'p') WHERE n = 2), 'run', 'a lease may go to another worker');
SELECT is(beat('o') || ', ' || beat('p'), '2 run, 2 run', 'and then belongs to it');

BEGIN;
INSERT INTO own SELECT 7, id, lease FROM tq_claim('own', worker => 'o', bind_worker => true);
SELECT is(tq_release_worker('o'), 3::bigint, 'a release ends its own leases, of open claims as well');
SELECT is(beat(3) || ' ' || beat(4) || ' ' || beat(7), 'lost lost lost', 'at once');
SELECT throws_ok('SELECT tq_complete(id, lease) FROM own WHERE n = 3', 'TQ001', NULL, 'they cannot be completed');
SELECT is((SELECT count(*)::int FROM tq_claim('own', worker => 'o', bind_worker => true)), 1, 'a later claim in its name');
SELECT becomes($q$SELECT beat('o') = '1 run'$q$);	-- the released ones are counted until the scheduler has seen them
SELECT is(beat('o'), '1 run', 'is not touched');
SELECT is(beat(5) || ' ' || beat(6), 'run run', 'neither are other workers and other leases');
COMMIT;
SELECT becomes($q$SELECT count(*) = 2 FROM own, tq_history(id) h WHERE n IN (3, 4) AND h.event = 'lost'$q$);
SELECT is((SELECT count(*)::int FROM generate_series(1, 3) i, LATERAL (SELECT id FROM tq_claim('own', wait => '3 min') WHERE i > 0) c),
	3, 'the jobs come again');
SELECT is((SELECT jsonb_agg(DISTINCT h.reason) FROM own, tq_history(id) h WHERE n IN (3, 4) AND h.event = 'lost'), '["its worker has ended"]', 'the history says why');
SELECT is((SELECT attempt FROM own, tq_get(id) WHERE n = 3), 2, 'the attempt counts');
SELECT is(tq_release_worker('o'), 1::bigint, 'a second release ends what was claimed since');
SELECT is(tq_release_worker('nobody'), 0::bigint, 'a worker that is not known holds nothing');

SELECT throws_ok($$SELECT tq_claim('own', bind_worker => true)$$, '22023', 'bind_worker requires a worker');
SELECT throws_ok($$SELECT tq_claim('own', worker => 'o', bind_worker => true, bind_session => true)$$, '22023',
	'bind_session and bind_worker exclude each other');
BEGIN TRANSACTION READ ONLY;
SELECT throws_ok($$SELECT tq_release_worker('o')$$, '25006', NULL, 'a release is refused in a read-only transaction');
COMMIT;

-- a worker belongs to the role that named it
SELECT tq_grant('own', 'crew', 'consume');
SELECT tq_grant('own', 'rival', 'consume');
SELECT tq_enqueue('own') FROM generate_series(1, 9);
SET ROLE crew;
SELECT id AS job, lease FROM tq_claim('own', worker => 'crew 2', bind_worker => true) \gset
SELECT is(beat('crew 2'), '1 run', 'a role has a worker');
SET ROLE rival;
SELECT throws_ok($$SELECT tq_heartbeat_worker('crew 2')$$, '42501', 'worker "crew 2" belongs to another role', 'another role does not extend its leases');
SELECT throws_ok($$SELECT tq_release_worker('crew 2')$$, '42501', NULL, 'or end them');
SELECT throws_ok($$SELECT tq_claim('own', worker => 'crew 2', bind_worker => true)$$, '42501', NULL, 'or claim in its name');
SELECT throws_ok($$SELECT tq_claim_for('{own}', '{rival 1,crew 2}', bind_worker => true)$$, '42501', NULL, 'among others');
SELECT is((SELECT count(*)::int FROM tq_claim('own', worker => 'crew 2')), 1, 'except for leases of its own');
SELECT id AS mine, lease AS my_lease FROM tq_claim('own', worker => 'rival 1', bind_worker => true) \gset
SELECT throws_ok(format('SELECT tq_heartbeat(%s, %s, worker => %L)', :mine, :my_lease, 'crew 2'), '42501', NULL, 'and hands it no lease');
SELECT is((SELECT action FROM tq_heartbeat(:mine, :my_lease)), 'run', 'which stays as it was');
RESET ROLE;
SELECT is(beat('crew 2'), '1 run', 'who may manage all queues can do both');
SELECT is(tq_release_worker('crew 2'), 1::bigint, 'extend and end them');
SELECT is((SELECT action FROM tq_heartbeat(:job, :lease)), 'lost', 'which the worker is told');
SELECT is((SELECT count(*)::int FROM tq_check() WHERE expected >= 0 AND expected <> found), 0, 'memory and journal agree');

SELECT * FROM finish();
