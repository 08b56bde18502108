-- tq_dead_groups: what of an error counts, counts and times, limits, rights.
SET client_min_messages = warning;

SELECT * FROM no_plan();

SELECT tq_create_queue('letters');
CREATE TABLE letter (n int GENERATED ALWAYS AS IDENTITY, error text, wanted text);
INSERT INTO letter (error, wanted) VALUES
	('timeout after 30 s', 'timeout after ? s'),
	('timeout after 1,000.5 s', 'timeout after ? s'),
	('30ms to 10:30, twice', '?ms to ?, twice'),
	('job17 failed', 'job? failed'),
	('no table "orders" here', 'no table ? here'),
	('no table "a 1" here', 'no table ? here'),
	('it''s broken, isn''t it', 'it''s broken, isn''t it'),
	('key ''a''''b''', 'key ??'),
	('one " alone', 'one " alone'),
	(E'"over\nlines"', E'"over\nlines"'),
	('id 0b5e3a52-9c1f-4f0e-8d59-2f1c3ad0a9ee', 'id ?'),
	('id 0b5e3a52-9c1f-4f0e-8d59-2f1c3ad0a9eex', 'id ?-?c?f-?f?e-?d?-?f?c?ad?a?eex'),
	('at 0xDEADBEEF', 'at ?'),
	('commit 8aae3a73b4c5', 'commit ?'),
	('the deadbeat', 'the deadbeat'),
	('facade deadbeef', 'facade deadbeef'),
	(E'\u00fc12 \u00e9', E'\u00fc? \u00e9'),
	('x1''y''', 'x??'),
	('x12''y''', 'x??'),
	('', '');
SELECT tq_enqueue('letters', jsonb_build_object('n', n), kind => 'k' || n) FROM letter;
WITH c AS MATERIALIZED (SELECT * FROM tq_claim('letters', 1000))
SELECT is(tq_fail(id, lease, error, fatal => true), 'dead', error) FROM c JOIN letter l ON l.n = (c.payload->>'n')::int;
SELECT is(g.error, nullif(l.wanted, ''), 'the error: ' || l.error) FROM letter l JOIN tq_dead_groups('letters') g ON g.kind = 'k' || l.n;
SELECT is((SELECT count(*) FROM tq_dead_groups('letters')), (SELECT count(*) FROM letter), 'kinds are groups');

-- a group's error is a condition for its jobs, and so is the error of one of them
SELECT is((SELECT array_agg(kind ORDER BY kind) FROM tq_list('letters', error => 'timeout after ? s')), '{k1,k2}', 'the jobs of a group');
SELECT is((SELECT array_agg(kind ORDER BY kind) FROM tq_list('letters', error => 'timeout after 77 s', newest => false)), '{k1,k2}', '... by the error of a job like them');
SELECT is((SELECT count(*) FROM tq_list('letters', 'ready', error => 'timeout after ? s')), 0::bigint, 'in this state none has it');
SELECT results_eq($$SELECT g.kind, g.jobs FROM tq_dead_groups('letters') g WHERE g.error IS NOT NULL ORDER BY 1$$,
	$$SELECT g.kind, count(l.id) FROM tq_dead_groups('letters') g, tq_list('letters', kind => g.kind, error => g.error, max => 1000) l WHERE g.error IS NOT NULL
		GROUP BY 1 ORDER BY 1$$, 'each group has its jobs');
SELECT is((SELECT array_agg(kind) FROM tq_list('letters', error => '')), ARRAY['k' || n], 'the jobs without an error') FROM letter WHERE error = '';
SELECT is(tq_retry_where('letters', error => 'timeout after ? s', dry_run => true)::text, '(2,)', 'so many would be retried');
SELECT is(tq_purge_many('letters', 'all', error => 'job? failed', kind => 'k1')::text, '(0,)', 'all conditions hold');
SELECT is(tq_purge_many('letters', 'dead', error => 'job? failed')::text, '(1,)', 'and purged');
SELECT is(tq_retry_where('letters', error => 'no table ? here')::text, '(2,)', 'and retried');
SELECT is((SELECT array_agg(kind ORDER BY kind) FROM tq_jobs WHERE queue = 'letters' AND state = 'ready'), '{k5,k6}', 'these jobs and no other');
SELECT is((SELECT detail FROM tq_audit WHERE action = 'retry_where' ORDER BY id DESC LIMIT 1), '{"jobs": 2, "state": "dead", "error": "no table ? here"}', 'with the error in the audit');

