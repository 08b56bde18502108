-- Retries, leases, timeouts and expiry as tables of cases. The test moves the clocks.
SET client_min_messages = warning;
SET tq.max_pinned_wait = '1 h';

SELECT * FROM no_plan();

CREATE FUNCTION clock(wall bigint, mono bigint) RETURNS void LANGUAGE c STRICT AS '$libdir/tq', 'tq_test_clock';

\ir lib/until.sql

-- ---- pauses between attempts

CREATE TABLE policies (n int PRIMARY KEY, queue jsonb, job jsonb, expected float8[], what text);
INSERT INTO policies VALUES
	(1, '{"delay": "10 s", "max": "1 min"}', NULL, '{10,20,40,60,60}', 'exponential by default'),
	(2, '{"policy": "exponential", "delay": "1 s", "factor": 3}', NULL, '{1,3,9,27}', 'a factor'),
	(3, '{"policy": "exponential", "delay": "1 s", "factor": 1.5}', NULL, '{1,1.5,2.25}', 'a broken one'),
	(4, '{"policy": "exponential", "factor": 1, "delay": "4 s"}', NULL, '{4,4,4}', 'a factor of one'),
	(5, '{"policy": "linear", "delay": "5 s", "max": "12 s"}', NULL, '{5,10,12,12}', 'linear, capped'),
	(6, '{"policy": "fixed", "delay": "7 s"}', NULL, '{7,7,7}', 'fixed'),
	(7, '{"policy": "list", "delays": ["1 s", "1 min", "1 h"]}', NULL, '{1,60,3600,3600}', 'a list, whose last one repeats'),
	(8, '{"delay": "1 h", "max": "1 min"}', NULL, '{60,60}', 'a cap below the delay'),
	(9, '{"policy": "fixed", "delay": "0 s"}', NULL, '{0,0}', 'at once'),
	(10, '{"policy": "fixed", "delay": "7 s"}', '{"delay": "3 s"}', '{3,3}', 'the job''s delay, the queue''s policy'),
	(11, '{"policy": "fixed", "delay": "7 s"}', '{"policy": "linear"}', '{7,14,21}', 'the job''s policy, the queue''s delay'),
	(12, '{"policy": "fixed", "delay": "7 s"}', '{"policy": "list", "delays": ["1 s", "2 s"]}', '{1,2,2}', 'the job''s list'),
	(13, '{"policy": "list", "delays": ["1 s", "2 s"]}', '{"policy": "fixed", "delay": "9 s"}', '{9,9}', 'no list for this job'),
	(14, NULL, '{"policy": "fixed", "delay": "1 day", "max": "1 day"}', '{86400,86400}', 'a day, by the job alone'),
	(15, '{"policy": "fixed", "delay": "1 min"}', '{}', '{60}', 'an empty policy is the queue''s'),
	(16, '{"policy": "fixed", "delay": "1 min"}', '{"on_lost": "1 s"}', '{60}', 'on_lost is for lost leases');
SELECT tq_create_queue('p' || n, coalesce(jsonb_build_object('retry', '{"jitter": 0}' || queue), '{}')) FROM policies;
SELECT tq_enqueue('p' || n, retry => '{"jitter": 0}' || job) FROM policies WHERE job IS NOT NULL;
SELECT tq_enqueue('p' || n) FROM policies WHERE job IS NULL;
CREATE TABLE pauses (n int, attempt int, state text, pause float8);
CREATE PROCEDURE fail_all() LANGUAGE plpgsql AS $$
DECLARE
	p record;
	j record;
	new_state text;
BEGIN
	FOR p IN SELECT * FROM policies LOOP
		FOR i IN 1 .. cardinality(p.expected) LOOP
			SELECT * INTO j FROM tq_claim('p' || p.n, wait => '3 min');
			new_state := tq_fail(j.id, j.lease, 'no');
			INSERT INTO pauses SELECT p.n, i, new_state, extract(epoch FROM retry_at - at) FROM tq_history(j.id) WHERE event = 'failed' AND attempt = i;
			COMMIT;
			IF new_state = 'delayed' THEN
				PERFORM tq_reschedule(j.id, tq_now()); -- it may be due by now
				COMMIT;
			END IF;
		END LOOP;
	END LOOP;
