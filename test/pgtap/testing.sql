-- What tests of applications use: claims of own jobs, tq_reset, tq_enqueued, tq_set_now, and the assertions in examples/pgtap.
SET client_min_messages = warning;
SET tq.max_pinned_wait = '1 h';

SELECT * FROM no_plan();
\ir ../../examples/pgtap/tq_assertions.sql

SELECT tq_create_queue('work');
CREATE ROLE t_user;
CREATE FUNCTION clock(wall bigint, mono bigint) RETURNS void LANGUAGE c STRICT AS '$libdir/tq', 'tq_test_clock';

-- ---- claims of jobs that the same transaction has enqueued

BEGIN;
SELECT tq_enqueue('work', '{"n": 1}', kind => 'a');
SELECT is((SELECT count(*)::int FROM tq_claim('work')), 0, 'a claim does not see jobs of its transaction');
SET LOCAL tq.claim_own = on;
SELECT tq_enqueue('work', '{"n": 2}', kind => 'b', priority => 1);
SELECT tq_enqueue('work', '{"n": 3}', kind => 'a', delay => '1 h');
SELECT results_eq($$SELECT (payload ->> 'n')::int FROM tq_claim('work')$$, ARRAY[2], 'with tq.claim_own it does, by priority');
SELECT results_eq($$SELECT (payload ->> 'n')::int FROM tq_claim('work', 10, kinds => '{a}')$$, ARRAY[1], '... and by kind; a delayed job waits');
SELECT is((SELECT count(*)::int FROM tq_claim('work', 10)), 0, '... each once');
ROLLBACK;
SELECT is((SELECT live FROM tq_stats() WHERE queue = 'work'), 0::bigint, 'a rollback leaves nothing');
SELECT is((SELECT sum(abs(expected - found)) FROM tq_check() WHERE expected >= 0), 0::numeric, '... and memory agrees with the journal');

-- the whole life of a job in a transaction that rolls back, and in one that commits
CREATE FUNCTION life(OUT states text) LANGUAGE plpgsql AS $$
DECLARE
	j record;
	id bigint;
BEGIN
	PERFORM set_config('tq.claim_own', 'on', true);
	PERFORM tq_enqueue('work', jsonb_build_object('n', i), unique_key => 'k' || i, group_key => CASE WHEN i > 4 THEN 'g' || i END) FROM generate_series(1, 8) i;
	FOR j IN SELECT * FROM tq_claim('work', 10) LOOP
		states := concat_ws(' ', states, CASE (j.payload ->> 'n')::int
			WHEN 1 THEN tq_complete(j.id, j.lease, '{"r": 1}')
			WHEN 2 THEN tq_fail(j.id, j.lease, 'x', retry_in => '1 h')
			WHEN 3 THEN tq_fail(j.id, j.lease, 'x', fatal => true)
			WHEN 4 THEN tq_release(j.id, j.lease, '1 h')
			WHEN 5 THEN tq_bury(j.id, j.lease, 'x')
			WHEN 6 THEN tq_cancel(j.id) || ' ' || tq_complete(j.id, j.lease)
			WHEN 7 THEN (tq_heartbeat(j.id, j.lease, checkpoint => '{"c": 1}')).action
			ELSE (SELECT g.state FROM tq_get(j.id) g) END);
	END LOOP;
END
$$;
BEGIN;
SELECT is(life(), 'succeeded delayed dead delayed buried asked succeeded run running', 'jobs end in the transaction that enqueued them');
SELECT is((SELECT string_agg(state, ' ' ORDER BY id) FROM tq_jobs WHERE queue = 'work'),
	'succeeded delayed dead delayed buried succeeded running running', '... as it sees them itself');
