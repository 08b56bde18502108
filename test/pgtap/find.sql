-- tq_list and the functions that change many jobs: every condition, alone and together; pages in both orders; what a call looks at is
-- bounded; rights; rows written by hand; dry runs. LIMIT on tq_jobs and tq_dead.
SET client_min_messages = warning;

SELECT * FROM no_plan();

\ir lib/until.sql

SELECT tq_create_queue(q) FROM unnest('{a,b,many}'::text[]) q;

-- ---- jobs in every state

CREATE TABLE jobs AS SELECT s || '_' || q AS what, s AS state, q AS queue, tq_enqueue(q, jsonb_build_object('n', n, 'who', jsonb_build_array('ada', s)), kind => s,
		priority => (n % 3)::int, group_key => CASE WHEN n % 2 = 0 THEN 'g' || n END, unique_key => s || n, delay => CASE s WHEN 'delayed' THEN interval '1 h' END,
		expires_at => CASE s WHEN 'expired' THEN clock_timestamp() - interval '1 s' END, options => jsonb_build_object('tags', jsonb_build_array('t' || n % 4, s))) AS id,
		0::bigint AS lease
	FROM unnest('{ready,delayed,running,succeeded,dead,buried,cancelled,expired,retried,purged,moved}'::text[]) WITH ORDINALITY s (s, n), unnest('{a,b}'::text[]) q ORDER BY n, q;
INSERT INTO jobs SELECT 'blocked_a', 'blocked', 'a', tq_enqueue('a', depends_on => ARRAY[id]) FROM jobs WHERE what = 'ready_a';
UPDATE jobs j SET lease = c.lease FROM unnest('{a,b}'::text[]) q,
	tq_claim(q, 100, 'w_' || q, kinds => '{running,succeeded,dead,buried,retried,purged}', lease_for => '1 d') c WHERE c.id = j.id;
CALL until($$SELECT sum(expired) = 2 FROM tq_stats()$$);
SELECT is(sum(CASE state WHEN 'succeeded' THEN tq_complete(id, lease) = 'succeeded' WHEN 'dead' THEN tq_fail(id, lease, 'x', fatal => true) = 'dead'
	WHEN 'buried' THEN tq_bury(id, lease, 'x') = 'buried' WHEN 'cancelled' THEN tq_cancel(id) = 'cancelled'
	WHEN 'retried' THEN tq_bury(id, lease, 'x') = 'buried' WHEN 'purged' THEN tq_complete(id, lease) = 'succeeded' ELSE true END::int), 23::bigint, 'there are jobs') FROM jobs;
SELECT tq_retry(id) FROM jobs WHERE state = 'retried' \g /dev/null
UPDATE jobs SET state = 'ready' WHERE state IN ('retried', 'moved');
SELECT id AS purged FROM jobs WHERE what = 'purged_a' \gset
SELECT is((SELECT changed FROM tq_purge_many('a', 'succeeded', kind => 'purged')), 1::bigint, 'one is purged');
SELECT is((SELECT changed FROM tq_purge_many('b', 'succeeded', kind => 'purged')), 1::bigint, 'another, too');

-- A list is like tq_jobs, with other columns.
CREATE FUNCTION shown(wanted text) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_agg(to_jsonb(j) ORDER BY id) FROM tq_jobs j WHERE wanted IS NULL OR state = wanted
$$;
SELECT is((SELECT jsonb_agg(to_jsonb(l) - '{worker,payload,next_after}'::text[] ORDER BY id) FROM tq_list(state => s, max => 1000) l),
		shown(s), 'jobs that are ' || coalesce(s, 'anything'))
	FROM unnest('{ready,delayed,blocked,running,succeeded,dead,buried,cancelled,expired,NULL}'::text[]) s;
SELECT is((SELECT array_agg(id ORDER BY n) FROM tq_list(q, s, newest => newest) WITH ORDINALITY l (id, queue, kind, state, priority, attempt, max_attempts,
			run_at, enqueued_at, expires_at, worker, group_key, unique_key, tags, payload, next_after, n)),
		(SELECT array_agg(id ORDER BY CASE WHEN newest THEN -id ELSE id END) FROM jobs WHERE queue = q AND state = s AND what !~ 'purged'),
		format('in queue %s those that are %s, newest first: %s', q, s, newest))
	FROM unnest('{a,b}'::text[]) q, unnest('{ready,delayed,blocked,running,succeeded,dead,buried,cancelled,expired}'::text[]) s, unnest('{true,false}'::boolean[]) newest;