END
$$;
CALL fail_all();
SELECT is((SELECT array_agg(pause ORDER BY attempt) FROM pauses WHERE n = p.n), expected, 'pauses: ' || what) FROM policies p ORDER BY n;
SELECT is((SELECT string_agg(DISTINCT state, ' ') FROM pauses WHERE n = p.n), CASE WHEN expected[1] = 0 THEN 'ready' ELSE 'delayed' END, 'state: ' || what)
	FROM policies p ORDER BY n;

-- jitter is added, differs from job to job, and is bounded
SELECT count(tq_enqueue('jitter', retry => '{"policy": "fixed", "delay": "10 s", "jitter": 0.5}')) FROM generate_series(1, 50) AS jobs \gset
CREATE TABLE jittered AS SELECT c.id, tq_fail(c.id, c.lease, 'no') FROM tq_claim('jitter', 50) c;
CREATE TABLE jitters AS SELECT extract(epoch FROM h.retry_at - h.at) AS pause FROM jittered j, tq_history(j.id) h WHERE h.event = 'failed';
SELECT is((SELECT count(*)::int FROM jitters WHERE pause BETWEEN 10 AND 15), 50, 'jitter: between none and half of the pause');
SELECT cmp_ok((SELECT count(DISTINCT pause)::int FROM jitters), '>', 40, 'jitter: each job has its own');

-- ---- the length of a claim

CREATE TABLE limits (n int PRIMARY KEY, queue jsonb, lease text, timeout interval, lease_for interval, expected int);
INSERT INTO limits VALUES
	(1, '{}', NULL, NULL, NULL, 300), (2, '{"lease": "40 min"}', NULL, NULL, NULL, 2400), (3, '{"lease": "40 min"}', '20 min', NULL, NULL, 1200),
	(4, '{"lease": "40 min"}', '20 min', NULL, '10 min', 600), (5, '{"lease": "40 min", "timeout": "30 min"}', NULL, NULL, NULL, 1800),
	(6, '{"lease": "40 min", "timeout": "30 min"}', '20 min', NULL, NULL, 1200), (7, '{"timeout": "4 min"}', NULL, '4.5 min', NULL, 270),
	(8, '{"timeout": "4 min"}', NULL, '3 min', NULL, 180), (9, '{"timeout": "4 min"}', NULL, '3 min', '1 h', 180), (10, '{}', NULL, '1 h', '10 min', 600),
	(11, '{"lease": "10 min"}', '1 h', '2 h', NULL, 3600), (12, '{"timeout": "0 s"}', '49 days', NULL, NULL, 4233600);
SELECT tq_create_queue('l' || n, queue) FROM limits;
SELECT tq_enqueue('l' || n, timeout => timeout, options => jsonb_build_object('lease', lease)) FROM limits WHERE lease IS NOT NULL;
SELECT tq_enqueue('l' || n, timeout => timeout) FROM limits WHERE lease IS NULL;
CREATE TABLE claims AS SELECT n, c.id, c.lease, c.lease_expires_at, c.lease_expires_at - make_interval(secs => expected) BETWEEN now() - interval '1 s'
		AND clock_timestamp() + interval '1 s' AS lasts
	FROM limits, tq_claim('l' || n, lease_for => limits.lease_for) c;
SELECT ok(c.lasts, format('lease %s, timeout %s, lease_for %s, queue %s: %s s', l.lease, timeout, lease_for, queue, expected))
	FROM limits l JOIN claims c USING (n) ORDER BY n;
SELECT is((SELECT count(*)::int FROM claims c JOIN tq_running r USING (id) WHERE abs(extract(epoch FROM r.lease_expires_at - c.lease_expires_at)) < 1), 12,
	'tq_running says the same'); -- limit: no time passes between these
-- a heartbeat with a long extension shows the end of the attempt
CREATE TABLE beats AS SELECT c.n, extract(epoch FROM h.lease_expires_at - clock_timestamp()) AS lasts
	FROM claims c, tq_heartbeat(c.id, c.lease, extend => '3 days') h;
SELECT is((SELECT array_agg(n ORDER BY n) FROM beats WHERE lasts < 86400), '{5,6,7,8,9,10,11}'::int[], 'heartbeats do not go beyond the end of an attempt');

-- ---- after a lost lease