ROLLBACK;
SELECT is((SELECT count(*)::int FROM tq_jobs WHERE queue = 'work'), 0, 'a rollback undoes it');
SELECT is(life(), 'succeeded delayed dead delayed buried asked succeeded run running', 'the same again');
SELECT is((SELECT string_agg(state, ' ' ORDER BY id) FROM tq_jobs WHERE queue = 'work'),
	'succeeded delayed dead delayed buried succeeded running running', '... is there after a commit');
SELECT is((SELECT count(*)::int FROM tq_running WHERE queue = 'work' AND lease_expires_at > now()), 2, 'leases run from the commit on');
SELECT is((SELECT string_agg(tq_complete(id, lease), ' ') FROM tq_running WHERE queue = 'work'), 'succeeded succeeded', '... and can be finished');
SELECT is((SELECT sum(abs(expected - found)) FROM tq_check() WHERE expected >= 0), 0::numeric, 'memory agrees with the journal');

-- savepoints
BEGIN;
SET LOCAL tq.claim_own = on;
SELECT tq_enqueue('work', '{"n": 9}');
SAVEPOINT s;
SELECT tq_complete(id, lease) FROM tq_claim('work');
SELECT is((SELECT count(*)::int FROM tq_claim('work')), 0, 'claimed in a savepoint');
ROLLBACK TO s;
SELECT results_eq($$SELECT (payload ->> 'n')::int, attempt FROM tq_claim('work')$$, $$VALUES (9, 1)$$, '... and again after ROLLBACK TO');
ROLLBACK TO s;
COMMIT;
SELECT results_eq($$SELECT (payload ->> 'n')::int, attempt, tq_complete(id, lease) FROM tq_claim('work')$$, $$VALUES (9, 1, 'succeeded')$$,
	'a job whose claim was undone is there for all after the commit');

-- pauses and limits hold
SELECT tq_alter_queue('work', '{"max_running": 1}');
BEGIN;
SET LOCAL tq.claim_own = on;
SELECT tq_enqueue('work') FROM generate_series(1, 3);
SELECT is((SELECT count(*)::int FROM tq_claim('work', 3)), 1, 'max_running holds');
ROLLBACK;
SELECT tq_alter_queue('work', '{"max_running": null}'), tq_cancel(tq_enqueue('work', kind => 'p')), tq_pause('work', 'p');
BEGIN;
SET LOCAL tq.claim_own = on;
SELECT tq_enqueue('work', kind => 'p');
SELECT is((SELECT count(*)::int FROM tq_claim('work', 3)), 0, 'a pause holds');
ROLLBACK;
SELECT tq_resume('work', 'p');
SELECT tq_create_queue('rated', '{"group_rate": "1/h", "group_max_running": 1}');
SELECT tq_enqueue('rated', group_key => 'g') AS held \gset
SELECT tq_fail(id, lease, 'x', retry_in => '1 h') FROM tq_claim('rated');
BEGIN;
SET LOCAL tq.claim_own = on;
SELECT tq_enqueue('rated', group_key => 'g');
SELECT is((SELECT count(*)::int FROM tq_claim('rated')), 0, 'the rate of a group holds, also if an earlier job blocks it');
ROLLBACK;
SELECT tq_cancel(:held);
SELECT tq_purge('rated', 'all');

-- a transaction that takes longer than the lease
BEGIN;
SET LOCAL tq.claim_own = on;
SELECT tq_enqueue('work', kind => 'slow');
SELECT id AS slow, lease AS slow_lease FROM tq_claim('work', lease_for => '50 s', kinds => '{slow}') \gset
SELECT clock(60000000, 60000000);
COMMIT;
SELECT is((SELECT count(*)::int FROM tq_running WHERE id = :slow AND lease_expires_at > tq_now()), 1, 'the lease begins at the commit');
SELECT is(tq_complete(:slow, :slow_lease), 'succeeded', '... of a transaction that took longer');
SELECT clock(0, 0);
SELECT is((SELECT sum(abs(expected - found)) FROM tq_check() WHERE expected >= 0), 0::numeric, 'memory agrees with the journal');

