-- Unique keys: each mode against a job in each state that may have the key; windows; many at once; savepoints.
SET client_min_messages = warning;
SET tq.cancel_grace = '1 h';

SELECT * FROM no_plan();

SELECT tq_create_queue('u');

\ir lib/until.sql

-- Brings a job with the key 'k' of a queue of its own into a state, and returns its id.
CREATE FUNCTION holder(q text, state text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	job bigint;
	held bigint;
BEGIN
	IF state = 'none' THEN
		RETURN NULL;
	END IF;
	job := tq_enqueue(q, '{"n": 1}', unique_key => 'k', delay => CASE WHEN state = 'delayed' THEN interval '1 hour' END,
		options => CASE WHEN state LIKE 'window%' THEN '{"unique_for": "1 hour"}'::jsonb END);
	IF state IN ('ready', 'delayed') THEN
		RETURN job;
	ELSIF state = 'cancelled' THEN
		PERFORM tq_cancel(job);
		RETURN job;
	END IF;
	RETURN job;
END
$$;
-- The same with commits, for states that need a claim.
CREATE FUNCTION advance(q text, job bigint, state text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	held bigint;
BEGIN
	IF state NOT IN ('running', 'asked', 'failed', 'released', 'succeeded', 'dead', 'buried', 'window_succeeded', 'window_running') THEN
		RETURN 'as it is';
	END IF;
	SELECT lease INTO held FROM tq_claim(q);
	RETURN CASE
		WHEN state LIKE '%succeeded' THEN tq_complete(job, held)
		WHEN state = 'dead' THEN tq_fail(job, held, 'error', fatal => true)
		WHEN state = 'failed' THEN tq_fail(job, held, 'error', retry_in => '1 hour')
		WHEN state = 'released' THEN tq_release(job, held, '1 hour')
		WHEN state = 'buried' THEN tq_bury(job, held, 'reason')
		WHEN state = 'asked' THEN tq_cancel(job)
		ELSE 'claimed' END;
END
$$;
CREATE FUNCTION attempt(q text, mode text, old bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	job bigint;
BEGIN
	job := tq_enqueue(q, '{"n": 2}', unique_key => 'k', unique_mode => mode);
	RETURN CASE WHEN job IS NULL THEN 'null' WHEN job = old THEN 'old' ELSE 'new' END;
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END
$$;

CREATE TABLE expected (state text PRIMARY KEY, skip text, skip_waiting text, ignore text, error text, replace text, replace_waiting text,
	keep_run_at text);
INSERT INTO expected VALUES
	('none', 'new', 'new', 'new', 'new', 'new', 'new', 'new'),
	('ready', 'old', 'old', 'null', 'TQ008', 'new', 'new', 'new'),
	('delayed', 'old', 'old', 'null', 'TQ008', 'new', 'new', 'new'),
	('failed', 'old', 'old', 'null', 'TQ008', 'new', 'new', 'new'),
	('released', 'old', 'old', 'null', 'TQ008', 'new', 'new', 'new'),
	('running', 'old', 'new', 'null', 'TQ008', 'old', 'new', 'old'),
	('asked', 'old', 'new', 'null', 'TQ008', 'old', 'new', 'old'),
	('succeeded', 'new', 'new', 'new', 'new', 'new', 'new', 'new'),
	('dead', 'new', 'new', 'new', 'new', 'new', 'new', 'new'),
	('buried', 'new', 'new', 'new', 'new', 'new', 'new', 'new'),
	('cancelled', 'new', 'new', 'new', 'new', 'new', 'new', 'new'),
	('window_succeeded', 'old', 'old', 'null', 'TQ008', 'old', 'old', 'old'),
	('window_running', 'old', 'old', 'null', 'TQ008', 'old', 'old', 'old'),
	('window_ready', 'old', 'old', 'null', 'TQ008', 'new', 'new', 'new');
CREATE TABLE tries AS
	SELECT state, mode, wanted, state || '_' || mode AS q, NULL::bigint AS old, NULL::text AS got, NULL::text AS rolled_back
	FROM expected, LATERAL (VALUES ('skip', skip), ('skip_waiting', skip_waiting), ('ignore', ignore), ('error', error), ('replace', replace),
		('replace_waiting', replace_waiting), ('keep_run_at', keep_run_at))
		AS m (mode, wanted);
SELECT format('UPDATE tries SET old = holder(q, state) WHERE mode = %L', m) FROM unnest('{skip,skip_waiting,ignore,error,replace,replace_waiting,keep_run_at}'::text[]) m \gexec
SELECT format('UPDATE tries SET got = advance(q, old, state) WHERE mode = %L', m) FROM unnest('{skip,skip_waiting,ignore,error,replace,replace_waiting,keep_run_at}'::text[]) m \gexec

-- first in a savepoint that is rolled back: nothing remains of it
CREATE FUNCTION undone(q text, mode text, old bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	before jsonb := (SELECT jsonb_build_array(job_id, until) FROM tq.unique_key k JOIN tq.queue n ON n.id = k.queue_id WHERE n.name = q);
	after jsonb;
BEGIN
	BEGIN
		answer := attempt(q, mode, old);
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	after := (SELECT jsonb_build_array(job_id, until) FROM tq.unique_key k JOIN tq.queue n ON n.id = k.queue_id WHERE n.name = q);
	RETURN CASE WHEN before IS DISTINCT FROM after THEN 'key changed' ELSE answer END;
END
$$;
CREATE TABLE before AS SELECT q, CASE WHEN old IS NOT NULL THEN (SELECT state FROM tq_get(old)) END AS state FROM tries;
SELECT format('UPDATE tries SET rolled_back = undone(q, mode, old) WHERE mode = %L', m) FROM unnest('{skip,skip_waiting,ignore,error,replace,replace_waiting,keep_run_at}'::text[]) m \gexec
SELECT is(rolled_back, wanted, format('%s meets %s, in a savepoint', mode, state)) FROM tries ORDER BY q;
SELECT is((SELECT count(*) FROM tries t JOIN before b USING (q) WHERE t.old IS NOT NULL AND b.state IS DISTINCT FROM (SELECT g.state FROM tq_get(t.old) g)), 0::bigint,
	'which leaves every job as it was');
SELECT format('UPDATE tries SET got = attempt(q, mode, old) WHERE mode = %L', m) FROM unnest('{skip,skip_waiting,ignore,error,replace,replace_waiting,keep_run_at}'::text[]) m \gexec
SELECT is(got, wanted, format('%s meets %s', mode, state)) FROM tries ORDER BY q;

-- the state of the old job, and the origin of the new one
SELECT is((SELECT g.state FROM tq_get(t.old) g), 'cancelled', 'is cancelled: ' || q)
	FROM tries t WHERE mode IN ('replace', 'replace_waiting', 'keep_run_at') AND wanted = 'new' AND state IN ('ready', 'delayed', 'failed', 'released', 'window_ready');
SELECT is((SELECT h.reason FROM tq_history(t.old) h WHERE h.event = 'cancelled'), format('replaced by job %s', n.id), 'says by whom: ' || q)
	FROM tries t JOIN tq_jobs n ON n.queue = t.q AND n.id <> t.old
	WHERE mode IN ('replace', 'replace_waiting', 'keep_run_at') AND t.state IN ('ready', 'delayed', 'failed', 'released', 'window_ready');
SELECT is((SELECT g.origin FROM tq_get(n.id) g), t.old, 'knows its origin: ' || q)
	FROM tries t JOIN tq_jobs n ON n.queue = t.q AND n.id <> t.old
	WHERE mode IN ('replace', 'replace_waiting', 'keep_run_at') AND t.state IN ('ready', 'delayed', 'failed', 'released', 'window_ready');
SELECT is((SELECT g.state FROM tq_get(n.id) g), CASE WHEN t.mode = 'keep_run_at' AND t.state <> 'ready' THEN 'delayed' ELSE 'ready' END,
		'has the time it should have: ' || q)
	FROM tries t JOIN tq_jobs n ON n.queue = t.q AND n.id <> t.old WHERE mode IN ('replace', 'replace_waiting', 'keep_run_at') AND t.state IN ('ready', 'delayed', 'failed');
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = t.q AND state IN ('ready', 'delayed', 'running')), CASE WHEN state = 'window_succeeded' THEN 0 WHEN state IN ('running', 'asked') AND mode LIKE '%waiting' THEN 2 ELSE 1 END::bigint,
		'no two live jobs, but one beside a running one with skip_waiting and replace_waiting: ' || q)
	FROM tries t;

-- ---- within one transaction

BEGIN;
SELECT tq_enqueue('u', '1', unique_key => 'own') AS one \gset
SELECT is(tq_enqueue('u', '2', unique_key => 'own'), :one::bigint, 'a job of this transaction has its key');
SELECT is(tq_enqueue('u', '2', unique_key => 'own', unique_mode => 'ignore'), NULL, 'null for ignore');
SELECT tq_enqueue('u', '2', unique_key => 'own', unique_mode => 'replace') AS two \gset
SELECT isnt(:two::bigint, :one::bigint, 'it can be replaced');
SELECT throws_ok(format('SELECT tq_retry(%s)', :one), 'TQ008', NULL, 'and not be brought back then');
SELECT is(tq_cancel(:two), 'cancelled', 'unless the other one goes');
SELECT is(tq_retry(:one), 'ready', 'and then it can');
SELECT is(tq_enqueue('u', '3', unique_key => 'own'), :one::bigint, 'and has its key again');
COMMIT;
SELECT is((SELECT array_agg(id) FROM tq_claim('u', 10)), ARRAY[:one]::bigint[], 'that is the one that runs');
SELECT lease FROM tq_running WHERE id = :one \gset
BEGIN;
SELECT tq_complete(:one, :lease) \g /dev/null
SELECT tq_enqueue('u', '4', unique_key => 'own') AS three \gset
SELECT isnt(:three::bigint, :one::bigint, 'who has completed a job can enqueue the next one at once');
COMMIT;
SELECT is((SELECT array_agg(id) FROM tq_jobs WHERE queue = 'u' AND state = 'ready'), ARRAY[:three]::bigint[], 'and there it is');
SELECT is(tq_enqueue('other', '4', unique_key => 'own') > :three::bigint, true, 'another queue has keys of its own');

-- ---- many at once

SELECT tq_enqueue('m', unique_key => 'b') AS b \gset
SELECT tq_enqueue_many('m', ARRAY['1', '2', '3', '4', '5']::jsonb[], unique_keys => ARRAY['c', 'b', NULL, 'a', 'c']) AS ids \gset
SELECT is((:'ids'::bigint[])[2], :b::bigint, 'each item has its answer');
SELECT is((:'ids'::bigint[])[5], (:'ids'::bigint[])[1], 'also one that meets an item of its own call');
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'm'), 4::bigint, 'four of six');
SELECT is((SELECT array_agg(id ORDER BY id) FROM tq_jobs WHERE queue = 'm' AND id <> :b::bigint),
	ARRAY[(:'ids'::bigint[])[1], (:'ids'::bigint[])[3], (:'ids'::bigint[])[4]], 'in the order of the input');
