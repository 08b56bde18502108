-- Every verb in every state: its answer or error; and a savepoint that undoes every effect.
SET client_min_messages = warning;
SET tq.cancel_grace = '1 h';

SELECT * FROM no_plan();

-- The answer of a verb, or SQLSTATE and message, without ids.
CREATE FUNCTION attempt(verb text, id bigint, lease bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE verb
		WHEN 'complete' THEN tq_complete(id, lease)
		WHEN 'fail' THEN tq_fail(id, lease, 'error', retry_in => '1 hour')
		WHEN 'release' THEN tq_release(id, lease, '1 hour')
		WHEN 'bury' THEN tq_bury(id, lease, 'reason')
		WHEN 'heartbeat' THEN (SELECT action FROM tq_heartbeat(id, lease))
		WHEN 'cancel' THEN tq_cancel(id, 'reason')
		WHEN 'retry' THEN tq_retry(id)
		WHEN 'reschedule' THEN tq_reschedule(id, clock_timestamp() + interval '1 hour', 7)
	END;
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || regexp_replace(sqlerrm, '^.*( is lost| does not exist|: it is )', '\1');
END
$$;

CREATE FUNCTION state_of(id bigint) RETURNS text LANGUAGE sql AS 'SELECT state FROM tq_get(id)';

-- The result of tq_get, except times that change by themselves.
CREATE FUNCTION picture(job bigint) RETURNS jsonb LANGUAGE sql AS $$
	SELECT to_jsonb(g) - 'lease_expires_at' || jsonb_build_object('steps', (SELECT count(*) FROM tq_history(job)))
	FROM tq_get(job) g
$$;

-- ---- committed states

CREATE TABLE expected (state text PRIMARY KEY, complete text, fail text, release text, bury text, heartbeat text,
	cancel text, retry text, reschedule text);
INSERT INTO expected VALUES
	('ready', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'cancelled', 'TQ005: it is ready', 'delayed'),
	('delayed', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'cancelled', 'ready', 'delayed'),
	('running', 'succeeded', 'delayed', 'delayed', 'buried', 'run', 'asked', 'TQ005: it is running', 'TQ005: it is running'),
	('asked', 'succeeded', 'cancelled', 'cancelled', 'buried', 'cancel', 'asked', 'TQ005: it is running', 'TQ005: it is running'),
	('failed', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'cancelled', 'ready', 'delayed'),
	('released', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'cancelled', 'ready', 'delayed'),
	('succeeded', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'TQ005: it is succeeded', 'TQ005: it is succeeded', 'TQ005: it is succeeded'),
	('dead', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'TQ005: it is dead', 'ready', 'TQ005: it is dead'),
	('buried', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'TQ005: it is buried', 'ready', 'TQ005: it is buried'),
	('cancelled', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'TQ001 is lost', 'lost', 'TQ005: it is cancelled', 'ready', 'TQ005: it is cancelled'),
	('absent', 'TQ004 does not exist', 'TQ004 does not exist', 'TQ004 does not exist', 'TQ004 does not exist', 'lost', 'TQ004 does not exist', 'TQ004 does not exist', 'TQ004 does not exist');
CREATE TABLE verbs (verb text PRIMARY KEY, n int);
INSERT INTO verbs VALUES ('complete', 1), ('fail', 2), ('release', 3), ('bury', 4), ('heartbeat', 5), ('cancel', 6),
	('retry', 7), ('reschedule', 8);

CREATE TABLE jobs AS
	SELECT state, verb, n, tq_enqueue('q_' || state, delay => CASE WHEN state = 'delayed' THEN interval '1 hour' END) AS id,
		1::bigint AS lease, NULL::text AS answer, NULL::text AS after
	FROM expected, verbs WHERE state <> 'absent' ORDER BY state, n;
INSERT INTO jobs SELECT 'absent', verb, n, 9000000000 + n, 1 FROM verbs;
UPDATE jobs j SET lease = c.lease
	FROM (VALUES ('running'), ('asked'), ('failed'), ('released'), ('succeeded'), ('dead'), ('buried')) s (state),
		tq_claim('q_' || s.state, 100, worker => 'w') c
	WHERE c.id = j.id;
SELECT ok(bool_and(CASE state
		WHEN 'asked' THEN tq_cancel(id) = 'asked'
		WHEN 'failed' THEN tq_fail(id, lease, 'error', retry_in => '1 hour') = 'delayed'
		WHEN 'released' THEN tq_release(id, lease, '1 hour') = 'delayed'
		WHEN 'succeeded' THEN tq_complete(id, lease) = 'succeeded'
		WHEN 'dead' THEN tq_fail(id, lease, 'error', fatal => true) = 'dead'
		WHEN 'buried' THEN tq_bury(id, lease, 'reason') = 'buried'
		WHEN 'cancelled' THEN tq_cancel(id) = 'cancelled'
		ELSE true END), 'the jobs are where they should be')
	FROM jobs;

SELECT is(state_of(id), CASE WHEN state = 'asked' THEN 'running' WHEN state IN ('failed', 'released') THEN 'delayed' ELSE state END,
		'state of ' || state || ' for ' || verb)
	FROM jobs WHERE state <> 'absent' ORDER BY state, n;

-- a savepoint undoes every effect
CREATE FUNCTION taken_back(verb text, job bigint, lease bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	before jsonb := picture(job);
	during text;
	after jsonb;
BEGIN
	BEGIN
		during := attempt(verb, job, lease);
		RAISE EXCEPTION 'take it back';
	EXCEPTION WHEN raise_exception THEN
		after := picture(job);
	END;
	RETURN CASE WHEN after = before THEN 'ok' ELSE format('%s: %s became %s', during, before, after) END;
END
$$;
SELECT is(taken_back(verb, id, lease), 'ok', verb || ' of ' || state || ' is taken back')
	FROM jobs WHERE state <> 'absent' ORDER BY state, n;

UPDATE jobs SET answer = attempt(verb, id, lease);
SELECT is(j.answer, to_jsonb(e) ->> j.verb, j.verb || ' of ' || j.state)
	FROM jobs j JOIN expected e USING (state) ORDER BY j.state, j.n;

-- the answer is the new state of the job
SELECT is(state_of(id), CASE answer WHEN 'asked' THEN 'running' WHEN 'run' THEN 'running' WHEN 'cancel' THEN 'running' ELSE answer END,
		verb || ' of ' || state || ' leads there')
	FROM jobs WHERE answer !~ '^TQ' AND answer <> 'lost' ORDER BY state, n;
-- and an error has changed nothing
SELECT is(state_of(id), CASE WHEN state = 'asked' THEN 'running' WHEN state IN ('failed', 'released') THEN 'delayed' ELSE state END,
		verb || ' of ' || state || ' leaves it alone')
	FROM jobs WHERE (answer ~ '^TQ' OR answer = 'lost') AND state <> 'absent' ORDER BY state, n;

-- ready jobs can be claimed, and no others
SELECT results_eq(
	$$SELECT id FROM (SELECT state FROM expected) s, tq_claim('q_' || s.state, 100) c ORDER BY 1$$,
	$$SELECT id FROM jobs WHERE answer = 'ready' OR (state = 'ready' AND verb NOT IN ('cancel', 'reschedule')) ORDER BY 1$$,
	'exactly the ready ones are claimed');
SELECT is(attempt, CASE WHEN state = 'failed' THEN 2 ELSE 1 END, 'a retried ' || state || ' job counts its attempts')
	FROM jobs, tq_get(id) g (id_, queue, kind, state_, priority, attempt)
	WHERE answer = 'ready' ORDER BY jobs.state;
SELECT is(priority, 7, 'a rescheduled ' || state || ' job has its new priority')
	FROM jobs, tq_get(id) g (id_, queue, kind, state_, priority) WHERE verb = 'reschedule' AND answer = 'delayed' ORDER BY jobs.state;

-- ---- states within the open transaction

-- Brings a job of a separate queue into a state.
CREATE FUNCTION bring(what text, OUT id bigint, OUT lease bigint) LANGUAGE plpgsql AS $$
DECLARE
	q text := 'own_' || what;
BEGIN
	IF what LIKE 'new%' THEN
		id := tq_enqueue(q, delay => CASE WHEN what = 'new_delayed' THEN interval '1 hour' END);
		lease := 1;
		IF what = 'new_cancelled' THEN PERFORM tq_cancel(id); END IF;
		IF what = 'new_rescheduled' THEN PERFORM tq_reschedule(id, clock_timestamp() + interval '1 hour'); END IF;
		RETURN;
	END IF;
	IF what IN ('cancelled', 'rescheduled') THEN
		SELECT o.id, 1 INTO id, lease FROM own o WHERE o.state = what AND NOT o.used LIMIT 1;
		UPDATE own o SET used = true WHERE o.id = bring.id;
	ELSE
		SELECT c.id, c.lease INTO STRICT id, lease FROM tq_claim(q) c;
	END IF;
	PERFORM CASE what
		WHEN 'asked' THEN tq_cancel(id)
		WHEN 'completed' THEN tq_complete(id, lease)
		WHEN 'failed' THEN tq_fail(id, lease, 'error', retry_in => '1 hour')
		WHEN 'dead' THEN tq_fail(id, lease, 'error', fatal => true)
		WHEN 'buried' THEN tq_bury(id, lease, 'reason')
		WHEN 'retried' THEN tq_bury(id, lease, 'reason')
		WHEN 'released' THEN tq_release(id, lease)
		WHEN 'cancelled' THEN tq_cancel(id)
		WHEN 'rescheduled' THEN tq_reschedule(id, clock_timestamp() + interval '1 hour')
	END;
	IF what = 'retried' THEN PERFORM tq_retry(id); END IF;
END
$$;

CREATE TABLE own_expected (state text PRIMARY KEY, cancel text, retry text, reschedule text);
INSERT INTO own_expected VALUES
	('new', 'cancelled', 'TQ005: it is ready', 'delayed'),
	('new_delayed', 'cancelled', 'ready', 'delayed'),
	('new_rescheduled', 'cancelled', 'ready', 'delayed'),
	('new_cancelled', 'TQ005: it is cancelled', 'ready', 'TQ005: it is cancelled'),
	('claimed', 'asked', 'TQ005: it is running', 'TQ005: it is running'),
	('asked', 'asked', 'TQ005: it is running', 'TQ005: it is running'),
	('completed', 'TQ005: it is succeeded', 'TQ005: it is succeeded', 'TQ005: it is succeeded'),
	('failed', 'cancelled', 'ready', 'delayed'),
	('released', 'cancelled', 'TQ005: it is ready', 'delayed'),
	('dead', 'TQ005: it is dead', 'ready', 'TQ005: it is dead'),
	('buried', 'TQ005: it is buried', 'ready', 'TQ005: it is buried'),
	('retried', 'cancelled', 'TQ005: it is ready', 'delayed'),
	('cancelled', 'TQ005: it is cancelled', 'ready', 'TQ005: it is cancelled'),
	('rescheduled', 'cancelled', 'ready', 'delayed');
-- two jobs for each pair, if they must exist before
CREATE TABLE own AS
	SELECT state, tq_enqueue('own_' || state) AS id, false AS used
	FROM own_expected, generate_series(1, 6) WHERE state NOT LIKE 'new%';

CREATE FUNCTION own_answer(what text, verb text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	j record;
	answer text;
	now_in text;
BEGIN
	SELECT * INTO j FROM bring(what);
	answer := attempt(verb, j.id, j.lease);
	now_in := state_of(j.id);
	IF answer !~ '^TQ' AND now_in <> (CASE answer WHEN 'asked' THEN 'running' ELSE answer END) THEN
		RETURN format('%s, but tq_get says %s', answer, now_in);
	END IF;
	INSERT INTO done VALUES (what, verb, j.id, now_in);
	RETURN answer;
END
$$;
CREATE TABLE done (state text, verb text, id bigint, now_in text);
SELECT is(own_answer(e.state, v.verb), to_jsonb(e) ->> v.verb, v.verb || ' of one''s own ' || e.state)
	FROM own_expected e, verbs v WHERE v.n > 5 ORDER BY e.state, v.n;
SELECT is(state_of(id), now_in, verb || ' of one''s own ' || state || ': the same after commit') FROM done ORDER BY state, verb;

CREATE FUNCTION own_taken_back(what text, verb text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	j record;
BEGIN
	SELECT * INTO j FROM bring(what);
	RETURN taken_back(verb, j.id, j.lease);
END
$$;
SELECT is(own_taken_back(e.state, v.verb), 'ok', v.verb || ' of one''s own ' || e.state || ' is taken back')
	FROM own_expected e, verbs v WHERE v.n > 5 ORDER BY e.state, v.n;

-- a transaction that rolls back as a whole has no effect
CREATE FUNCTION all_taken_back(what text, verb text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	j record;
BEGIN
	BEGIN
		SELECT * INTO j FROM bring(what);
		PERFORM attempt(verb, j.id, j.lease);
		RAISE EXCEPTION 'take it back';
	EXCEPTION WHEN raise_exception THEN
	END;
	-- the third rollback in a row of a claim delays the job by a second
	RETURN (SELECT CASE WHEN run_at < clock_timestamp() + interval '2 seconds' THEN 'ready' ELSE state END FROM tq_get(j.id));
EXCEPTION WHEN SQLSTATE 'TQ004' THEN
	RETURN 'none';
END
$$;
INSERT INTO own SELECT state, tq_enqueue('own_' || state), false
	FROM own_expected, generate_series(1, 3) WHERE state NOT LIKE 'new%';
SELECT is(all_taken_back(e.state, v.verb), CASE WHEN e.state LIKE 'new%' THEN 'none' ELSE 'ready' END,
		e.state || ', then ' || v.verb || ': all taken back')
	FROM own_expected e, verbs v WHERE v.n > 5 ORDER BY e.state, v.n;

-- ---- arguments

SELECT throws_ok('SELECT tq_cancel(NULL)', '22004', 'id must not be null');
SELECT throws_ok('SELECT tq_retry(NULL)', '22004', 'id must not be null');
SELECT throws_ok('SELECT tq_reschedule(NULL)', '22004', 'id must not be null');
SELECT throws_ok('SELECT tq_reschedule(1)', '22023', 'run_at or priority must be given');
SELECT throws_ok($$SELECT tq_reschedule(1, 'infinity')$$, '22023', 'run_at must be finite: infinity');
SELECT throws_ok('SELECT tq_reschedule(1, NULL, 40000)', '22023', 'priority is out of range: 40000');
SELECT throws_ok('SELECT * FROM tq_get(NULL)', '22004', 'id must not be null');
SELECT throws_ok('SELECT * FROM tq_get(9000000001)', 'TQ004', 'job 9000000001 does not exist');
SELECT throws_ok('SELECT * FROM tq_history(9000000001)', 'TQ004', 'job 9000000001 does not exist');
SELECT throws_ok('SELECT * FROM tq_heartbeat(1, NULL)', '22004', 'lease must not be null');
SELECT throws_ok($$SELECT * FROM tq_heartbeat(1, 1, '1 month')$$, '22023', 'extend must not contain months or years: 1 mon');
SELECT throws_ok($$SELECT * FROM tq_heartbeat(1, 1, '0 s')$$, '22023', 'extend is out of range: 00:00:00');
SELECT throws_ok('SELECT * FROM tq_heartbeat_many(ARRAY[1,2], ARRAY[1])', '22023', 'ids and leases must have the same length');
SELECT throws_ok('SELECT * FROM tq_heartbeat_many(ARRAY[1,NULL], ARRAY[1,1])', '22004', 'ids must not contain nulls');
SELECT throws_ok($$SELECT tq_retry_many('q_dead', 'succeeded')$$, '22023', 'jobs that are "succeeded" cannot be retried');
SELECT throws_ok($$SELECT tq_retry_many('q_dead', NULL)$$, '22004', 'state must not be null');
SELECT throws_ok($$SELECT tq_retry_many('no such queue')$$, 'TQ002', NULL, 'tq_retry_many reports a queue that does not exist');
SELECT throws_ok($$SELECT tq_retry_many('q_dead', max_jobs => 0)$$, '22023', 'max_jobs is out of range: 0');
SELECT throws_ok($$SELECT tq_retry_many('q_dead', 'delayed', to_queue => 'x')$$, '22023', 'delayed jobs cannot be copied to another queue');
BEGIN TRANSACTION READ ONLY;
SELECT throws_ok('SELECT tq_cancel(1)', '25006', NULL, 'tq_cancel is refused in a read-only transaction');
SELECT throws_ok('SELECT tq_retry(1)', '25006', NULL, 'tq_retry is refused in a read-only transaction');
SELECT throws_ok('SELECT tq_reschedule(1, now())', '25006', NULL, 'tq_reschedule is refused in a read-only transaction');
SELECT lives_ok('SELECT * FROM tq_heartbeat(1, 1)', 'a heartbeat writes nothing');
SELECT is((SELECT count(*)::int FROM jobs, tq_get(id) WHERE jobs.state = 'running'), 8, 'nor does tq_get');
COMMIT;

SELECT * FROM finish();