-- ---- tq_enqueued

BEGIN;
SELECT tq_enqueue('work', '{"to": "a", "x": 1}', kind => 'mail'), tq_enqueue('work', '{"to": "b"}', kind => 'mail'), tq_enqueue('work', '{"to": "a"}', kind => 'sms');
SELECT is(tq_enqueued('work', 'mail'), 2::bigint, 'jobs of a kind that this transaction has enqueued');
SELECT is(tq_enqueued('work', payload => '{"to": "a"}'), 2::bigint, '... that contain something');
SELECT is(tq_enqueued('work', 'mail', '{"to": "a"}'), 1::bigint, '... both');
SELECT is(tq_enqueued('work', 'mail', '{"to": "c"}'), 0::bigint, '... neither');
SELECT is(tq_enqueued('nowhere'), 0::bigint, 'no queue has no jobs');
ROLLBACK;
SELECT is(tq_enqueued('work', 'mail'), 0::bigint, 'a rollback leaves nothing');
-- the assertions; check_test() keeps its numbers in a table, so nothing is rolled back here
SELECT tq_create_queue('asserted');
SELECT tq_enqueue('asserted', '{"to": "a"}', kind => k) FROM unnest('{mail,mail,sms}'::text[]) k;
SELECT * FROM check_test(tq_enqueued_ok('asserted', 'mail', '{"to": "a"}', 'sent'), true, 'tq_enqueued_ok', 'sent');
SELECT * FROM check_test(tq_enqueued_ok('asserted', 'mail', '{"to": "z"}'), false, 'tq_enqueued_ok without a job', 'asserted: a job of kind mail with {"to": "z"} is enqueued');
SELECT * FROM check_test(tq_enqueued_is('asserted', 2, 'mail'), true, 'tq_enqueued_is');
SELECT * FROM check_test(tq_enqueued_is('asserted', 3, 'mail'), false, 'tq_enqueued_is with another number', NULL, E'        have: 2\n        want: 3');
SELECT * FROM check_test(tq_not_enqueued_ok('asserted', 'fax'), true, 'tq_not_enqueued_ok');
SELECT * FROM check_test(tq_not_enqueued_ok('asserted', 'sms'), false, 'tq_not_enqueued_ok with a job');
SELECT tq_enqueue('asserted', kind => 'state') AS job \gset
SELECT * FROM check_test(tq_state_is(:job, 'ready'), true, 'tq_state_is');
SELECT * FROM check_test(tq_state_is(:job, 'running'), false, 'tq_state_is with another state');
SELECT * FROM check_test(tq_state_is(999999, 'ready'), false, 'tq_state_is without a job');
SELECT tq_purge('asserted', 'all') \g /dev/null
SELECT tq_drop_queue('asserted') \g /dev/null
SET ROLE t_user;
SELECT throws_ok($$SELECT tq_enqueued('work')$$, '42501', 'permission denied for queue "work"', 'it takes the right to read payloads');
SELECT throws_ok($$SELECT tq_enqueued('nowhere')$$, '42501', 'permission denied for queue "nowhere"', '... on any queue');
RESET ROLE;

-- ---- tq_reset

SELECT throws_ok($$SELECT tq_reset()$$, '55000', 'function tq_reset is for tests only', 'not without tq.testing');
SELECT throws_ok($$SELECT tq_set_now('2030-01-01')$$, '55000', 'function tq_set_now is for tests only', 'nor tq_set_now');
SET tq.testing = on;
SELECT tq_grant('*', 't_user', 'manage');
SET ROLE t_user;
SELECT throws_ok($$SELECT tq_reset()$$, '42501', 'permission denied for function tq_reset', 'only for the owner');
SELECT throws_ok($$SELECT tq_set_now('2030-01-01')$$, '42501', 'permission denied for function tq_set_now', '... both');
SELECT throws_ok($$SET tq.testing = on$$, '42501', NULL, '... who sets it, too');
RESET ROLE;
CREATE FUNCTION fill() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(tq_enqueue('work', kind => k, unique_key => k, delay => CASE k WHEN 'delayed' THEN interval '1 h' END,
			options => '{"unique_for": "1 h"}')) FROM unnest('{ready,delayed,running,dead,done}'::text[]) k