SELECT is((tq_enqueue_many('m', ARRAY['1', '2']::jsonb[], unique_mode => 'ignore', unique_keys => ARRAY['b', 'd']))[1], NULL, 'null in the array for ignore');
SELECT throws_ok($$SELECT tq_enqueue_many('m', ARRAY['1', '2']::jsonb[], unique_mode => 'error', unique_keys => ARRAY['x', 'x'])$$, 'TQ008', NULL,
	'error within one call');
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'm'), 5::bigint, 'which leaves nothing');
SELECT tq_enqueue_many('m', ARRAY['1', '2', '3']::jsonb[], unique_mode => 'replace', unique_keys => ARRAY['y', 'y', 'y']) AS ids \gset
SELECT results_eq(format('SELECT state FROM unnest(%L::bigint[]) WITH ORDINALITY i (id, n), tq_get(i.id) ORDER BY n', :'ids'),
	$$VALUES ('cancelled'), ('cancelled'), ('ready')$$, 'the last one of a call replaces the others');
SELECT is(cardinality(array_remove(tq_enqueue_many('bulk', array_agg(to_jsonb(n)), unique_keys => array_agg('key ' || n % 2500)), NULL)), 5000, 'many of them')
	FROM generate_series(1, 5000) n;
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'bulk'), 2500::bigint, 'each key once');
BEGIN;
SELECT count(tq_enqueue('bulk', unique_key => 'single ' || n % 1500)) FROM generate_series(1, 3000) n \g /dev/null
SELECT is((SELECT count(DISTINCT tq_enqueue('bulk', unique_key => 'single ' || n, unique_mode => 'skip')) FROM generate_series(1, 1499) n), 1499::bigint,
	'those of a transaction too large to be kept job by job are found as well');
