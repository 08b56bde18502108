-- Errors of calls with arrays name the element that is the cause.
SET client_min_messages = warning;
SET tq.max_pinned_wait = '1 h';

SELECT * FROM no_plan();

-- The SQLSTATE of a statement, and the element in the CONTEXT of its error.
CREATE FUNCTION element(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	context text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
	RETURN sqlstate || coalesce(' ' || substring(context FROM '^element (\d+) of the arrays'), '');
END
$$;

SELECT tq_create_queue('e');
-- the child waits for the job with the key 'parent'
SELECT tq_enqueue('e', unique_key => 'taken') AS taken, tq_enqueue('e', unique_key => 'later', delay => '1 h') AS later,
	tq_enqueue('e', unique_key => 'parent') AS parent \gset
SELECT tq_enqueue('e', depends_on => ARRAY[:parent]::bigint[]) AS child \gset

SELECT is(element(format('SELECT tq_enqueue_many(''e'', ''{1,2,3}'', %s)', arguments)), wanted, what) FROM (VALUES
	('a kind', $$kinds => '{a,b,""}'$$, '22023 3'),
	('a long kind', $$kinds => array['a', repeat('k', 64), 'c']$$, '22023 2'),
	('a priority', $$priorities => '{1,40000,NULL}'$$, '22023 2'),
	('a time', $$run_ats => '{infinity,now,now}'$$, '22023 1'),
	('a time after the expiry', $$run_ats => array[now(), now(), now() + '2 h'], expires_at => now() + '1 h'$$, '22023 3'),
	('a unique key', $$unique_keys => '{a,"",c}'$$, '22023 2'),
	('a group', $$group_keys => '{NULL,NULL,""}'$$, '22023 3'),
	('a key that is taken', $$unique_keys => '{a,taken,c}', unique_mode => 'error'$$, 'TQ008 2'),
	('a key of an earlier element', $$unique_keys => '{a,b,a}', unique_mode => 'error'$$, 'TQ008 3'),
	('a start time that is taken over', $$unique_keys => '{a,b,later}', unique_mode => 'keep_run_at', expires_at => now() + '1 min'$$, '22023 3'),
	('a job that would wait for itself', format($$unique_keys => '{a,parent,c}', unique_mode => 'replace', depends_on => '{%s}'$$, :child), '22023 2'),
	('an argument of all', $$priority => 40000$$, '22023'),
	('lengths', $$kinds => '{a}'$$, '22023')) v (what, arguments, wanted);
SELECT is(element($$SELECT * FROM tq_enqueue_many_info('e', '{1,2}', unique_keys => '{a,taken}', unique_mode => 'error')$$), 'TQ008 2', 'with outcomes');
SELECT is(element($$SELECT tq_enqueue('e', unique_key => 'taken', unique_mode => 'error')$$), 'TQ008', 'a single job has no element');
SELECT is(element($$SELECT tq_enqueue_many('e', ARRAY['1', to_jsonb(repeat('x', 1100000))])$$), '54000 2', 'a payload');
SELECT throws_ok($$SELECT tq_enqueue_many('e', ARRAY['1', NULL]::jsonb[])$$, '22004', 'payloads must not contain nulls', 'a null');
SET tq.max_result = '1kB';
SELECT is(element($$SELECT * FROM tq_complete_many('{1,2,3}', '{1,2,3}', ARRAY['1', NULL, to_jsonb(repeat('x', 2000))])$$), '54000 3', 'a result');
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'e'), 4::bigint, 'none of these calls has left a job');

SELECT * FROM finish();
