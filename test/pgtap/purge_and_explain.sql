-- Purges jobs of every state by every argument, and undoes a purge by a savepoint. The text of tq_explain for every
-- state and role. The calls that are left for a purged job.
SET client_min_messages = warning;

SELECT * FROM no_plan();

\ir lib/until.sql

CREATE TABLE states (state text PRIMARY KEY, n int);
INSERT INTO states VALUES ('ready', 1), ('delayed', 2), ('running', 3), ('succeeded', 4), ('dead', 5), ('buried', 6), ('cancelled', 7),
	('expired', 8), ('failed', 9), ('released', 10), ('rescheduled', 11), ('retried', 12);

-- A job of each state in a queue of its own; some states are reached in several ways.
CREATE TABLE jobs AS SELECT state, n, tq_enqueue('p_' || state, '{"secret": 1}', group_key => 'secret',
		delay => CASE WHEN state = 'delayed' THEN interval '1 hour' END,
		expires_at => CASE WHEN state = 'expired' THEN clock_timestamp() - interval '1 second' END) AS id, 0::bigint AS lease
	FROM states ORDER BY n;
CALL until($$SELECT expired = 1 FROM tq_stats() WHERE queue = 'p_expired'$$); -- or the scheduler ends it during a purge
UPDATE jobs j SET lease = c.lease FROM states s, tq_claim('p_' || s.state, worker => 'w') c
	WHERE c.id = j.id AND s.state IN ('running', 'succeeded', 'dead', 'buried', 'failed', 'released', 'retried');
SELECT ok(bool_and(CASE state
		WHEN 'succeeded' THEN tq_complete(id, lease) = 'succeeded'
		WHEN 'dead' THEN tq_fail(id, lease, 'secret error', fatal => true) = 'dead'
		WHEN 'buried' THEN tq_bury(id, lease, 'secret reason') = 'buried'
		WHEN 'retried' THEN tq_bury(id, lease, 'secret reason') = 'buried'
		WHEN 'failed' THEN tq_fail(id, lease, 'secret error', retry_in => '1 hour') = 'delayed'
		WHEN 'released' THEN tq_release(id, lease, '1 hour') = 'delayed'
		WHEN 'cancelled' THEN tq_cancel(id, 'secret reason') = 'cancelled'
		WHEN 'rescheduled' THEN tq_reschedule(id, clock_timestamp() + interval '1 hour', 7) = 'delayed'
		ELSE true END), 'the jobs are where they should be') FROM jobs;
SELECT is(tq_retry(id), 'ready', 'one has a second life') FROM jobs WHERE state = 'retried';
CREATE FUNCTION is_in(what text) RETURNS text LANGUAGE sql AS
	$$SELECT CASE WHEN what IN ('failed', 'released', 'rescheduled') THEN 'delayed' WHEN what = 'retried' THEN 'ready' ELSE what END$$;
SELECT is(g.state, is_in(j.state), 'a job that was ' || j.state) FROM jobs j, tq_get(j.id) g ORDER BY n;

-- ---- purged jobs