SELECT results_eq(format('SELECT worker, group_key, unique_key, tags, payload, next_after = id FROM tq_list(''a'', ''dead'')'),
	$$VALUES ('w_a', NULL, 'dead5', '{t1,dead}'::text[], '{"n": 5, "who": ["ada", "dead"]}', true)$$, 'more columns');

-- ---- conditions

CREATE TABLE condition (n int GENERATED ALWAYS AS IDENTITY, arguments text, wanted text);
INSERT INTO condition (arguments, wanted) VALUES
	($$kind => 'dead'$$, $$what ~ '^dead'$$),
	($$'a', kind => 'dead'$$, $$what = 'dead_a'$$),
	($$kind => 'none'$$, 'false'),
	($$kind => ''$$, $$what ~ '^blocked'$$),
	($$'a', 'blocked', kind => ''$$, $$what = 'blocked_a'$$),
	($$'b', kind => ''$$, 'false'),
	($$state => 'running', kind => ''$$, 'false'),
	($$error => ''$$, 'false'),
	($$worker => 'w_a'$$, $$lease > 0 AND queue = 'a' AND what !~ 'purged'$$),
	($$'b', 'running', worker => 'w_a'$$, 'false'),
	($$state => 'running', worker => 'w_a'$$, $$what = 'running_a'$$),
	($$state => 'running', kind => 'running'$$, $$what ~ 'running'$$),
	($$state => 'running', kind => 'dead'$$, 'false'),
	($$tag => 't1'$$, $$what ~ '^(ready|dead|retried)'$$),
	($$'b', tag => 'dead'$$, $$what = 'dead_b'$$),
	($$state => 'running', tag => 't3'$$, $$what ~ 'running'$$),
	($$state => 'running', tag => 't2'$$, 'false'),
	($$tag => 't'$$, 'false'),
	($$group_key => 'g4'$$, $$what ~ '^succeeded'$$),
	($$'a', group_key => 'g4'$$, $$what = 'succeeded_a'$$),
	($$'a', group_key => 'g'$$, 'false'),
	($$unique_key => 'dead5'$$, $$what ~ '^dead'$$),
	($$'a', unique_key => 'dead'$$, 'false'),
	($$search => '{"n": 5}'$$, $$what ~ '^dead'$$),
	($$'a', search => '{"who": ["ada"]}'$$, $$queue = 'a' AND what !~ 'purged|blocked'$$),
	($$search => '"ada"'$$, 'false'),
	($$search => '[]'$$, 'false'),
	($$search => '{"who": [["ada"]]}'$$, 'false'),
	($$'a', 'ready', kind => 'ready', tag => 'ready', unique_key => 'ready1', search => '{"n": 1}', created_from => now() - interval '1 d'$$, $$what = 'ready_a'$$),
	($$created_from => now() + interval '1 h'$$, 'false'),
	($$created_to => now() - interval '1 d'$$, 'false'),
	($$created_from => now() - interval '2 h', created_to => now() + interval '2 h'$$, $$what !~ 'purged'$$);
CREATE FUNCTION ids(arguments text) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	found bigint[];
BEGIN
	EXECUTE format('SELECT array_agg(id) FROM tq_list(%s, max => 1000)', arguments) INTO found;
	RETURN found;
END
$$;
CREATE FUNCTION wanted(condition text) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	found bigint[];
BEGIN
	EXECUTE format('SELECT array_agg(id ORDER BY id DESC) FROM jobs WHERE %s', condition) INTO found;
	RETURN found;
END
$$;
SELECT is(ids(arguments), wanted(wanted), arguments) FROM condition ORDER BY n;

-- ---- pages

-- All pages: the ids, how many calls there were, and how many of them gave only a cursor.
CREATE FUNCTION pages(arguments text, max int, OUT got bigint[], OUT calls int, OUT short int) LANGUAGE plpgsql AS $$
DECLARE
	more bigint[];
	cursor bigint;
	rows bigint;