COMMIT;
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'bulk'), 4000::bigint, 'each key once');

-- ---- windows, and where they come from

SELECT tq_create_queue('w', '{"unique_for": "1 hour"}');
-- Ends the next job of a queue after it was started.
CREATE FUNCTION bury(q text) RETURNS text LANGUAGE sql AS $$SELECT tq_bury(id, lease, 'x') FROM tq_claim(q)$$;
SELECT tq_enqueue('w', unique_key => 'k') AS job \gset
SELECT bury('w') \g /dev/null
SELECT is(tq_enqueue('w', unique_key => 'k'), :job::bigint, 'the queue''s window');
SELECT throws_like($$SELECT tq_enqueue('w', unique_key => 'k', unique_mode => 'error')$$, 'unique key "k" is taken in queue "w"', 'an error names key and queue');
SELECT is(tq_retry(:job), 'ready', 'a job''s own window does not stop its retry');
SELECT tq_enqueue('w', unique_key => 'l', options => '{"unique_for": "0"}') AS job \gset
SELECT is(tq_complete(id, lease), 'succeeded', 'both run') FROM tq_claim('w', 2);
SELECT isnt(tq_enqueue('w', unique_key => 'l'), :job::bigint, 'the job''s own wins');
SET tq.unique_for = '1h';
SELECT tq_enqueue('u2', unique_key => 'server') AS job \gset
SELECT bury('u2') \g /dev/null
SELECT is(tq_enqueue('u2', unique_key => 'server'), :job::bigint, 'the server''s window');
RESET tq.unique_for;