CREATE FUNCTION purged(queue text, what text, job bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
	before jsonb := to_jsonb(g) - 'lease_expires_at' FROM tq_get(job) g;
	live bigint := s.live FROM tq_stats() s WHERE s.queue = purged.queue;
	answer text;
BEGIN
	BEGIN
		n := tq_purge(queue, what);
		answer := n || ' ' || (SELECT state FROM tq_get(job)) || ' ' || (SELECT count(*) FROM tq_jobs WHERE id = job);
		RAISE EXCEPTION 'take it back';
	EXCEPTION WHEN raise_exception THEN
	END;
	IF before <> (SELECT to_jsonb(g) - 'lease_expires_at' FROM tq_get(job) g) OR live <> (SELECT s.live FROM tq_stats() s WHERE s.queue = purged.queue) THEN
		RETURN answer || ', and stays so';
	END IF;
	RETURN answer;
END
$$;
SELECT is(purged('p_' || j.state, w.what, j.id),
		CASE WHEN w.what IN (is_in(j.state), 'all') AND j.state <> 'running' THEN '1 purged 0' ELSE '0 ' || is_in(j.state) || ' 1' END,
		'purge of ' || w.what || ' where one is ' || j.state)
	FROM jobs j, unnest(ARRAY['ready', 'delayed', 'succeeded', 'dead', 'buried', 'cancelled', 'expired', 'all']) w (what) ORDER BY j.n, w.what;

-- ---- why a job does not run

CREATE TABLE sentences (state text PRIMARY KEY, sentence text);
INSERT INTO sentences VALUES
	('ready', 'is ready, but no worker has asked'),
	('delayed', 'waits until .*that is when it was to start'),
	('running', 'is running by worker "w": attempt 1 began'),
	('succeeded', 'has succeeded: attempt 1 was completed by worker "w"'),
	('dead', 'has been dead since .*: attempt 1 by worker "w" was its last \("secret error"\)'),
	('buried', 'was buried by worker "w" at .*\("secret reason"\)'),
	('cancelled', 'was cancelled at .*\("secret reason"\)'),
	('expired', 'expired?: no worker started it'),
	('failed', 'waits until .*: attempt 1 by worker "w" failed \("secret error"\)'),
	('released', 'waits until .*: it was released by worker "w"'),
	('rescheduled', 'waits until .*: it was rescheduled'),
	('retried', 'is ready');
SELECT alike(tq_explain(id), 'Job ' || id || ' %', 'a sentence about a job that is ' || state) FROM jobs ORDER BY n;
SELECT matches(tq_explain(j.id), s.sentence, 'why it does not run: it is ' || state) FROM jobs j JOIN sentences s USING (state) ORDER BY n;
-- names and group keys are quoted in the SQL that it suggests
SELECT tq_enqueue('it''s', group_key => 'a''b') AS quoted \gset
SELECT tq_pause('it''s', group_key => 'a''b');
SELECT alike(tq_explain(:quoted), $$%tq_resume('it''s', group_key => 'a''b') ends that.$$, 'a paused group with a quote');
SELECT tq_resume('it''s', group_key => 'a''b'), tq_pause('it''s');
SELECT alike(tq_explain(:quoted), $$%tq_resume('it''s') ends that.$$, 'a paused queue with a quote');
SELECT tq_purge('it''s', 'all');
-- it reveals nothing without a right
CREATE ROLE p_manager;
CREATE ROLE p_nobody;
SELECT tq_grant('*', 'p_manager', 'manage');
GRANT SELECT ON jobs TO p_manager, p_nobody;
SET ROLE p_manager;
SELECT unalike(tq_explain(id), '%secret%', 'nothing of what is in it for whoever may not see that: ' || state) FROM jobs ORDER BY n;
SELECT is(count(*), 0::bigint, 'nor among the dead letters') FROM tq_dead WHERE reason ~ 'secret' OR last_error ~ 'secret' OR detail IS NOT NULL;
SET ROLE p_nobody;
SELECT throws_ok(format('SELECT tq_explain(%s)', id), 'TQ004', NULL, 'for whoever may see nothing there is none that is ' || state) FROM jobs ORDER BY n;
SELECT throws_ok($$SELECT tq_purge('p_ready', 'all')$$, '42501', NULL, 'a role without rights cannot purge');
RESET ROLE;
DROP OWNED BY p_manager, p_nobody;
SELECT tq_revoke('*', 'p_manager', 'manage');
DROP ROLE p_manager, p_nobody;

-- ---- afterwards

SELECT is(tq_purge('p_' || state, 'all'), (state <> 'running')::int::bigint, 'all of ' || state) FROM jobs ORDER BY n;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END
$$;
SELECT is(attempt(format(v.statement, id, lease)), v.answer, format('%s, once %s', v.statement, state))
	FROM jobs, (VALUES ('SELECT tq_cancel(%s)', 'TQ005'), ('SELECT tq_retry(%s)', 'TQ005'), ('SELECT tq_reschedule(%s, now())', 'TQ005'),
		('SELECT tq_complete(%s, %s)', 'TQ001'), ('SELECT tq_fail(%s, %s, ''x'')', 'TQ001'), ('SELECT state FROM tq_get(%s)', 'purged')) v (statement, answer)
	WHERE state <> 'running' AND lease > 0 OR v.statement !~ 'lease' AND state NOT IN ('running') AND v.answer <> 'TQ001' ORDER BY n, v.statement;
SELECT is(sum(tq_purge('p_' || state, 'all')), 0::numeric, 'once is enough') FROM states;
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue ~ '^p_' AND state <> 'running'), 0::bigint, 'nothing is left in sight');
SELECT is(count(*), 0::bigint, 'nor to be claimed') FROM states s, tq_claim('p_' || s.state, 100);
SELECT is(tq_complete(id, lease), 'succeeded', 'what ran was left alone') FROM jobs WHERE state = 'running';
SELECT is((SELECT live FROM tq_stats() s WHERE s.queue = 'p_' || j.state), 0::bigint, 'nothing lives in the queue of ' || state) FROM jobs j ORDER BY n;
SELECT is(item || ': ' || found, item || ': ' || expected, 'memory and journal agree on ' || item) FROM tq_check() WHERE expected IS NOT NULL;

-- ---- arguments

SELECT throws_ok($$SELECT tq_purge(NULL, 'all')$$, '22004', 'queue must not be null');
SELECT throws_ok($$SELECT tq_purge('p_ready', NULL)$$, '22004', 'state must not be null');
SELECT throws_ok(format('SELECT tq_purge(%L, %L)', 'p_ready', s), '22023', NULL, 'no such state: ' || s)
	FROM unnest(ARRAY['', 'running', 'purged', 'moved', 'Ready', 'ALL', 'ready,dead', '*']) s;
SELECT throws_ok($$SELECT tq_purge('p_nowhere', 'all')$$, 'TQ002', NULL, 'tq_purge reports a queue that does not exist');
SELECT is((SELECT count(*) FROM tq_queues WHERE queue = 'p_nowhere'), 0::bigint, 'and it is not made');
SELECT throws_ok('SELECT tq_explain(NULL)', '22004', 'id must not be null');
SELECT throws_ok(format('SELECT tq_explain(%s)', id), 'TQ004', NULL, 'job ' || id || ' does not exist')
	FROM unnest(ARRAY[0, -1, 9007199254740993, 9223372036854775807]) id;
BEGIN TRANSACTION READ ONLY;
SELECT throws_ok($$SELECT tq_purge('p_ready', 'all')$$, '25006', NULL, 'tq_purge is refused in a read-only transaction');
SELECT alike(tq_explain(id), 'Job %', 'explaining writes nothing') FROM jobs WHERE state = 'ready';
ROLLBACK;
SELECT throws_ok($$SELECT tq_retry_many('p_ready', 'purged')$$, '22023', 'jobs that are "purged" cannot be retried');
SELECT throws_ok($$SELECT tq_retry_many('p_ready', 'purged', to_queue => 'p_dead')$$, '22023', 'jobs that are "purged" cannot be retried');

SELECT * FROM finish();