$$;
SELECT tq_create_queue('kept');
SELECT tq_enqueue('kept');
SELECT fill();
SELECT tq_fail(id, lease, 'x', fatal => true) FROM tq_claim('work', kinds => '{dead}');
SELECT tq_complete(id, lease) FROM tq_claim('work', kinds => '{done}');
SELECT id AS held, lease FROM tq_claim('work', kinds => '{running}') \gset
SELECT tq_enqueue('work', depends_on => ARRAY[:held]);
BEGIN;
SELECT cmp_ok(tq_reset('work'), '>=', 8::bigint, 'a queue is emptied');
SELECT is((SELECT count(*)::int FROM tq_jobs WHERE queue = 'work'), 0, '... at once');
ROLLBACK;
SELECT is((SELECT live FROM tq_stats() WHERE queue = 'work'), 6::bigint, 'a rollback undoes it');
SELECT is(tq_reset('work') > 0, true, 'again');
SELECT is((SELECT live FROM tq_stats() WHERE queue = 'work'), 0::bigint, 'nothing is live');
SELECT is((SELECT count(*)::int FROM tq_jobs WHERE queue = 'work'), 0, '... or listed');
SELECT is((SELECT count(*)::int FROM tq_dead WHERE queue = 'work'), 0, '... or dead');
SELECT is(tq_enqueued('work'), 0::bigint, '... or counted as enqueued');
SELECT throws_ok(format('SELECT tq_complete(%s, %s)', :held, :lease), 'TQ001', NULL, 'the holder of a job has lost it');
SELECT is(fill(), 5::bigint, 'unique keys are free');
SELECT is((SELECT live FROM tq_stats() WHERE queue = 'kept'), 1::bigint, 'other queues stay as they are');
SELECT is(tq_reset(), 6::bigint, 'all queues');
SELECT is((SELECT sum(live) FROM tq_stats()), 0::numeric, '... are empty');
SELECT is((SELECT string_agg(queue, ' ' ORDER BY queue) FROM tq_queues WHERE queue IN ('kept', 'work')), 'kept work', '... and there');
SELECT is((SELECT sum(abs(expected - found)) FROM tq_check() WHERE expected >= 0), 0::numeric, 'memory agrees with the journal');
SELECT throws_ok($$SELECT tq_reset('nowhere')$$, 'TQ002', 'queue "nowhere" does not exist', 'a queue must exist');

-- ---- tq_set_now

SELECT tq_enqueue('work', kind => 'later', delay => '3 days') AS later \gset
SELECT ok(at BETWEEN clock_timestamp() + '95 hours' AND tq_now(), 'the clock of this database is set') FROM tq_set_now(tq_now() + '4 days') at;
SELECT is((SELECT id FROM tq_claim('work', wait => '3 min')), :later::bigint, 'what is due by it starts');
SELECT is((SELECT status FROM tq_health() WHERE item = 'clock'), 'warn', 'tq_health shows it');
SELECT ok(tq_set_now() - clock_timestamp() < '1 h', 'without an argument it is the server''s again');
SELECT is((SELECT status FROM tq_health() WHERE item = 'clock'), 'ok', '... which tq_health shows');
SELECT throws_ok($$SELECT tq_set_now('infinity')$$, '22023', 'at must be finite: infinity', 'no end of time');
SELECT throws_ok($$SELECT tq_set_now('1999-01-01')$$, '22023', 'at is out of range: ' || timestamptz '1999-01-01', 'no time before 2001');

SELECT * FROM finish();
DROP OWNED BY t_user CASCADE;
DROP ROLE t_user;