-- ---- a window ends with a job that was never started

SELECT tq_create_queue('n', '{"unique_for": "1 hour"}');
CREATE FUNCTION again(old bigint, key text DEFAULT 'k') RETURNS boolean LANGUAGE sql AS
	$$SELECT tq_enqueue('n', unique_key => key) IS DISTINCT FROM old$$;
SELECT tq_enqueue('n', unique_key => 'k') AS job \gset
SELECT tq_cancel(:job) \g /dev/null
SELECT ok(again(:job), 'a cancelled job frees its key');
SELECT max(id) AS job FROM tq_jobs WHERE queue = 'n' \gset
SELECT tq_purge('n', 'ready') \g /dev/null
SELECT ok(again(:job), 'a purged one, too');
SELECT max(id) AS job FROM tq_jobs WHERE queue = 'n' \gset
SELECT tq_cancel(:job), tq_purge('n', 'cancelled') \g /dev/null
SELECT ok(again(:job), 'and one that is purged after it was cancelled');
SELECT tq_enqueue('n', unique_key => 'late', expires_at => clock_timestamp() + interval '1 ms') AS job \gset
CALL until($$SELECT expired = 1 FROM tq_stats() WHERE queue = 'n'$$);
SELECT ok(again(:job, 'late'), 'an expired one, too');
SELECT tq_purge('n', 'all') \g /dev/null
BEGIN;
SELECT tq_enqueue('n', unique_key => 'own') AS job \gset
SELECT tq_cancel(:job) \g /dev/null
SELECT ok(again(:job, 'own'), 'in the transaction that enqueued and cancelled it');
ROLLBACK;
SELECT tq_enqueue('n', unique_key => 'ran') AS job \gset
BEGIN;
SELECT tq_cancel(:job) \g /dev/null
SELECT ok(again(:job, 'ran'), 'in the transaction that cancelled it');
ROLLBACK;
SELECT ok(NOT again(:job, 'ran'), 'not after its rollback');
SELECT id, lease FROM tq_claim('n') \gset
SELECT tq_release(:job, :lease, '1 h') \g /dev/null
SELECT tq_cancel(:job) \g /dev/null
SELECT ok(NOT again(:job, 'ran'), 'a released job was started');

-- ---- tq_find, tq_free_key