-- counts, times, the example; buried jobs; jobs that have begun again
SELECT tq_create_queue('counted');
SELECT tq_enqueue('counted', kind => CASE n % 3 WHEN 0 THEN 'even' END) FROM generate_series(1, 7) n;
WITH c AS MATERIALIZED (SELECT * FROM tq_claim('counted', 6))
SELECT is(CASE id % 2 WHEN 0 THEN tq_fail(id, lease, 'n ' || id, fatal => true) ELSE tq_bury(id, lease, 'n ' || id) END IN ('dead', 'buried'), true, 'a letter') FROM c;
SELECT is((SELECT string_agg(format('%s:%s:%s:%s', kind, error, jobs, complete), ' ') FROM tq_dead_groups('counted')), ':n ?:4:t even:n ?:2:t', 'the largest first');
SELECT is((SELECT array[first_at, last_at] FROM tq_dead_groups('counted') WHERE kind IS NULL),
	(SELECT array[min(died_at), max(died_at)] FROM tq_dead WHERE queue = 'counted' AND kind IS NULL), 'times');
SELECT is((SELECT count(*) FROM tq_dead_groups('counted') g JOIN tq_dead d ON d.id = g.example AND d.queue = 'counted' AND d.died_at = g.last_at), 2::bigint, 'examples');
SELECT is((SELECT format('%s:%s', sum(jobs), bool_or(complete)) FROM tq_dead_groups('counted', max_jobs => 4)), '4:f', 'so many are looked at, and it is said');
SELECT is((SELECT format('%s:%s', sum(jobs), bool_and(complete)) FROM tq_dead_groups('counted', max_jobs => 6)), '6:t', 'all of them');
SELECT is(tq_retry_many('counted', kind => 'even') > 0, true, 'one kind begins again');
SELECT is((SELECT string_agg(format('%s:%s', kind, jobs), ' ') FROM tq_dead_groups('counted')) !~ 'dead', true, 'no longer counted');
SELECT is((SELECT count(*) FROM tq_dead_groups('counted') g JOIN tq_jobs j ON j.id = g.example WHERE j.state NOT IN ('dead', 'buried')), 0::bigint, 'no example among them');
SELECT is(tq_retry_where('counted', kind => '', error => 'n ?')::text, '(2,)', 'jobs without a kind begin again');
SELECT is(tq_purge_many('counted', 'buried', kind => '', error => 'n 5')::text, '(2,)', '... and are purged');
SELECT is((SELECT string_agg(format('%s:%s', kind, jobs), ' ') FROM tq_dead_groups('counted')), 'even:1', '... and no others');
SELECT throws_ok($$SELECT * FROM tq_dead_groups('counted', max_jobs => 0)$$, '22023', NULL, 'at least one');
SELECT throws_ok($$SELECT * FROM tq_dead_groups(NULL)$$, '22004', NULL, 'a queue');
SELECT throws_ok($$SELECT * FROM tq_dead_groups('no such queue')$$, 'TQ002', NULL, 'that is there');
SELECT is_empty($$SELECT * FROM tq_dead_groups('empty')$$, 'none') FROM (SELECT tq_create_queue('empty')) q;

-- rights as for tq_dead
CREATE ROLE g_manage;
CREATE ROLE g_produce;
SELECT tq_grant('letters', 'g_manage', 'manage');
SELECT tq_grant('letters', 'g_produce', 'produce');
SET ROLE g_manage;
SELECT is((SELECT count(*) FILTER (WHERE error IS NULL) = count(*) AND count(*) > 0 FROM tq_dead_groups('letters')), true, 'without consume or monitor no errors');
SELECT throws_ok($$SELECT * FROM tq_dead_groups('counted')$$, '42501', NULL, 'no other queue');
SELECT throws_ok($$SELECT * FROM tq_list('letters', error => 'x')$$, '42501', NULL, 'nor may it look for errors');
SELECT throws_ok($$SELECT tq_retry_where('letters', error => 'x', dry_run => true)$$, '42501', NULL, '... to retry');
SELECT is((SELECT count(*) FROM tq_list(error => 'timeout after ? s')), 0::bigint, '... in any queue');
SET ROLE g_produce;
SELECT throws_ok($$SELECT * FROM tq_dead_groups('letters')$$, '42501', NULL, 'produce is not enough');
RESET ROLE;

SELECT * FROM finish();
SELECT format('DROP OWNED BY %I CASCADE', rolname), format('DROP ROLE %I', rolname) FROM pg_roles WHERE rolname ~ '^g_' ORDER BY rolname \gexec