CREATE TABLE losses (n int PRIMARY KEY, queue jsonb, retry jsonb, max_attempts int, timeout interval, cancel boolean, expected text);
INSERT INTO losses VALUES
	(1, '{}', NULL, NULL, NULL, false, 'ready 1 lease lost'), (2, '{"on_lost": "retry"}', NULL, NULL, NULL, false, 'ready 1 lease lost'),
	(3, '{"on_lost": "bury"}', NULL, NULL, NULL, false, 'buried 1 lease lost'), (4, '{"on_lost": "dead"}', NULL, NULL, NULL, false, 'dead 1 lease lost'),
	(5, '{}', NULL, 1, NULL, false, 'dead 1 lease lost'), (6, '{"on_lost": "bury"}', NULL, 1, NULL, false, 'buried 1 lease lost'),
	(7, '{"max_attempts": 1}', NULL, NULL, NULL, false, 'dead 1 lease lost'), (8, '{"max_attempts": 1}', NULL, 2, NULL, false, 'ready 1 lease lost'),
	(9, '{"retry": {"on_lost": "3 h"}}', NULL, NULL, NULL, false, 'delayed 1 lease lost'), (10, '{"retry": {"on_lost": "3 h"}}', '{"on_lost": "0 s"}', NULL, NULL, false, 'ready 1 lease lost'),
	(11, '{}', '{"on_lost": "3 h"}', NULL, NULL, false, 'delayed 1 lease lost'), (12, '{}', NULL, NULL, '30 min', false, 'ready 1 timeout'),
	(13, '{"on_lost": "bury", "timeout": "30 min"}', NULL, NULL, NULL, false, 'buried 1 timeout'), (14, '{"on_lost": "bury", "cancel_grace": "10 h"}', NULL, NULL, NULL, true, 'cancelled 1 lease lost'),
	(15, '{"cancel_grace": "5 min"}', NULL, NULL, NULL, true, 'cancelled 1 asked to cancel, and did not stop in time'), (16, '{"lease_grace": "1 h"}', NULL, NULL, NULL, false, 'running 1 -');
SELECT tq_create_queue('x' || n, queue) FROM losses;
CREATE TABLE lost AS SELECT n, tq_enqueue('x' || n, retry => retry, max_attempts => max_attempts, timeout => timeout) AS id FROM losses;
CREATE TABLE lost_leases AS SELECT l.n, c.id, c.lease FROM losses l, tq_claim('x' || l.n, lease_for => '1 h') c;
SELECT is((SELECT count(*)::int FROM lost_leases), 16, 'all are claimed');
SELECT tq_cancel(id) FROM lost JOIN losses USING (n) WHERE cancel;
SELECT clock(0, 3660000000);
CALL until($$SELECT count(*) = 15 FROM lost, tq_get(lost.id) g WHERE g.state <> 'running'$$);
SELECT is(g.state || ' ' || g.attempt || ' ' || coalesce(g.error, '-'), expected,
		format('lost: queue %s, retry %s, max_attempts %s, timeout %s%s', l.queue, l.retry, l.max_attempts, l.timeout, CASE WHEN cancel THEN ', asked to cancel' ELSE '' END))
	FROM losses l JOIN lost USING (n), tq_get(lost.id) g ORDER BY n;
SELECT is((SELECT string_agg(DISTINCT action, ' ') FROM lost_leases l, tq_heartbeat(l.id, l.lease) h WHERE n <> 16), 'lost', 'their leases are lost');
SELECT is((SELECT string_agg(DISTINCT s.status, ' ') FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases FROM lost_leases WHERE n <> 16) l,
	tq_complete_many(l.ids, l.leases) s), 'lost', 'and complete nothing');
SELECT is((SELECT status FROM lost_leases l, tq_complete_many(ARRAY[l.id], ARRAY[l.lease]) WHERE n = 16), 'ok', 'within the grace it counts');
SELECT clock(0, 0);

-- ---- expiry