SELECT is(tq_find('n', 'ran'), :job::bigint, 'tq_find finds a job that keeps its key');
SELECT throws_like($$SELECT tq_enqueue('n', unique_key => 'ran', unique_mode => 'error')$$, 'unique key "ran" is taken%', 'its key is taken');
BEGIN;
SELECT ok(tq_free_key('n', 'ran'), 'tq_free_key frees it');
SELECT ok(again(:job, 'ran'), 'another job gets it');
ROLLBACK;
SELECT is(tq_find('n', 'ran'), :job::bigint, 'a rollback undoes this');
SELECT ok(tq_free_key('n', 'ran'), 'freed');
SELECT is(tq_find('n', 'ran'), NULL, 'no job has it');
SELECT ok(NOT tq_free_key('n', 'ran'), 'it is free already');
SELECT is(array_agg(detail), ARRAY[jsonb_build_object('unique_key', 'ran')], 'tq_audit shows who freed it') FROM tq_audit WHERE action = 'free_key';
SELECT is(tq_retry(:job), 'ready', 'the job can be retried');
SELECT is(tq_find('n', 'ran'), :job::bigint, 'and has its key');
SELECT throws_ok($$SELECT tq_free_key('n', 'ran')$$, 'TQ008', NULL, 'which cannot be freed while it is live');
SELECT is(tq_find('n', 'none'), NULL, 'nobody has a key that was never used');
SELECT throws_ok($$SELECT tq_find('none', 'k')$$, 'TQ002', NULL, 'in a queue that exists');
BEGIN;
SELECT tq_enqueue('n', unique_key => 'mine') AS mine \gset
SELECT is(tq_find('n', 'mine'), :mine::bigint, 'a job of this transaction');
ROLLBACK;

-- ---- retry

SELECT tq_enqueue('r', unique_key => 'k') AS one \gset
SELECT tq_cancel(:one) \g /dev/null
SELECT tq_enqueue('r', unique_key => 'k') AS two \gset
SELECT throws_ok(format('SELECT tq_retry(%s)', :one), 'TQ008', format('job %s cannot be retried: its unique key is taken', :one::bigint), 'tq_retry finds its key taken');
SELECT is(tq_retry_many('r', 'cancelled'), 0::bigint, 'tq_retry_many leaves such a job');
SELECT tq_cancel(:two) \g /dev/null
SELECT is(tq_retry_many('r', 'cancelled'), 1::bigint, 'and brings back one of two');
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'r' AND state = 'ready'), 1::bigint, 'never both');

-- ---- expired

CREATE FUNCTION clock(wall bigint, mono bigint) RETURNS void LANGUAGE c STRICT AS '$libdir/tq', 'tq_test_clock';
SELECT tq_enqueue('late', '1', unique_key => 'k', expires_at => clock_timestamp() + interval '1 h') AS job \gset
SELECT is(tq_enqueue('late', '2', unique_key => 'k'), :job::bigint, 'a job that can still be started has its key');
SELECT clock(7200000000, 0);
CALL until($$SELECT expired = 1 FROM tq_stats() WHERE queue = 'late'$$);
SELECT isnt(tq_enqueue('late', '2', unique_key => 'k'), :job::bigint, 'one that nobody has started in time has none');
SELECT clock(0, 0);

SELECT tq_enqueue('late', '3', unique_key => 'l', expires_at => clock_timestamp() + interval '1 ms') AS job \gset
CALL until($$SELECT expired = 2 FROM tq_stats() WHERE queue = 'late'$$); -- the history has it earlier, when the scheduler still holds the job
BEGIN;
SELECT is(tq_retry(:job), 'ready', 'an expired job can be retried');
SELECT is(tq_enqueue('late', '4', unique_key => 'l'), :job::bigint, 'and has its key again, in this transaction');
COMMIT;
SELECT is(tq_enqueue('late', '4', unique_key => 'l'), :job::bigint, 'and after it');

-- ---- a full queue