BEGIN
	got := '{}';
	calls := 0;
	short := 0;
	LOOP
		calls := calls + 1;
		EXECUTE format('SELECT array_agg(id ORDER BY n) FILTER (WHERE id IS NOT NULL), (array_agg(next_after ORDER BY n DESC))[1], count(*)
			FROM (SELECT id, next_after, row_number() OVER () AS n FROM tq_list(%s, after => %L, max => %s)) l', arguments, cursor, max) INTO more, cursor, rows;
		EXIT WHEN rows = 0;
		got := got || more;
		short := short + (rows < max OR more IS NULL)::int;
	END LOOP;
END
$$;
SELECT is(p.got, (SELECT array_agg(id ORDER BY CASE WHEN newest THEN -id ELSE id END) FROM jobs WHERE what !~ 'purged'),
		format('pages of %s, newest first: %s', max, newest))
	FROM unnest('{1,2,3,7,50}'::int[]) max, unnest('{true,false}'::boolean[]) newest, pages('newest => ' || newest, max) p;
SELECT is(p.got, (SELECT array_agg(id ORDER BY id DESC) FROM jobs WHERE state = s AND what !~ 'purged'), 'pages of one that is ' || s)
	FROM unnest('{ready,running,dead,succeeded}'::text[]) s, pages('state => ' || quote_literal(s), 1) p;
SELECT is((SELECT count(*) FROM tq_list(after => 0, newest => false, max => 1)), 1::bigint, 'after 0 is from the first');

-- more than a call looks at
SELECT count(e) FROM (SELECT tq_enqueue_many('many', array_agg(jsonb_build_object('m', i % 2000)), kinds => array_agg('k' || i % 100),
	priorities => array_agg(i % 2)) FROM generate_series(1, 8000) i) e \g /dev/null
SELECT is((p).got, (SELECT array_agg(j.id ORDER BY j.id DESC) FROM tq.job j WHERE payload @> '{"m": 7}'), 'a search without an index finds all that it should')
	FROM pages($$search => '{"m": 7}'$$, 50) p;
SELECT cmp_ok((p).calls, '>', 3, 'a call looks at a part') FROM pages($$search => '{"m": 7}'$$, 50) p;
SELECT ok((p).got = '{}' AND (p).calls > 3, 'so it is if there is none') FROM pages($$search => '{"m": -1}'$$, 50) p;
SELECT is((p).got, (SELECT array_agg(j.id ORDER BY j.id) FROM tq.job j WHERE kind = 'k7'), 'by kind, oldest first')
	FROM pages($$'many', kind => 'k7', newest => false$$, 9) p;
SELECT is((p).calls, 2, 'a queue of few jobs among many others is found by its index') FROM pages($$'b'$$, 50) p;
SELECT is((p).calls, 2, 'and a kind of few jobs') FROM pages($$'many', kind => 'k7'$$, 100) p;

-- ---- LIMIT

SELECT results_eq('SELECT id FROM tq_jobs LIMIT 3', 'SELECT id FROM jobs ORDER BY id LIMIT 3', 'a LIMIT on tq_jobs');
SELECT is((SELECT count(*) FROM tq_jobs), (SELECT count(*) FROM tq.job) - 2, 'all of tq_jobs');
SELECT is((SELECT count(*) - count(DISTINCT id) FROM tq_jobs), 0::bigint, '... each once');
SELECT results_eq('SELECT id FROM tq_dead LIMIT 1', $$SELECT id FROM jobs WHERE state IN ('dead', 'buried') ORDER BY id LIMIT 1$$, 'a LIMIT on tq_dead');
BEGIN;
SELECT tq_retry(id) FROM jobs WHERE what = 'dead_a' \g /dev/null
SELECT results_eq($$SELECT reason FROM tq_dead WHERE kind = 'dead' ORDER BY id$$, $$VALUES ('x')$$, 'a job that this transaction retries is not dead');
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM tq_jobs;
FETCH 1 FROM c \g /dev/null
SELECT is((SELECT count(*) FROM pg_locks l JOIN pg_class k ON k.oid = l.relation WHERE k.relname ~ '^(job|event)_[0-9]' AND l.pid = pg_backend_pid()), 0::bigint,
	'an open cursor holds no lock on a segment');
ROLLBACK;

-- ---- rights

CREATE ROLE f_none;
CREATE ROLE f_consume;
CREATE ROLE f_manage;
CREATE ROLE f_owner;
SELECT tq_grant('a', 'f_consume', 'consume'), tq_grant('a', 'f_manage', 'manage'), tq_grant('a', 'f_owner', 'manage'), tq_grant('a', 'f_owner', 'monitor') \g /dev/null
CREATE FUNCTION says(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
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
GRANT SELECT ON jobs TO PUBLIC;
CREATE TABLE attempt (statement text, none text, consume text, manage text, owner text);
INSERT INTO attempt VALUES
	('SELECT count(*) FROM tq_list(max => 1000)', '0', '11', '11', '11'),
	($$SELECT count(*) FROM tq_list('b')$$, '42501', '42501', '42501', '42501'),
	($$SELECT count(*) FROM tq_list('nowhere')$$, '42501', '42501', '42501', '42501'),
	($$SELECT (worker, group_key, unique_key, tags, payload IS NULL)::text FROM tq_list('a', 'succeeded')$$, '42501', '(w_a,g4,succeeded4,"{t0,succeeded}",f)', '(w_a,,,,t)',
		'(w_a,g4,succeeded4,"{t0,succeeded}",f)'),
	($$SELECT count(*) FROM tq_list(tag => 't1')$$, '0', '3', '0', '3'),
	($$SELECT count(*) FROM tq_list(group_key => 'g4')$$, '0', '1', '0', '1'),
	($$SELECT count(*) FROM tq_list(unique_key => 'dead5')$$, '0', '1', '0', '1'),
	($$SELECT count(*) FROM tq_list(search => '{"n": 5}')$$, '0', '1', '0', '1'),
	($$SELECT count(*) FROM tq_list('a', tag => 't1')$$, '42501', '3', '42501', '3'),
	($$SELECT count(*) FROM tq_list(state => 'running')$$, '0', '1', '1', '1'),
	($$SELECT changed FROM tq_cancel_many(NULL, 'delayed', dry_run => true)$$, '0', '0', '1', '1'),
	($$SELECT changed FROM tq_cancel_many('a', 'delayed', dry_run => true)$$, '42501', '42501', '1', '1'),
	($$SELECT changed FROM tq_cancel_many('b', 'delayed')$$, '42501', '42501', '42501', '42501'),
	($$SELECT changed FROM tq_cancel_many(NULL, 'delayed', tag => 't2', dry_run => true)$$, '0', '0', '0', '1'),
	($$SELECT changed FROM tq_cancel_many('a', 'delayed', tag => 't2', dry_run => true)$$, '42501', '42501', '42501', '1'),
	($$SELECT changed FROM tq_reschedule_many('a', 'delayed', priority => 1, dry_run => true)$$, '42501', '42501', '1', '1'),
	($$SELECT changed FROM tq_retry_where('a', dry_run => true)$$, '42501', '42501', '1', '1'),
	($$SELECT changed FROM tq_purge_many('a', 'all', dry_run => true)$$, '42501', '42501', '10', '10');
SELECT is(says('f_' || role, statement), to_jsonb(a) ->> role, role || ': ' || statement) FROM attempt a, unnest('{none,consume,manage,owner}'::text[]) role;
SELECT is(says('f_none', $$SELECT count(*) FROM tq_list('b', tag => 't1')$$), '42501', 'a role without a right cannot tell whether there is the queue');

-- ---- changes

CREATE FUNCTION states() RETURNS jsonb LANGUAGE sql AS $$SELECT jsonb_object_agg(what, g.state) FROM jobs j, tq_get(j.id) g$$;
CREATE TABLE before AS SELECT states();
SELECT is(c::text, '(6,)', 'a dry run counts') FROM tq_cancel_many('a', dry_run => true) c;
SELECT is(states(), before.states, '... and changes nothing') FROM before;
BEGIN TRANSACTION READ ONLY;
SELECT is(changed, 1::bigint, 'also in a read-only transaction') FROM tq_retry_where('a', dry_run => true);
SELECT throws_ok($$SELECT tq_retry_where('a')$$, '25006', NULL, 'which changes nothing else');
ROLLBACK;

-- What a call changes, all of it taken back: the answer, and the states that are new.
CREATE FUNCTION changes(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	found text;
BEGIN
	BEGIN
		EXECUTE 'SELECT c::text FROM ' || call || ' c' INTO answer;
		SELECT string_agg(j.what || '=' || g.state, ' ' ORDER BY j.what) INTO found
			FROM jobs j, tq_get(j.id) g, before b WHERE g.state IS DISTINCT FROM b.states ->> j.what;
		RAISE EXCEPTION 'take it back';
	EXCEPTION WHEN raise_exception THEN
	END;
	IF states() <> (SELECT states FROM before) THEN
		RETURN 'left something behind';
	END IF;
	RETURN concat_ws(' ', answer, found);
END
$$;
CREATE TABLE call (n int GENERATED ALWAYS AS IDENTITY, call text, wanted text);
INSERT INTO call (call, wanted) VALUES
	($$tq_cancel_many('a', 'delayed')$$, '(1,) delayed_a=cancelled'),
	($$tq_cancel_many('a', 'ready', kind => 'ready')$$, '(1,) ready_a=cancelled'),
	($$tq_cancel_many(NULL, kind => 'delayed', reason => 'why')$$, '(2,) delayed_a=cancelled delayed_b=cancelled'),
	($$tq_cancel_many(NULL, 'blocked')$$, '(1,) blocked_a=cancelled'),
	($$tq_cancel_many(NULL, 'running')$$, '(2,)'),
	($$tq_cancel_many('a', tag => 't3')$$, '(2,) moved_a=cancelled'),
	($$tq_cancel_many('a', 'running', worker => 'nobody')$$, '(0,)'),
	($$tq_cancel_many('a', unique_key => 'ready1', search => '{"n": 1}')$$, '(1,) ready_a=cancelled'),
	($$tq_reschedule_many('a', 'ready', run_at => now() + interval '1 h', kind => 'ready')$$, '(1,) ready_a=delayed'),
	($$tq_reschedule_many('a', 'delayed', run_at => now())$$, '(1,) delayed_a=ready'),
	($$tq_reschedule_many('a', 'blocked', priority => 3)$$, '(1,)'),
	($$tq_retry_where('a')$$, '(1,) dead_a=ready'),
	($$tq_retry_where(NULL, 'buried')$$, '(2,) buried_a=ready buried_b=ready'),
	($$tq_retry_where(NULL, 'delayed', kind => 'delayed')$$, '(2,) delayed_a=ready delayed_b=ready'),
	($$tq_retry_where(NULL, 'cancelled', group_key => 'g7')$$, '(0,)'),
	($$tq_retry_where('b', 'cancelled', search => '{"n": 7}')$$, '(1,) cancelled_b=ready'),
	($$tq_purge_many('a', 'dead')$$, '(1,) dead_a=purged'),
	($$tq_purge_many(NULL, 'delayed')$$, '(2,) delayed_a=purged delayed_b=purged'),
	($$tq_purge_many('a', 'all', tag => 't1')$$, '(3,) dead_a=purged ready_a=purged retried_a=purged'),
	($$tq_purge_many('a', 'blocked', created_to => now() - interval '1 d')$$, '(0,)');
SELECT is(changes(call), wanted, call) FROM call ORDER BY n;

-- in steps
CREATE FUNCTION in_steps(function text, arguments text, max int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	cursor bigint := 0;
	n bigint;
	changed text := '';
BEGIN
	WHILE cursor IS NOT NULL LOOP
		EXECUTE format('SELECT changed, next_after FROM %s(%s, max => %s, after => %s)', function, arguments, max, cursor) INTO n, cursor;
		changed := changed || ' ' || n;
	END LOOP;
	RETURN changed;
END
$$;
SELECT tq_enqueue_many('many', array_fill('{}'::jsonb, ARRAY[25]), 'step') \g /dev/null
SELECT is(in_steps('tq_reschedule_many', $$'many', kind => 'step', run_at => now() + interval '1 d'$$, 10), ' 10 10 5', 'a call changes as many as it is told');
SELECT is((SELECT count(*) FROM tq_list('many', 'delayed', 'step', max => 1000)), 25::bigint, 'all are changed');
SELECT is(in_steps('tq_cancel_many', $$'many', kind => 'step'$$, 25), ' 25 0', 'the cursor after a full call leads to the end');
SELECT is(in_steps('tq_retry_where', $$'many', 'cancelled', kind => 'step'$$, 24), ' 24 1', 'retried');
SELECT is(in_steps('tq_purge_many', $$'many', 'ready', kind => 'step'$$, 24), ' 24 1', 'purged');

-- keys
SELECT tq_enqueue('many', kind => 'key', unique_key => 'one', priority => -1) AS one \gset
SELECT tq_fail(id, lease, 'x', fatal => true) FROM tq_claim('many', kinds => '{key}') \g /dev/null
SELECT tq_enqueue('many', kind => 'other', unique_key => 'one') \g /dev/null
SELECT is(c::text, '(0,)', 'a job whose key is taken is left') FROM tq_retry_where('many', kind => 'key') c;

-- ---- arguments

SELECT throws_ok($$SELECT * FROM tq_list(state => 'lost')$$, '22023', 'unknown state "lost"');
SELECT throws_ok($$SELECT * FROM tq_list(state => 'purged')$$, '22023', 'unknown state "purged"');
SELECT throws_ok($$SELECT tq_cancel_many('a', 'dead')$$, '22023', 'jobs that are "dead" cannot be cancelled');
SELECT throws_ok($$SELECT tq_retry_where('a', 'succeeded')$$, '22023', 'jobs that are "succeeded" cannot be retried');
SELECT throws_ok($$SELECT tq_retry_where('a', NULL)$$, '22004', 'state must not be null');
SELECT throws_ok($$SELECT tq_purge_many('a', 'running')$$, '22023', 'jobs that are "running" cannot be purged');
SELECT throws_ok($$SELECT tq_reschedule_many('a')$$, '22023', 'run_at or priority must be given');

-- ---- rows written by hand

SELECT tq_deactivate() \g /dev/null
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload, kind, group_key, unique_key, tags, expires_at)
	SELECT 9000000 + n, t, q.id, 0, p::jsonb, k, g, 'u', tags::text[], t FROM tq.queue q, (VALUES
		(1, 'infinity'::timestamptz, 'null', NULL, NULL, NULL), (2, '-infinity', '"text"', repeat('k', 63), repeat('g', 127), '{NULL}'),
		(3, '4713-01-01 BC', '[[[]]]', NULL, 'g', '{{a,b},{c,d}}')) v (n, t, p, k, g, tags) WHERE q.name = 'b';
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) VALUES (9000004, now(), -5, 0, '{}');
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) SELECT 9000005, now(), id, 0, to_jsonb(repeat('x', 40000000)) FROM tq.queue WHERE name = 'b';
INSERT INTO tq.event_0 (job_id, at, step, type, worker) VALUES (9000003, 'infinity', 1, 'd', repeat('w', 1000)), (9000001, now(), 1, '?', '');
SELECT FROM tq_activate(discard => true) \g /dev/null
SELECT results_eq('SELECT id, queue FROM tq_list(max => 5)', $$VALUES (9000005::bigint, 'b'), (9000004, NULL), (9000003, 'b'), (9000002, 'b'), (9000001, 'b')$$,
	'rows that no setting allows are shown');
SELECT results_eq($$SELECT tags, payload FROM tq_list('b', max => 5) WHERE id IN (9000002, 9000003)$$, $$VALUES ('{{a,b},{c,d}}'::text[], '[[[]]]'), ('{NULL}', '"text"')$$,
	'with what they have');
SELECT matches((SELECT payload FROM tq_list('b', max => 1)), '^(\.\.\. \[|\{"cut").*', 'a payload of 40 MB is not');
SELECT is((SELECT count(id) FROM tq_list(tag => 'd', max => 1000)), 1::bigint, 'a tag in an array of two dimensions');
SELECT is((SELECT count(id) FROM tq_list(search => '[[]]', max => 1000)), 1::bigint, 'a search among them');

SELECT * FROM finish();