CREATE FUNCTION attempt(verb text, id bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE verb
		WHEN 'cancel' THEN tq_cancel(id)
		WHEN 'retry' THEN tq_retry(id)
		WHEN 'reschedule' THEN tq_reschedule(id, clock_timestamp() + interval '1 day')
		WHEN 'get' THEN (SELECT state FROM tq_get(id))
		WHEN 'complete' THEN tq_complete(id, 1)
		WHEN 'heartbeat' THEN (SELECT action FROM tq_heartbeat(id, 1))
	END;
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END
$$;
CREATE TABLE verbs (verb text PRIMARY KEY, expected text);
INSERT INTO verbs VALUES ('cancel', 'TQ005'), ('retry', 'ready'), ('reschedule', 'TQ005'), ('get', 'expired'), ('complete', 'TQ001'), ('heartbeat', 'lost');
CREATE TABLE expiring AS SELECT verb, tq_enqueue('e', expires_at => clock_timestamp() + interval '1 hour') AS id FROM verbs;
SELECT clock(3601000000, 0);
CALL until($$SELECT expired = 6 FROM tq_stats() WHERE queue = 'e'$$);
SELECT is(attempt(verb, id), expected, 'an expired job: ' || verb) FROM expiring JOIN verbs USING (verb) ORDER BY verb;
SELECT is((SELECT count(*)::int FROM tq_claim('e', 10)), 1, 'the one that was retried can be claimed');
SELECT is((SELECT string_agg(h.event, ' ' ORDER BY step) FROM expiring e, tq_history(e.id) h WHERE verb = 'get'), 'enqueued expired', 'its history');
SELECT clock(0, 0);

-- the end of a job that is not committed yet
CREATE FUNCTION own(verbs text[], expires interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	id bigint := tq_enqueue('own', expires_at => clock_timestamp() + expires);
	v text;
BEGIN
	FOREACH v IN ARRAY verbs LOOP
		IF v = 'taken back' THEN
			BEGIN
				PERFORM tq_cancel(id);
				PERFORM tq_retry(id);
				RAISE EXCEPTION 'take it back';
			EXCEPTION WHEN raise_exception THEN
			END;
		ELSIF v <> '' THEN
			EXECUTE format('SELECT tq_%s(%s)', v, id);
		END IF;
	END LOOP;
	RETURN id;
END
$$;
CREATE TABLE own_jobs AS SELECT n, v, own(v, '1 hour') AS id FROM (VALUES (1, '{""}'::text[]), (2, '{cancel,retry}'), (3, '{taken back}')) x (n, v);
SELECT clock(3601000000, 0);
CALL until($$SELECT expired = 2 FROM tq_stats() WHERE queue = 'own'$$);
SELECT is((SELECT string_agg(g.state, ' ' ORDER BY n) FROM own_jobs o, tq_get(o.id) g), 'expired ready expired',
	'cancelled and retried by the transaction that enqueued it, it has no end; unless that is taken back');
SELECT is((SELECT string_agg(j.state, ' ' ORDER BY n) FROM own_jobs JOIN tq_jobs j USING (id)), 'expired ready expired', 'tq_jobs says the same');
SELECT is((SELECT string_agg((g.expires_at IS NULL)::text, ' ' ORDER BY n) FROM own_jobs o, tq_get(o.id) g), 'false true false', 'a new life has no end');
SELECT clock(0, 0);

-- defaults: never, the queue's, the server's, the job's
SELECT tq_create_queue('d', '{"expires_in": "1 h"}');
SET tq.expires_in = '1 d';
CREATE TABLE ends (n int, id bigint, expected text);
INSERT INTO ends VALUES (1, tq_enqueue('d'), '01:00:00'), (2, tq_enqueue('d', delay => '1 h'), '02:00:00'), (3, tq_enqueue('nothing said'), '24:00:00'),
	(4, tq_enqueue('d', expires_at => 'infinity'), NULL), (5, tq_enqueue('d', expires_at => clock_timestamp() + interval '5 h'), '05:00:00');
RESET tq.expires_in;
INSERT INTO ends VALUES (6, tq_enqueue('nothing said'), NULL);
SELECT is(round(extract(epoch FROM g.expires_at - g.enqueued_at) / 600)::int, (extract(epoch FROM expected::interval) / 600)::int, 'expires_in, case ' || n)
	FROM ends e, tq_get(e.id) g ORDER BY n;

-- ---- claims that were rolled back

SELECT tq_create_queue('undone');
SELECT tq_enqueue('undone', max_attempts => 1) AS undone \gset
BEGIN;
SELECT is((SELECT id FROM tq_claim('undone')), :undone::bigint, 'a claim');
ROLLBACK;
SELECT tq_reschedule(:undone, tq_now() + interval '50 ms');
SELECT is((SELECT attempt FROM tq_claim('undone', wait => '3 min')), 1, 'that was rolled back does not use up the only attempt of a job that is rescheduled');

SELECT is((SELECT string_agg(item, ', ') FROM tq_check() WHERE expected <> found), NULL, 'memory and journal agree');
SELECT * FROM finish();