SELECT tq_create_queue('full', '{"max_depth": 2, "enqueue_rate": "1000/s"}');
SELECT tq_enqueue('full', unique_key => 'k') AS job \gset
SELECT tq_enqueue('full') \g /dev/null
SELECT is(tq_enqueue('full', unique_key => 'k'), :job::bigint, 'a duplicate needs no room');
SELECT throws_ok($$SELECT tq_enqueue('full', unique_key => 'l')$$, 'TQ003', NULL, 'another key does');
SELECT is((SELECT count(*) FROM tq.unique_key WHERE key = 'l' AND queue_id = (SELECT id FROM tq.queue WHERE name = 'full')), 0::bigint, 'and is not taken then');
SELECT ok(tq_enqueue('full', unique_key => 'k', unique_mode => 'replace') > :job, 'who takes the place of another one needs none');
SELECT throws_ok($$SELECT tq_enqueue('full')$$, 'TQ003', NULL, 'and leaves none');
BEGIN;
SELECT count(tq_enqueue('full', unique_key => 'k', unique_mode => 'replace')) FROM generate_series(1, 5) \g /dev/null
ROLLBACK;
SELECT is(cardinality(tq_enqueue_many('full', ARRAY['1', '2', '3']::jsonb[], unique_mode => 'replace', unique_keys => ARRAY['k', 'k', 'k'])), 3, 'nor do many');
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'full' AND state = 'ready'), 2::bigint, 'the queue is as long as before');

-- ---- beside a running job

CREATE FUNCTION beside(payload jsonb, OUT id bigint, OUT outcome text) LANGUAGE sql AS
	$$SELECT * FROM tq_enqueue_info('beside', payload, unique_key => 'k', unique_mode => 'skip_waiting')$$;
