-- Which roles and jobs get the outcome of a job (docs/adr/0013): roles that may read it, jobs that wait for it,
-- callbacks of batches, follow-ups. And what a queue reveals to a role without a right on it.
SET client_min_messages = warning;
SET tq.max_pinned_wait = '1 h';

SELECT * FROM no_plan();

-- o_X has X on the queue "mine". All of them enqueue to "after"; all except the last two also enqueue to "mine".
CREATE ROLE o_produce;
CREATE ROLE o_consume;
CREATE ROLE o_monitor;
CREATE ROLE o_manage;
CREATE ROLE o_twin;    -- as o_produce
CREATE ROLE o_none;
CREATE ROLE o_member IN ROLE o_monitor;
SELECT tq_create_queue('mine');
SELECT tq_create_queue('after');
SELECT tq_grant('mine', ('o_' || p)::regrole, p) FROM unnest('{consume,monitor,manage}'::text[]) p;
SELECT tq_grant('mine', ('o_' || r)::regrole, 'produce') FROM unnest('{produce,consume,monitor,manage,twin}'::text[]) r;
SELECT tq_grant('after', ('o_' || r)::regrole, 'produce') FROM unnest('{produce,consume,monitor,manage,twin,none,member}'::text[]) r;

-- The answer of a statement to a role, or its SQLSTATE. The statement runs in the caller's transaction.
CREATE FUNCTION as_role(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	PERFORM set_config('role', who, true);
	EXECUTE statement INTO answer;
	PERFORM set_config('role', 'none', true);
	RETURN coalesce(answer, 'null');
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END
$$;
-- A function that enqueues a parent, and one that enqueues for its callers as its definer.
CREATE FUNCTION enqueue_for(queue text) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
	AS $$SELECT tq_enqueue(queue, '{"secret": 1}', kind => 'parent')$$;
ALTER FUNCTION enqueue_for(text) OWNER TO o_twin;
CREATE FUNCTION enqueue_many_for(queue text) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
	AS $$SELECT (tq_enqueue_many(queue, array_fill('{"secret": 1}'::jsonb, ARRAY[2000]), kind => 'parent'))[1500]$$;
ALTER FUNCTION enqueue_many_for(text) OWNER TO o_twin;
CREATE FUNCTION shown(child text) RETURNS text LANGUAGE sql AS
	$$SELECT coalesce(bool_and(shown)::text, 'none') FROM tq.dependency WHERE parent_id > 0 AND child_id = child::bigint$$;

-- ---- several jobs in one call

SELECT tq_create_queue('several');
CREATE TABLE several AS SELECT n, id FROM unnest(tq_enqueue_many('several', array_fill('{}'::jsonb, ARRAY[6]))) WITH ORDINALITY e (id, n);
CREATE FUNCTION nth(nth int) RETURNS bigint LANGUAGE sql AS 'SELECT id FROM several WHERE n = nth';
SELECT CASE n WHEN 1 THEN tq_complete(c.id, lease, '{"r": 1}') WHEN 2 THEN tq_fail(c.id, lease, 'bad', fatal => true)
	WHEN 3 THEN tq_fail(c.id, lease, 'again', retry_in => '1 h') WHEN 4 THEN tq_complete(c.id, lease) END
	FROM tq_claim('several', 5) c JOIN several s ON s.id = c.id ORDER BY n \g /dev/null
SELECT tq_cancel(nth(6)) \g /dev/null
SELECT results_eq('SELECT id, state, result, error FROM tq_outcomes(ARRAY[nth(6), nth(1), nth(5), 9007199254740993, nth(2), nth(3), nth(4), nth(1)])',
	$$VALUES (nth(6), 'cancelled', NULL::jsonb, NULL), (nth(1), 'succeeded', '{"r": 1}', NULL), (nth(5), 'running', NULL, NULL), (9007199254740993, NULL, NULL, NULL),
		(nth(2), 'dead', NULL, 'bad'), (nth(3), 'delayed', NULL, 'again'), (nth(4), 'succeeded', NULL, NULL), (nth(1), 'succeeded', '{"r": 1}', NULL)$$,
	'states, results and errors in the order given; null for a job that does not exist');
SELECT results_eq($$SELECT o.state, o.result, o.error FROM several s, tq_outcomes(ARRAY[s.id]) o ORDER BY n$$,
	$$SELECT g.state, g.result, g.error FROM several s, tq_get(s.id) g ORDER BY n$$, 'as tq_get has them');
SELECT is_empty($$SELECT * FROM tq_outcomes('{}')$$, 'none of none');
BEGIN;
SELECT tq_complete(id, lease, '{"mine": true}') FROM tq_running WHERE queue = 'several' \g /dev/null
SELECT results_eq('SELECT state FROM tq_outcomes(ARRAY[nth(5), tq_enqueue(''several'')])', $$VALUES ('succeeded'), ('ready')$$,
	'what this transaction has changed and enqueued counts');
ROLLBACK;

-- ---- jobs that wait for a job of another transaction

SELECT tq_enqueue('mine', '{"secret": 1}', kind => 'parent') AS parent \gset
SELECT is(shown(as_role('o_' || who, format('SELECT tq_enqueue(''after'', depends_on => ''{%s}'')', :parent))), wanted, 'the child of ' || who)
	FROM (VALUES ('produce', 'false'), ('consume', 'true'), ('monitor', 'true'), ('manage', 'false'), ('member', 'true')) v (who, wanted);
SELECT is(as_role('o_none', format('SELECT tq_enqueue(''after'', depends_on => ''{%s}'')', :parent)), 'TQ004', 'without any right there is no such job');
SELECT as_role('o_produce', $$SELECT tq_enqueue('mine', kind => 'parent')$$) AS earlier \gset
SELECT is(shown(as_role('o_produce', format('SELECT tq_enqueue(''after'', depends_on => ''{%s}'')', :earlier))), 'false',
	'who has enqueued a job is not known any more when its transaction has ended');

-- ---- of the same transaction

-- one per transaction; {own} is enqueued by the role itself, {other} for it by a function of o_twin
CREATE TABLE together (n int GENERATED ALWAYS AS IDENTITY, who text, parents text, wanted text, answer text);
INSERT INTO together (who, parents, wanted) VALUES
	('produce', $$ARRAY[tq_enqueue('mine', kind => 'parent')]$$, 'true'),
	('produce', $$ARRAY[tq_enqueue('mine', kind => 'parent'), tq_enqueue('mine', kind => 'parent')]$$, 'true'),
	('produce', $$tq_enqueue_many('mine', '{"{}","{}"}', kind => 'parent')$$, 'true'),
	-- so many that tq only sums them
	('produce', $$(tq_enqueue_many('mine', array_fill('{}'::jsonb, ARRAY[2000]), kind => 'parent'))[1400:1500]$$, 'true'),
	('produce', $$ARRAY[enqueue_for('mine')]$$, 'false'),
	('produce', $$ARRAY[enqueue_many_for('mine')]$$, 'false'),
	-- jobs of the other role between the role's own
	('produce', $$ARRAY[tq_enqueue('mine', kind => 'parent'), enqueue_for('mine')]$$, 'false'),
	('produce', $$(ARRAY[tq_enqueue('mine', kind => 'parent'), enqueue_for('mine'), tq_enqueue('mine', kind => 'parent')])[3:3]$$, 'true'),
	('produce', $$(ARRAY[tq_enqueue('mine', kind => 'parent'), enqueue_for('mine'), tq_enqueue('mine', kind => 'parent')])[1:1]$$, 'true'),
	('produce', $$(ARRAY[tq_enqueue('mine', kind => 'parent'), enqueue_for('mine'), tq_enqueue('mine', kind => 'parent')])[2:2]$$, 'false'),
	('consume', $$ARRAY[enqueue_for('mine')]$$, 'true'),
	('monitor', $$ARRAY[enqueue_for('mine')]$$, 'true'),
	('monitor', $$ARRAY[enqueue_many_for('mine')]$$, 'true'),
	('member', $$ARRAY[enqueue_for('mine')]$$, 'true'),
	('manage', $$ARRAY[enqueue_for('mine')]$$, 'false'),
	('twin', $$ARRAY[enqueue_for('mine')]$$, 'true'),
	-- as for jobs of other transactions
	('none', $$ARRAY[enqueue_for('mine')]$$, 'TQ004'),
	('none', $$ARRAY[enqueue_many_for('mine')]$$, 'TQ004');
SELECT format('UPDATE together SET answer = as_role(%L, ''SELECT tq_enqueue(''''after'''', depends_on => '' || parents || '')'') WHERE n = %s', 'o_' || who, n)
	FROM together ORDER BY n \gexec
UPDATE together SET answer = shown(answer) WHERE answer ~ '^\d+$';
SELECT is(answer, wanted, who || ': ' || parents) FROM together ORDER BY n;

-- the role counts at the time of each call, not the session's
BEGIN;
SET LOCAL ROLE o_produce;
SELECT tq_enqueue('mine', kind => 'parent') AS p \gset
SET LOCAL ROLE o_twin;
SELECT tq_enqueue('after', depends_on => ARRAY[:p]) AS c \gset
SET LOCAL ROLE o_produce;
SAVEPOINT s;
SELECT tq_enqueue('mine', kind => 'rolled back') AS undone \gset
ROLLBACK TO s;
SELECT tq_enqueue('mine', kind => 'parent') AS p2 \gset
SELECT tq_enqueue('after', depends_on => ARRAY[:p, :p2]) AS c2 \gset
RESET ROLE;
SELECT is(as_role('o_produce', format('SELECT tq_enqueue(''after'', depends_on => ''{%s}'')', :undone)), 'TQ004', 'a job that was rolled back');
COMMIT;
SELECT is(shown(:'c'), 'false', 'another role has enqueued the parent');
SELECT is(shown(:'c2'), 'true', 'the same role has, between savepoints');

-- a copy of a job, or a follow-up, does not count as the role's own, although the role enqueues it
SELECT tq_create_queue('copies');
SELECT tq_grant('copies', 'o_manage', 'produce'), tq_grant('mine', 'o_manage', 'consume');
SELECT tq_enqueue('mine', '{"secret": 1}', kind => 'dead') AS dead \gset
SELECT tq_fail(id, lease, 'x', fatal => true) FROM tq_claim('mine', kinds => '{dead}') \g /dev/null
BEGIN;
SELECT is(as_role('o_manage', $$SELECT tq_retry_many('mine', kind => 'dead', to_queue => 'copies')$$), '1', 'a copy');
SELECT (regexp_match(reason, 'job (\d+)'))[1] AS copy FROM tq_history(:dead) WHERE event = 'purged' \gset
SELECT is(shown(as_role('o_manage', format('SELECT tq_enqueue(''after'', depends_on => ''{%s}'')', :copy))), 'false', '... is not the role''s own');
COMMIT;
-- also not between two jobs that the role has enqueued itself
SELECT tq_enqueue('mine', '{"secret": 1}', kind => 'dead') AS dead \gset
SELECT tq_fail(id, lease, 'x', fatal => true) FROM tq_claim('mine', kinds => '{dead}') \g /dev/null
BEGIN;
SELECT as_role('o_manage', $$SELECT tq_enqueue('mine', kind => 'before')$$) \g /dev/null
SELECT as_role('o_manage', $$SELECT tq_retry_many('mine', kind => 'dead', to_queue => 'copies')$$) \g /dev/null
SELECT as_role('o_manage', $$SELECT tq_enqueue('mine', kind => 'after')$$) \g /dev/null
SELECT (regexp_match(reason, 'job (\d+)'))[1] AS copy FROM tq_history(:dead) WHERE event = 'purged' \gset
SELECT is(shown(as_role('o_manage', format('SELECT tq_enqueue(''after'', depends_on => ''{%s}'')', :copy))), 'false',
	'a copy between two jobs of the role''s own is not its own');
COMMIT;
SELECT tq_create_queue('hidden');
SELECT tq_create_queue('origin', '{"follow_up": {"queue": "hidden"}}');
SELECT tq_grant('origin', 'o_manage', 'consume');
SELECT tq_enqueue('origin', kind => 'origin') \g /dev/null
BEGIN;
SELECT as_role('o_manage', $$SELECT tq_enqueue('mine', kind => 'before')$$) AS before \gset
SELECT as_role('o_manage', $$SELECT tq_complete(id, lease) FROM tq_claim('origin')$$) \g /dev/null
SELECT as_role('o_manage', $$SELECT tq_enqueue('mine', kind => 'after')$$) AS after \gset
SELECT max(id) AS follow_up FROM tq_jobs WHERE queue = 'hidden' \gset
SELECT ok(:follow_up BETWEEN :before AND :after, 'a follow-up between two jobs of the role''s own');
SELECT is(as_role('o_manage', format('SELECT tq_enqueue(''after'', depends_on => ''{%s}'')', :follow_up)), 'TQ004', '... is not its own');
COMMIT;
SELECT tq_revoke('mine', 'o_manage', 'consume');

-- ---- batches

SELECT tq_create_queue('callbacks');
SELECT tq_grant('callbacks', ('o_' || r)::regrole, 'produce') FROM unnest('{produce,twin,monitor}'::text[]) r;
SELECT as_role('o_produce', $$SELECT tq_batch_open('callbacks')$$) AS batch \gset
CREATE FUNCTION join_batch(who text, batch text) RETURNS text LANGUAGE sql AS
	$$SELECT as_role('o_' || who, format('SELECT tq_enqueue(''mine'', kind => ''member'', options => ''{"batch": %s}'')', batch))$$;
CREATE FUNCTION parent_shown(parent text, child text) RETURNS text LANGUAGE sql AS
	$$SELECT shown::text FROM tq.dependency WHERE parent_id = parent::bigint AND child_id = child::bigint$$;
SELECT join_batch('produce', :'batch') AS later \gset
SELECT join_batch('monitor', :'batch') AS reader \gset
SELECT is(parent_shown(:'later', :'batch'), 'false', 'of a batch of another transaction: the state only');
SELECT is(parent_shown(:'reader', :'batch'), 'true', '... but for a role that may read the queue');
BEGIN;
SELECT as_role('o_produce', $$SELECT tq_batch_open('callbacks')$$) AS batch \gset
SELECT join_batch('produce', :'batch') AS own \gset
SELECT join_batch('twin', :'batch') AS others \gset
COMMIT;
SELECT is(parent_shown(:'own', :'batch'), 'true', 'of a batch of the same role and transaction');
SELECT is(parent_shown(:'others', :'batch'), 'false', '... not of a job of another role');

-- ---- what the scheduler then passes on

SELECT tq_create_queue('end to end');
SELECT tq_grant('end to end', 'o_produce', 'produce'), tq_grant('end to end', 'o_twin', 'produce'), tq_grant('end to end', 'o_none', 'consume');
SELECT tq_purge('mine', 'all') \g /dev/null
BEGIN;
SET LOCAL ROLE o_produce;
SELECT tq_enqueue('mine', kind => 'good') AS good, tq_enqueue('mine', kind => 'bad') AS bad \gset
SELECT tq_enqueue('end to end', kind => 'own', depends_on => ARRAY[:good, :bad], options => '{"on_parent_failure": "run"}') AS own \gset
SET LOCAL ROLE o_twin;
SELECT tq_enqueue('end to end', kind => 'other', depends_on => ARRAY[:good, :bad], options => '{"on_parent_failure": "run"}') AS other \gset
COMMIT;
SELECT tq_complete(id, lease, '{"secret": 2}') FROM tq_claim('mine', kinds => '{good}') \g /dev/null
SELECT tq_fail(id, lease, 'secret 3', '{"secret": 4}', fatal => true) FROM tq_claim('mine', kinds => '{bad}') \g /dev/null
SET ROLE o_none;
SELECT is((SELECT parents FROM tq_claim('end to end', kinds => '{own}', wait => '3 min')), format('{"%s": {"state": "succeeded", "result": {"secret": 2}}, "%s": {"state": "dead", "error": "secret 3"}}', :good, :bad)::jsonb,
	'the child of the role that has enqueued the parents has their outcomes');
SELECT is((SELECT parents FROM tq_claim('end to end', kinds => '{other}', wait => '3 min')), format('{"%s": {"state": "succeeded"}, "%s": {"state": "dead"}}', :good, :bad)::jsonb,
	'that of another role has their states');
SELECT unalike((SELECT string_agg(h::text, ' ') FROM tq_history(:other) h), '%secret%', '... and so has its history');
RESET ROLE;

-- ---- follow-ups

SELECT tq_create_queue('reports');
SELECT tq_grant('reports', ('o_' || r)::regrole, 'produce') FROM unnest('{produce,consume,monitor,manage}'::text[]) r;
-- The follow-up of a job of this kind that fails, and of one that succeeds.
CREATE FUNCTION followed(kind text, well boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	IF well THEN
		PERFORM tq_complete(c.id, c.lease, '{"secret": 2}') FROM tq_claim('mine', kinds => ARRAY[kind]) c;
	ELSE
		PERFORM tq_fail(c.id, c.lease, 'secret 3', '{"secret": 4}', fatal => true) FROM tq_claim('mine', kinds => ARRAY[kind]) c;
	END IF;
	SELECT string_agg((j.payload - '{job,queue,kind,state}'::text[])::text, ' ') INTO answer FROM tq.job j
		WHERE j.payload ->> 'kind' = followed.kind AND j.payload ->> 'queue' = 'mine';
	RETURN coalesce(answer, 'nothing');
END
$$;
CREATE TABLE follower (n int GENERATED ALWAYS AS IDENTITY, who text, options text, given boolean);
INSERT INTO follower (who, options, given) VALUES
	('produce', '{"follow_up": {"queue": "reports"}}', false),
	('produce', '{"follow_up": {"queue": "reports", "outcome": true}}', false),
	('consume', '{"follow_up": {"queue": "reports"}}', true),
	('monitor', '{"follow_up": {"queue": "reports"}, "tags": ["t"]}', true),
	('monitor', '{"follow_up": {"queue": "reports", "outcome": false}}', false),
	('manage', '{"follow_up": {"queue": "reports"}}', false);
SELECT is(as_role('o_' || who, format('SELECT tq_enqueue(''mine'', kind => %L, options => %L) > 0', 'ill ' || n, options)), 'true', who || ' asks: ' || options)
	FROM follower ORDER BY n;
SELECT is(as_role('o_' || who, format('SELECT cardinality(tq_enqueue_many(''mine'', ''{"{}"}'', kind => %L, options => %L))', 'well ' || n, options)), '1', '... in bulk')
	FROM follower ORDER BY n;
SELECT is(followed('ill ' || n, false), CASE WHEN given THEN '{"error": "secret 3", "detail": {"secret": 4}}' ELSE '{"left_out": true}' END, who || ' is told: ' || options)
	FROM follower ORDER BY n;
SELECT is(followed('well ' || n, true), CASE WHEN given THEN '{"result": {"secret": 2}}' ELSE '{"left_out": true}' END, '... of success')
	FROM follower ORDER BY n;
SELECT throws_ok($$SELECT tq_enqueue('mine', options => '{"follow_up": {"queue": "reports", "outcome": 1}}')$$, '22023', NULL, 'a switch');

-- as a setting: the role that sets it counts, at the time of the setting
SELECT is(as_role('o_manage', $$SELECT tq_alter_queue('mine', '{"follow_up": {"queue": "reports"}, "priority": 5}')$$), '', 'manage sets it');
SELECT is((SELECT settings #- '{follow_up,by}' FROM tq.queue WHERE name = 'mine'), '{"priority": 5, "follow_up": {"queue": "reports", "outcome": false}}', '... without the outcome');
SELECT tq_enqueue('mine', kind => 'by manage') \g /dev/null
SELECT is(followed('by manage', false), '{"left_out": true}', '... which is not given');
SELECT tq_grant('mine', 'o_manage', 'monitor');
SELECT tq_enqueue('mine', kind => 'before it is set again') \g /dev/null
SELECT is(followed('before it is set again', false), '{"left_out": true}', 'a right that comes later changes nothing');
SELECT is(as_role('o_manage', $$SELECT tq_alter_queue('mine', '{"follow_up": {"queue": "reports"}}')$$), '', '... until it is set again');
SELECT is((SELECT (settings #> '{follow_up}') - 'by' FROM tq.queue WHERE name = 'mine'), '{"queue": "reports"}', '... as it was said');
SELECT tq_enqueue('mine', kind => 'by both') \g /dev/null
SELECT is(followed('by both', false), '{"error": "secret 3", "detail": {"secret": 4}}', '... and then it is given');
SELECT tq_revoke('mine', 'o_manage', 'monitor');
SELECT is(as_role('o_manage', $$SELECT tq_alter_queue('mine', '{"priority": 6}')$$), '', 'another setting');
SELECT is((SELECT (settings #> '{follow_up}') - 'by' FROM tq.queue WHERE name = 'mine'), '{"queue": "reports"}', '... leaves it alone');
SELECT tq_alter_queue('mine', '{"follow_up": null}');

-- by a schedule: its owner counts, when the job is enqueued
SELECT is(as_role('o_produce', $$SELECT tq_schedule('reported', 'mine', kind => 'scheduled', every => '1000 d', options => '{"follow_up": {"queue": "reports"}}')$$), '',
	'a schedule of a role that may not read');
SELECT tq_schedule_run('reported') \g /dev/null
SELECT is(followed('scheduled', false), '{"left_out": true}', '... has follow-ups without outcomes, whoever runs it');

-- copied to another queue: the role that copies counts
SELECT tq_enqueue('mine', kind => 'to be copied', options => '{"follow_up": {"queue": "reports", "on": ["succeeded"]}}') \g /dev/null
SELECT tq_fail(id, lease, 'x', fatal => true) FROM tq_claim('mine', kinds => '{to be copied}') \g /dev/null
SELECT tq_grant('mine', 'o_manage', 'monitor');
SELECT is(as_role('o_manage', $$SELECT tq_retry_many('mine', kind => 'to be copied', to_queue => 'copies')$$), '1', 'a copy to where the role may not read');
SELECT is((SELECT options #- '{follow_up,by}' FROM tq.job WHERE kind = 'to be copied' AND origin IS NOT NULL), '{"follow_up": {"on": ["succeeded"], "queue": "reports", "outcome": false}}',
	'... has a follow-up without the outcome');
SELECT tq_revoke('mine', 'o_manage', 'monitor');

-- ---- names of other queues

CREATE FUNCTION detail_of(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	PERFORM set_config('role', who, true);
	EXECUTE statement;
	PERFORM set_config('role', 'none', true);
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN detail;
END
$$;
SELECT tq_create_queue('secret name'), tq_create_queue('first'), tq_create_queue('second');
SELECT tq_alter_queue('secret name', '{"follow_up": {"queue": "first"}}'), tq_alter_queue('second', '{"follow_up": {"queue": "secret name"}}');
SELECT tq_grant('first', 'o_manage', 'manage'), tq_grant('second', 'o_manage', 'produce');
SELECT is(detail_of('o_manage', $$SELECT tq_alter_queue('first', '{"follow_up": {"queue": "second"}}')$$), 'The circle is first -> second -> ... -> first.',
	'a circle names no queue that the role has no right on');
SELECT is(detail_of('postgres', $$SELECT tq_alter_queue('first', '{"follow_up": {"queue": "second"}}')$$), 'The circle is first -> second -> secret name -> first.',
	'... and to the owner all of them');

-- ---- no call reveals a queue without a right on it

-- All names of this queue and of its objects contain zz. The role has all rights on another queue, and may create
-- queues.
CREATE ROLE o_outsider LOGIN;
CREATE ROLE o_zz LOGIN;
SELECT tq_create_queue('zz', '{"follow_up": {"queue": "after"}, "rate": "1000/s"}'), tq_create_queue('own'), tq_create_queue('last', '{"follow_up": {"queue": "zz"}}');
SELECT tq_grant('own', 'o_outsider', p) FROM unnest('{produce,consume,manage,monitor}'::text[]) p;
SELECT tq_grant('*', 'o_outsider', 'create'), tq_grant('zz', 'o_zz', 'produce'), tq_grant('last', 'o_outsider', 'produce');
SELECT tq_enqueue('zz', '{"zz": 1}', 'zz', group_key => 'zz', unique_key => 'zz', headers => '{"zz": 1}', options => '{"tags": ["zz"]}') AS zz_ready \gset
SELECT tq_enqueue('zz', '{"zz": 1}', 'zz dead') AS zz_dead, tq_enqueue('zz', '{"zz": 1}', 'zz running') AS zz_running \gset
SELECT tq_fail(id, lease, 'zz', '{"zz": 1}', fatal => true) FROM tq_claim('zz', worker => 'zz', kinds => '{zz dead}') \g /dev/null
SELECT tq_heartbeat(id, lease, progress => '{"zz": 1}', checkpoint => '{"zz": 1}') FROM tq_claim('zz', worker => 'zz', kinds => '{zz running}', lease_for => '1 day') \g /dev/null
SELECT tq_batch_open('zz', '{"zz": 1}') AS zz_batch \gset
SELECT tq_schedule('zz', 'zz', '{"zz": 1}', every => '1000 d');
CREATE FUNCTION zz(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT tq_handle('zz', 'zz', 'zz(tq_job)');
-- The whole answer of a call: its rows, or message, detail, hint and context.
CREATE FUNCTION everything(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	m text;
	d text;
	h text;
	c text;
BEGIN
	PERFORM set_config('role', 'o_outsider', true);
	EXECUTE format('SELECT string_agg(x::text, E''\n'') FROM (%s) x', statement) INTO answer;
	PERFORM set_config('role', 'none', true);
	RETURN coalesce(answer, 'nothing');
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS m = MESSAGE_TEXT, d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT, c = PG_EXCEPTION_CONTEXT;
	RETURN concat_ws(E'\n', sqlstate, m, d, h, c);
END
$$;
CREATE TABLE probe (statement text, by_id boolean);
INSERT INTO probe SELECT statement, statement ~ '%s' FROM (VALUES
	($$TABLE tq_queues$$), ($$TABLE tq_jobs$$), ($$TABLE tq_running$$), ($$TABLE tq_dead$$), ($$TABLE tq_schedules$$), ($$TABLE tq_grants$$), ($$TABLE tq_rights$$), ($$TABLE tq_handlers$$),
	($$TABLE tq_workers$$), ($$SELECT * FROM tq_stats()$$), ($$SELECT tq_metrics()$$), ($$SELECT * FROM tq_health()$$), ($$SELECT * FROM tq_check()$$),
	($$SELECT application_name, query, state FROM pg_stat_activity WHERE pid <> pg_backend_pid()$$), ($$SELECT * FROM pg_locks$$),
	($$SELECT * FROM tq_get(%s)$$), ($$SELECT * FROM tq_outcomes(ARRAY[%s])$$), ($$SELECT * FROM tq_history(%s)$$), ($$SELECT tq_explain(%s)$$), ($$SELECT * FROM tq_batch(%s)$$), ($$SELECT tq_batch_close(%s)$$),
	($$SELECT tq_cancel(%s)$$), ($$SELECT tq_retry(%s)$$), ($$SELECT tq_reschedule(%s, priority => 1)$$), ($$SELECT tq_complete(%s, 1)$$), ($$SELECT tq_fail(%s, 1, '')$$),
	($$SELECT tq_release(%s, 1)$$), ($$SELECT tq_bury(%s, 1, '')$$), ($$SELECT * FROM tq_heartbeat(%s, 1)$$), ($$SELECT * FROM tq_heartbeat(%s, 1, checkpoint => '{}')$$),
	($$SELECT * FROM tq_heartbeat_many(ARRAY[%s], ARRAY[1])$$), ($$SELECT * FROM tq_complete_many(ARRAY[%s], ARRAY[1])$$), ($$SELECT * FROM tq_fail_many(ARRAY[%s], ARRAY[1], '{x}')$$),
	($$SELECT tq_enqueue('own', depends_on => ARRAY[%s])$$), ($$SELECT tq_enqueue_many('own', '{"{}"}', depends_on => ARRAY[%s])$$), ($$SELECT tq_enqueue('own', options => '{"batch": %s}')$$),
	($$SELECT tq_enqueue('own', unique_key => 'zz', unique_mode => 'error') > 0$$), ($$SELECT tq_alter_queue('own', '{"follow_up": {"queue": "last"}}')$$),
	($$SELECT tq_retry_many('own')$$), ($$SELECT tq_purge('own', 'dead')$$)) v (statement);
SELECT unalike(everything(format(statement, id)), '%zz%', format(statement, name) || ' says nothing of a queue without a right')
	FROM probe, (VALUES ('ready', :zz_ready), ('dead', :zz_dead), ('running', :zz_running), ('batch', :zz_batch)) j (name, id) WHERE by_id OR name = 'ready';
SELECT is(replace(everything(format(statement, id)), id::text, 'ID'), replace(everything(format(statement, 9000000000)), '9000000000', 'ID'), format(statement, name) || ' as if there were none')
	FROM probe, (VALUES ('ready', :zz_ready), ('dead', :zz_dead), ('running', :zz_running), ('batch', :zz_batch)) j (name, id) WHERE by_id;

SELECT * FROM finish();
SELECT format('DROP OWNED BY %I CASCADE', rolname), format('DROP ROLE %I', rolname) FROM pg_roles WHERE rolname ~ '^o_' ORDER BY rolname \gexec