CREATE FUNCTION ends(job bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	WHILE (SELECT state IN ('ready', 'delayed', 'running') FROM tq_get(job)) LOOP
		PERFORM pg_sleep(0.01); -- poll
	END LOOP;
	RETURN (SELECT state FROM tq_get(job));
END
$$;
SELECT id AS one, outcome FROM beside('1') \gset
SELECT is(:'outcome'::text, 'created', 'the first job is created');
SELECT is(beside('2')::text, format('(%s,skipped)', :one::bigint), 'it waits, so the second is skipped');
SELECT id, lease FROM tq_claim('beside') \gset
SELECT id AS two, outcome FROM beside('3') \gset
SELECT is(:'outcome'::text, 'created', 'it runs, so the third is created');
SELECT is(beside('4')::text, format('(%s,skipped)', :two::bigint), 'which waits');
SELECT is((SELECT action FROM tq_heartbeat(:one, :lease)), 'run', 'the running job is not disturbed');
SELECT ok(tq_explain(:one) ~ 'It was superseded, and gets no further attempt', 'and explained');
SELECT is((SELECT reason FROM tq_history(:one) WHERE event = 'superseded'), format('superseded by job %s', :two::bigint), 'its history names the newer job');
SELECT is(tq_enqueue('beside', '5', unique_key => 'k'), :two::bigint, 'the other modes meet the waiting job');
SELECT id AS three, outcome FROM tq_enqueue_info('beside', '6', unique_key => 'k', unique_mode => 'replace') \gset
SELECT is(:'outcome'::text, 'replaced', 'and replace it');
SELECT is(tq_enqueue_info('beside', '7', unique_key => 'k', unique_mode => 'ignore')::text, '(,skipped)', 'ignored, without an id');
SELECT id, lease AS lease3 FROM tq_claim('beside') \gset
SELECT id AS four, outcome FROM beside('8') \gset
SELECT is(:'outcome'::text, 'created', 'two of them may run, if no group prevents it');
SELECT is(tq_fail(:one, :lease, 'x'), 'cancelled', 'the older ones get no further attempt');
SELECT is(tq_fail(:three, :lease3, 'x'), 'cancelled', 'none of them');
SELECT throws_ok(format('SELECT tq_retry(%s)', :one), 'TQ008', NULL, 'nor may they be retried');
SELECT is((SELECT array_agg(id) FROM tq_jobs WHERE queue = 'beside' AND state IN ('ready', 'delayed', 'running')), ARRAY[:four]::bigint[], 'one waits');
SELECT id, lease FROM tq_claim('beside', worker => 'w', bind_worker => true) \gset
SELECT id AS five FROM beside('9') \gset
SELECT tq_release_worker('w') \g /dev/null
SELECT is(ends(:four), 'cancelled', 'also if the lease is lost');
SELECT is(tq_cancel(:five), 'cancelled', 'when the newest has ended');
SELECT is(tq_retry(:four), 'ready', 'an older one can be retried');
SELECT id, lease FROM tq_claim('beside') \gset
SELECT is(tq_fail(:four, :lease, 'x', retry_in => '1 h'), 'delayed', 'and is not superseded in its new life');
SELECT is(beside('9')::text, format('(%s,skipped)', :four::bigint), 'it waits');
SELECT is(array_agg(i.outcome), '{skipped,created,skipped,created}'::text[], 'many')
	FROM tq_enqueue_many_info('beside', array_fill('{}'::jsonb, '{4}'), unique_mode => 'skip_waiting', unique_keys => '{k,l,l,NULL}') i;
SELECT is((SELECT i.id FROM tq_enqueue_many_info('beside', '{1}', unique_mode => 'skip_waiting', unique_keys => '{k}') i), :four::bigint, 'with ids');
SELECT is(sum(found), 0::numeric, 'memory and journal agree') FROM tq_check() WHERE expected >= 0;

-- ---- beside a running job, with the last payload

CREATE FUNCTION latest(payload jsonb, OUT id bigint, OUT outcome text) LANGUAGE sql AS
	$$SELECT * FROM tq_enqueue_info('latest', payload, unique_key => 'k', unique_mode => 'replace_waiting')$$;
SELECT id AS one, outcome FROM latest('1') \gset
SELECT is(:'outcome'::text, 'created', 'a first job is created');
SELECT id AS two, outcome FROM latest('2') \gset
SELECT is(:'outcome'::text, 'replaced', 'it waits, so the second replaces it');
SELECT id, lease, payload FROM tq_claim('latest') \gset
SELECT is(:'payload'::text, '2', 'the second runs');
SELECT id AS three, outcome FROM latest('3') \gset
SELECT is(:'outcome'::text, 'created', 'it runs, so the third is created');
SELECT tq_enqueue('after', depends_on => ARRAY[:three]::bigint[]) AS child \gset
SELECT tq_batch_open('after') AS batch \gset
SELECT is(i.id, :three::bigint, 'the waiting job joins a batch')
	FROM tq_enqueue_info('latest', unique_key => 'k', options => jsonb_build_object('batch', :batch)) i;
SELECT tq_batch_close(:batch) \g /dev/null
BEGIN;
SELECT is((latest('4')).outcome, 'replaced', 'it waits, so the fourth replaces it');
ROLLBACK;
SELECT is(tq_find('latest', 'k'), :three::bigint, 'a rollback undoes this');
SELECT id AS four, outcome FROM latest('4') \gset
SELECT is(:'outcome'::text, 'replaced', 'a commit does not');
SELECT is((SELECT state FROM tq_get(:three)), 'cancelled', 'the third is cancelled');
SELECT format('SELECT count(*) = 0 FROM tq.dependency WHERE parent_id = %s', :three) AS exchanged \gset
CALL until(:'exchanged'); -- a worker does it after the commit
SELECT is((SELECT array_agg(parent_id) FROM tq.dependency WHERE child_id = :child), ARRAY[:four]::bigint[], 'its child waits for the fourth');
SELECT is((SELECT array_agg(parent_id) FROM tq.dependency WHERE child_id = :batch AND parent_id > 0), ARRAY[:four]::bigint[], 'and its batch does');
SELECT is((SELECT action FROM tq_heartbeat(:two, :lease)), 'run', 'the running job is not disturbed');
SELECT is(array_agg(i.outcome), '{replaced,replaced,created}'::text[], 'many: the last one of a key waits')
	FROM tq_enqueue_many_info('latest', '{5,6,7}', unique_mode => 'replace_waiting', unique_keys => '{k,k,l}') i;
SELECT is(tq_complete(:two, :lease), 'succeeded', 'the running job succeeds');
SELECT results_eq($$SELECT payload::int FROM tq_claim('latest', 10) ORDER BY 1$$, 'VALUES (6), (7)', 'the last payload of each key is left');
SELECT is(sum(found), 0::numeric, 'memory and journal agree') FROM tq_check() WHERE expected >= 0;

-- ---- enqueued by COPY

COPY tq_inbox (queue, payload, unique_key, unique_mode) FROM stdin;
inbox	1	k	skip
inbox	2	k	skip
inbox	3	k	replace
inbox	4	k	replace_waiting
\.
SELECT results_eq($$SELECT payload::int FROM tq_claim('inbox', 10)$$, 'SELECT 4', 'COPY into tq_inbox');

SELECT * FROM finish();
