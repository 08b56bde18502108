-- Policies that an enqueue can set: valid and invalid values, in each way to enqueue; and which policy applies, and its
-- origin.
SET client_min_messages = warning;
SET intervalstyle = 'postgres';
SET timezone = 'UTC';

SELECT * FROM no_plan();

-- The answer of a statement, or SQLSTATE and message.
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ' ' || sqlerrm;
END
$$;

-- ---- values

CREATE TABLE value (n int GENERATED ALWAYS AS IDENTITY, argument text, value text, type text, wanted text);
INSERT INTO value (argument, value, type, wanted) VALUES
	('expires_at', '2100-01-01', 'timestamptz', 'ok'),
	('expires_at', '2000-01-01', 'timestamptz', 'ok'),
	('expires_at', 'infinity', 'timestamptz', 'ok'),
	('expires_at', '-infinity', 'timestamptz', '22023 expires_at must be finite'),
	('timeout', '1 ms', 'interval', 'ok'),
	('timeout', '3652 days', 'interval', 'ok'),
	('timeout', '0 s', 'interval', '22023 timeout is out of range'),
	('timeout', '-1 s', 'interval', '22023 timeout is out of range'),
	('timeout', '3653 days', 'interval', '22023 timeout is out of range'),
	('timeout', '1 month', 'interval', '22023 timeout must not contain months or years'),
	('max_attempts', '1', 'int', 'ok'),
	('max_attempts', '65535', 'int', 'ok'),
	('max_attempts', '0', 'int', '22023 max_attempts is out of range: 0'),
	('max_attempts', '-1', 'int', '22023 max_attempts is out of range: -1'),
	('max_attempts', '65536', 'int', '22023 max_attempts is out of range: 65536'),
	('group_key', 'a', 'text', 'ok'),
	('group_key', repeat('x', 127), 'text', 'ok'),
	('group_key', 'tenant/7 "é"', 'text', 'ok'),
	('group_key', '', 'text', '22023 group_key must not be empty'),
	('group_key', repeat('x', 128), 'text', '22023 group_key is too long'),
	('group_key', repeat('é', 64), 'text', '22023 group_key is too long'),
	('group_key', E'a\nb', 'text', '22023 group_key must not contain control characters'),
	('group_key', E'\x7f', 'text', '22023 group_key must not contain control characters'),
	('group_key', E'a\u0085', 'text', '22023 group_key must not contain control characters'),
	('kind', E'a\u0085', 'text', '22023 kind must not contain control characters'),
	('unique_key', '', 'text', '22023 unique_key must not be empty'),
	('unique_key', repeat('x', 256), 'text', '22023 unique_key is too long'),
	('unique_key', E'\t', 'text', '22023 unique_key must not contain control characters'),
	('unique_mode', 'skip', 'text', 'ok'),
	('unique_mode', 'ignore', 'text', 'ok'),
	('unique_mode', 'replace', 'text', 'ok'),
	('unique_mode', 'keep_run_at', 'text', 'ok'),
	('unique_mode', 'error', 'text', 'ok'),
	('unique_mode', NULL, 'text', 'ok'),
	('unique_mode', '', 'text', '22023 unknown unique_mode ""'),
	('unique_mode', 'Skip', 'text', '22023 unknown unique_mode "Skip"'),
	('headers', '{"a": 1}', 'jsonb', 'ok'),
	('headers', '[]', 'jsonb', '22023 headers must be a JSON object'),
	('headers', 'null', 'jsonb', '22023 headers must be a JSON object'),
	('depends_on', '{}', 'bigint[]', 'ok'),
	('depends_on', '{999999}', 'bigint[]', 'TQ004 job 999999 does not exist'),
	('retry', '{}', 'jsonb', 'ok'),
	('retry', '{"policy": "linear", "delay": "5 s"}', 'jsonb', 'ok'),
	('retry', '{"policy": "list", "delays": ["1 s", "1 min"]}', 'jsonb', 'ok'),
	('retry', '{"policy": null}', 'jsonb', 'ok'),
	('retry', '{"policy": "list"}', 'jsonb', '22023 argument "retry" has a wrong value'),
	('retry', '[]', 'jsonb', '22023 argument "retry" has a wrong value'),
	('retry', 'null', 'jsonb', '22023 argument "retry" has a wrong value'),
	('retry', '"fixed"', 'jsonb', '22023 argument "retry" has a wrong value'),
	('retry', '{"policy": "often"}', 'jsonb', '22023 argument "retry.policy" has a wrong value'),
	('retry', '{"delay": "soon"}', 'jsonb', '22023 argument "retry.delay" has a wrong value'),
	('retry', '{"delay": "-1 s"}', 'jsonb', '22023 argument "retry.delay" has a wrong value'),
	('retry', '{"delays": []}', 'jsonb', '22023 argument "retry.delays" has a wrong value'),
	('retry', '{"factor": 0}', 'jsonb', '22023 argument "retry.factor" has a wrong value'),
	('retry', '{"jitter": -1}', 'jsonb', '22023 argument "retry.jitter" has a wrong value'),
	('retry', '{"tries": 3}', 'jsonb', '22023 unknown key "tries" in retry'),
	('retry', '{"delay": 10}', 'jsonb', '22023 argument "retry.delay" has a wrong value'),
	('retry', '{"delay": "10"}', 'jsonb', 'ok'),
	('retry', '{"delay": "1e9 days"}', 'jsonb', '22023 argument "retry.delay" has a wrong value'),
	('retry', '{"delay": "9999 days"}', 'jsonb', '22023 argument "retry.delay" has a wrong value'),
	('retry', '{"factor": "2"}', 'jsonb', '22023 argument "retry.factor" has a wrong value'),
	('retry', '{"delays": [1]}', 'jsonb', '22023 argument "retry.delays" has a wrong value'),
	('retry', '{"delays": "1 s"}', 'jsonb', '22023 argument "retry.delays" has a wrong value'),
	('options', '{}', 'jsonb', 'ok'),
	('options', '{"weight": null, "tags": null, "lease": null, "unique_for": null, "on_parent_failure": null}', 'jsonb', 'ok'),
	('options', '[]', 'jsonb', '22023 options must be a JSON object'),
	('options', 'null', 'jsonb', '22023 options must be a JSON object'),
	('options', '{"colour": null}', 'jsonb', '22023 unknown key "colour" in options'),
	('options', '{"Weight": 1}', 'jsonb', '22023 unknown key "Weight" in options'),
	('options', '{"weight": 0.01}', 'jsonb', 'ok'),
	('options', '{"weight": 100}', 'jsonb', 'ok'),
	('options', '{"weight": 0}', 'jsonb', '22023 option "weight" has a wrong value'),
	('options', '{"weight": 101}', 'jsonb', '22023 option "weight" has a wrong value'),
	('options', '{"weight": "1"}', 'jsonb', '22023 option "weight" has a wrong value'),
	('options', '{"weight": 1e400}', 'jsonb', '22023 option "weight" has a wrong value'),
	('options', '{"tags": []}', 'jsonb', 'ok'),
	('options', '{"tags": ["a", "b", "a"]}', 'jsonb', 'ok'),
	('options', '{"tags": "a"}', 'jsonb', '22023 option "tags" has a wrong value'),
	('options', '{"tags": {"a": 1}}', 'jsonb', '22023 option "tags" has a wrong value'),
	('options', '{"tags": [1]}', 'jsonb', '22023 option "tags" has a wrong value'),
	('options', '{"tags": [null]}', 'jsonb', '22023 option "tags" has a wrong value'),
	('options', '{"tags": [["a"]]}', 'jsonb', '22023 option "tags" has a wrong value'),
	('options', '{"tags": [""]}', 'jsonb', '22023 a tag must not be empty'),
	('options', jsonb_build_object('tags', array_fill('a'::text, ARRAY[32]))::text, 'jsonb', 'ok'),
	('options', jsonb_build_object('tags', array_fill('a'::text, ARRAY[33]))::text, 'jsonb', '22023 option "tags" has a wrong value'),
	('options', jsonb_build_object('tags', ARRAY[repeat('x', 128)])::text, 'jsonb', '22023 a tag is too long'),
	('options', jsonb_build_object('tags', ARRAY[E'\n'])::text, 'jsonb', '22023 a tag must not contain control characters'),
	('options', '{"lease": "1 ms"}', 'jsonb', 'ok'),
	('options', '{"lease": "49 days"}', 'jsonb', 'ok'),
	('options', '{"lease": "0 s"}', 'jsonb', '22023 option "lease" has a wrong value'),
	('options', '{"lease": "50 days"}', 'jsonb', '22023 option "lease" has a wrong value'),
	('options', '{"lease": 30}', 'jsonb', '22023 option "lease" has a wrong value'),
	('options', '{"lease": "1 month"}', 'jsonb', '22023 option "lease" has a wrong value'),
	('options', '{"unique_for": "0 s"}', 'jsonb', 'ok'),
	('options', '{"unique_for": "1 day"}', 'jsonb', 'ok'),
	('options', '{"unique_for": "-1 s"}', 'jsonb', '22023 option "unique_for" has a wrong value'),
	('options', '{"unique_for": true}', 'jsonb', '22023 option "unique_for" has a wrong value'),
	('options', '{"on_parent_failure": "cancel"}', 'jsonb', 'ok');

-- Bad input for a queue that does not exist creates no queue.
ALTER TABLE value ADD queue text;
-- An error without the value that it shows.
CREATE FUNCTION short(error text) RETURNS text LANGUAGE sql
	AS $$SELECT regexp_replace(error, '(has a wrong value|must be finite|out of range|months or years|JSON object): .*', '\1')$$;
UPDATE value SET queue = CASE wanted WHEN 'ok' THEN 'good' ELSE 'bad' END;
SELECT is(short(attempt(format('SELECT tq_enqueue(%L, %I => %L)', queue, argument, value))), short(wanted),
	format('tq_enqueue: %s %s', argument, left(value, 60))) FROM value;
SELECT is(short(attempt(format('SELECT tq_enqueue_many(%L, ARRAY[''1'', ''2'']::jsonb[], %I => %L)', queue, argument, value))), short(wanted),
	format('tq_enqueue_many: %s %s', argument, left(value, 60))) FROM value WHERE argument <> 'unique_key';
SELECT is(short(attempt(format('INSERT INTO tq_inbox (queue, %I) VALUES (%L, %L::%s)', argument, queue, value, type))), short(wanted),
	format('tq_inbox: %s %s', argument, left(value, 60))) FROM value;
SELECT is((SELECT count(*) FROM tq_queues WHERE queue = 'bad'), 0::bigint, 'bad input leaves no queue');
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'good'), (SELECT 3 * count(*) + count(*) FILTER (WHERE argument <> 'unique_key') FROM value
	WHERE wanted = 'ok'), 'nor a job');

-- the array forms
CREATE TABLE list (argument text, value text, wanted text);
INSERT INTO list VALUES
	('group_keys', '{a,NULL}', 'ok'),
	('group_keys', '{a,a}', 'ok'),
	('group_keys', '{a}', '22023 payloads and group_keys must have the same length'),
	('group_keys', '{}', '22023 payloads and group_keys must have the same length'),
	('group_keys', '{{a,b}}', '2202E group_keys must have one dimension'),
	('group_keys', '{a,""}', '22023 group_keys must not be empty'),
	('unique_keys', '{NULL,NULL}', 'ok'),
	('unique_keys', '{a,b,c}', '22023 payloads and unique_keys must have the same length'),
	('unique_keys', '{{a},{b}}', '2202E unique_keys must have one dimension'),
	('unique_keys', '{"",b}', '22023 unique_keys must not be empty');
SELECT is(attempt(format('SELECT tq_enqueue_many(''lists'', ARRAY[''1'', ''2'']::jsonb[], %I => %L)', argument, value)), wanted,
	format('tq_enqueue_many: %s %s', argument, value)) FROM list;

-- a job that could never start
SELECT is(attempt(format('SELECT tq_enqueue(''times'', run_at => %L, expires_at => %L)', run_at, expires_at)), wanted, run_at || ' to ' || expires_at)
	FROM (VALUES ('2100-01-01', '2100-01-02', 'ok'), ('2100-01-01', 'infinity', 'ok'),
		('2100-01-01', '2100-01-01', '22023 expires_at must be after the time at which the job may start'),
		('2100-01-01', '2000-01-01', '22023 expires_at must be after the time at which the job may start')) t (run_at, expires_at, wanted);
SELECT throws_ok($$SELECT tq_enqueue('times', delay => '1 h', expires_at => now() + interval '1 min')$$, '22023',
	'expires_at must be after the time at which the job may start');
SELECT throws_ok($$SELECT tq_enqueue_many('times', ARRAY['1', '2']::jsonb[], expires_at => now() + interval '1 h',
	run_ats => ARRAY[NULL, now() + interval '2 h'])$$, '22023', 'expires_at must be after the time at which the job may start');

-- the hint lists the known keys
CREATE FUNCTION hint_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	h text;
BEGIN
	EXECUTE statement;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS h = PG_EXCEPTION_HINT;
	RETURN h;
END
$$;
SELECT is(hint_of($$SELECT tq_enqueue('x', options => '{"colour": 1}')$$), 'Known keys are batch, follow_up, lease, on_parent_failure, tags, unique_for, weight.',
	'the hint for a wrong option lists the known options');
SELECT is(hint_of($$SELECT tq_enqueue('x', retry => '{"colour": 1}')$$), 'Known keys are policy, delay, max, factor, jitter, delays, on_lost.',
	'the hint for a wrong key of a retry policy lists the known keys');
SELECT is(hint_of($$SELECT tq_enqueue('x', unique_mode => 'no')$$), 'Known modes are skip, skip_waiting, ignore, replace, replace_waiting, keep_run_at, error.',
	'the hint for a wrong unique_mode lists the known modes');

-- ---- durations: the core parses common forms, and agrees with the type interval

SELECT is(policies -> 'retry' -> 'value' ->> 'delay', wanted, 'duration ' || written)
	FROM (VALUES ('0 s', '00:00:00'), ('250ms', '00:00:00.25'), ('1 h 30 min', '01:30:00'), (' 2 Days ', '2 days'), ('01:02:03', '01:02:03'),
		('1:30', '01:30:00'), ('1:30.5', '00:01:30.5'), ('3 us', '00:00:00.000003'), ('1 day -1 hour', '23:00:00'),
		('P1DT2H', '1 day 02:00:00'), ('1 week', '7 days'), ('1 day 2:03', '1 day 02:03:00')) v (written, wanted),
	LATERAL tq_get(tq_enqueue('durations', retry => jsonb_build_object('delay', written)));

SELECT is(extract(epoch FROM (policies -> 'retry' -> 'value' ->> 'delay')::interval), extract(epoch FROM written::interval), 'as interval: ' || written)
	FROM unnest(ARRAY['1.5 s', '1.1 days', '0.1 us', '2.7 ms', '1 d 2 h 3 m 4 s 5 ms 6 us', '100:59:59.999999', '7 MINUTES', '1.25 hour']) written,
	LATERAL tq_get(tq_enqueue('durations', retry => jsonb_build_object('delay', written)));

-- ---- tq.retry: malformed values are refused

\set ON_ERROR_STOP 0
SELECT format('ALTER SYSTEM SET tq.retry = %L', v) FROM unnest(ARRAY['', ' ', '{', '}', '[]', 'null', 'x', '"fixed"', '{"delay"}', '{"delay":}',
	'{"delay": "1 s"', '{"delay": "1 s",}', '{"delay": "1 s"}x', '{delay: "1 s"}', '{"delay": 10}', '{"delay": ""}', '{"delay": "-1 s"}', '{"delay": "1 s 1 s"}',
	'{"delay": "1 month"}', '{"delay": "9999 days"}', '{"factor": 0.5}', '{"factor": 1001}', '{"factor": "2"}', '{"jitter": 1.5}',
	'{"policy": "other"}', '{"policy": "list"}', '{"policy": 1}', '{"delays": []}', '{"delays": ["1 s"', '{"delays": [1]}', '{"delays": "1 s"}',
	'{"unknown": 1}', jsonb_build_object('delays', array_fill('1 s'::text, ARRAY[17]))::text]) v \gexec
\set ON_ERROR_STOP 1
SELECT is((SELECT count(*) FROM pg_file_settings WHERE name = 'tq.retry'), 0::bigint, 'no malformed policy is taken');
SELECT format('ALTER SYSTEM SET tq.retry = %L', v) FROM unnest(ARRAY['{}', '{"max": null, "delay": "1 s"}', '{"policy": "list", "delays": ["1 s", "2 min"]}',
	' {"policy":"list", "delay" : "10 s","max":"1 h","factor":3.5,"jitter":0,"on_lost":"5 s", "delays":["1 s", "2 min", "00:00:03"]} ']) v \gexec
SELECT is((SELECT count(*) FROM pg_file_settings WHERE name = 'tq.retry' AND error IS NULL), 1::bigint, 'and well-formed ones are');
ALTER SYSTEM RESET tq.retry;

-- ---- stored values

SELECT tq_enqueue('kept', expires_at => '2100-01-02', max_attempts => 3, retry => '{"delay": "7 s"}', timeout => '90 s', group_key => 'g',
	options => '{"weight": 2.5, "tags": ["a", "b"], "lease": "20 s", "unique_for": "1 h"}') AS job \gset
SELECT is(row_to_json(j)::jsonb, '{"expires_at": "2100-01-02T00:00:00+00:00", "max_attempts": 3, "retry": {"delay": "7 s"}, "timeout": 90000000,
	"lease": 20000000, "group_key": "g", "weight": 2.5, "tags": ["a", "b"]}'::jsonb, 'the row has what was said')
	FROM (SELECT expires_at, max_attempts, retry, timeout, lease, group_key, weight, tags FROM tq.job WHERE id = :job) j;
SELECT is(options ->> 'unique_for', '1 h', 'what has no column is in options') FROM tq.job WHERE id = :job;
SELECT is(row_to_json(g)::jsonb, '{"group_key": "g", "unique_key": null, "expires_at": "2100-01-02T00:00:00+00:00", "tags": ["a", "b"],
	"origin": null}'::jsonb, 'and tq_get shows it')
	FROM (SELECT group_key, unique_key, expires_at, tags, origin FROM tq_get(:job)) g;
SELECT is(group_key, wanted, 'a group for each') FROM unnest(tq_enqueue_many('kept', ARRAY['1', '2', '3']::jsonb[], group_key => 'all',
	group_keys => ARRAY['a', NULL, 'c']), ARRAY['a', 'all', 'c']) AS j (job, wanted), LATERAL tq_get(job);

-- ---- which policy applies, and its origin

CREATE FUNCTION applied(job bigint, key text) RETURNS text LANGUAGE sql AS
	$$SELECT (policies -> key ->> 'from') || ' ' || coalesce(policies -> key ->> 'value', 'none') FROM tq_get(job)$$;

SELECT tq_create_queue('plain');
SELECT tq_create_queue('set', '{"priority": 9, "max_attempts": 4, "retry": {"policy": "list", "delays": ["1 s", "2 days"], "max": "9 days", "jitter": 0},
	"lease": "30 s", "lease_grace": "2 s", "timeout": "10 min", "strict_timeout": true, "on_lost": "bury", "cancel_grace": "5 s",
	"expires_in": "2 h", "unique_for": "3 h"}');
SELECT tq_enqueue('plain') AS plain \gset
SELECT tq_enqueue('set') AS set \gset
SELECT tq_enqueue('set', priority => 3, max_attempts => 2, retry => '{"policy": "fixed", "delay": "3 s"}', timeout => '1 s',
	expires_at => 'infinity', options => '{"lease": "4 s", "weight": 0.5}') AS own \gset

CREATE TABLE policy (key text, of_server text, of_queue text, own text);
INSERT INTO policy VALUES
	('priority', 'server 100', 'queue 9', 'job 3'),
	('max_attempts', 'server 20', 'queue 4', 'job 2'),
	('lease', 'server 00:05:00', 'queue 00:00:30', 'job 00:00:04'),
	('lease_grace', 'server 00:00:00', 'queue 00:00:02', 'queue 00:00:02'),
	('timeout', 'server none', 'queue 00:10:00', 'job 00:00:01'),
	('strict_timeout', 'server false', 'queue true', 'queue true'),
	('on_lost', 'server retry', 'queue bury', 'queue bury'),
	('cancel_grace', 'server 00:00:30', 'queue 00:00:05', 'queue 00:00:05'),
	('weight', 'server 1', 'server 1', 'job 0.5');
SELECT is(applied(:plain, key), of_server, key || ' of the server') FROM policy;
SELECT is(applied(:set, key), of_queue, key || ' of the queue') FROM policy;
SELECT is(applied(:own, key), own, key || ' of the job') FROM policy;
SELECT is(policies -> 'retry', '{"from": "server", "value": {"policy": "exponential", "delay": "00:00:10", "max": "01:00:00", "factor": 2,
	"jitter": 0.1, "on_lost": "00:00:00"}}'::jsonb, 'retry of the server') FROM tq_get(:plain);
SELECT is(policies -> 'retry', '{"from": "queue", "value": {"policy": "list", "delays": ["00:00:01", "2 days"], "max": "9 days", "jitter": 0,
	"on_lost": "00:00:00"}}'::jsonb, 'retry of the queue') FROM tq_get(:set);
SELECT is(policies -> 'retry', '{"from": "job", "value": {"policy": "fixed", "delay": "00:00:03", "max": "9 days", "jitter": 0,
	"on_lost": "00:00:00"}}'::jsonb, 'retry of the job, over that of the queue') FROM tq_get(:own);
SELECT is(applied(:plain, 'expires_at'), 'server none', 'expires_at of the server');
SELECT is(applied(:own, 'expires_at'), 'job none', 'expires_at of the job');
SELECT is(policies -> 'expires_at' ->> 'from', 'queue', 'expires_at of the queue') FROM tq_get(:set);
SELECT is(expires_at - enqueued_at, interval '2 h', 'is expires_in after the enqueue') FROM tq_get(:set);
SELECT is(expires_at - run_at, interval '2 h', 'or after the time at which it may start')
	FROM tq_get(tq_enqueue('set', delay => '1 day'));
SELECT is(policies -> 'unique_for', NULL, 'unique_for is shown with a key only') FROM tq_get(:set);
SELECT tq_reschedule(:set, priority => -1) \gset
SELECT is(applied(:set, 'priority'), 'job -1', 'a changed priority is the job''s own');

SELECT is(policies -> 'retry' -> 'value' ->> 'max', wanted, 'max of ' || retry)
	FROM (VALUES ('{"policy": "list", "delays": ["1 day"]}', '3652 days'), ('{"policy": "list", "delays": ["1 day"], "max": "2 h"}', '02:00:00'),
		('{"policy": "list", "delays": ["1 day"], "max": null}', '3652 days'), ('{"policy": "fixed"}', '01:00:00')) v (retry, wanted),
	LATERAL tq_get(tq_enqueue('plain', retry => retry::jsonb));

-- the server's value, as this session sees it
SET tq.priority = 42;
SET tq.lease = '7 s';
SET tq.timeout = '8 s';
SET tq.expires_in = '1 min';
SET tq.cancel_grace = '9 s';
SELECT tq_enqueue('plain') AS job \gset
SELECT is(applied(:job, key), wanted, key || ' of the session') FROM (VALUES ('priority', 'server 42'), ('lease', 'server 00:00:07'),
	('timeout', 'server 00:00:08'), ('cancel_grace', 'server 00:00:09')) v (key, wanted);
SELECT is(policies -> 'expires_at' ->> 'from', 'server', 'expires_at of the session') FROM tq_get(:job);
SELECT is(expires_at - enqueued_at, interval '1 min', 'a minute from now') FROM tq_get(:job);
SELECT is(expires_at, NULL, 'which the job can decline') FROM tq_get(tq_enqueue('plain', expires_at => 'infinity'));
SELECT tq_alter_queue('set', '{"expires_in": "0 s"}');
SELECT is(expires_at, NULL, 'and the queue') FROM tq_get(tq_enqueue('set'));
RESET tq.priority;
SELECT is(applied(:job, 'priority'), 'job 42', 'what was settled at the enqueue stays');
RESET ALL;
SET client_min_messages = warning;

-- a row written by hand blocks nothing
SELECT tq_deactivate();
UPDATE tq.job SET retry = '{"policy": "often"}', options = '[]' WHERE id = :own;
SELECT FROM tq_activate();
SELECT is(policies -> 'retry' -> 'value' ->> 'policy', 'list', 'a retry policy that cannot be read counts as none') FROM tq_get(:own);

-- ---- the settings of the server

SELECT throws_ok(format('SET %s = %L', name, value), '22023', NULL, format('%s does not accept %s', name, value))
	FROM (VALUES ('tq.priority', '40000'), ('tq.timeout', '-1'), ('tq.expires_in', '-1'),
	('tq.expires_in', '4000 d'), ('tq.unique_for', '-1 s'), ('tq.cancel_grace', '-1'), ('tq.max_depth', '-1')) v (name, value);
SELECT is((SELECT string_agg(name || ' ' || setting || coalesce(unit, '') || ' ' || context, ', ' ORDER BY name) FROM pg_settings WHERE name IN
	('tq.cancel_grace', 'tq.expires_in', 'tq.max_depth', 'tq.on_lost', 'tq.priority', 'tq.strict_timeout',
	'tq.timeout', 'tq.unique_for')),
	'tq.cancel_grace 30000ms user, tq.expires_in 0s user, tq.max_depth 0 superuser, tq.on_lost retry sighup, tq.priority 100 user, '
	'tq.strict_timeout off sighup, tq.timeout 0ms user, tq.unique_for 0s user', 'defaults and contexts');

-- all follow-ups or copies of one call are admitted together, however many they are

SELECT tq_create_queue('paced', '{"enqueue_rate": "1/h"}'), tq_create_queue('followed', '{"follow_up": {"queue": "paced"}}');
SELECT tq_enqueue_many('followed', ARRAY['1', '2', '3']::jsonb[]);
WITH c AS MATERIALIZED (SELECT * FROM tq_claim('followed', 3)), a AS (SELECT array_agg(id) i, array_agg(lease) l FROM c)
SELECT count(x) FROM a, tq_complete_many(i, l) x;
SELECT is((SELECT live FROM tq_stats() WHERE queue = 'paced'), 3::bigint, 'each job is followed, past enqueue_rate');
SELECT throws_ok($$SELECT tq_enqueue('paced')$$, 'TQ003', NULL, 'which counts them');
SELECT tq_create_queue('copies', '{"enqueue_rate": "1/h"}');
SELECT tq_enqueue_many('killed', ARRAY['1', '2', '3']::jsonb[]);
SELECT count(tq_fail(id, lease, 'x', fatal => true)) FROM tq_claim('killed', 3);
SELECT is(tq_retry_many('killed', to_queue => 'copies'), 3::bigint, 'dead letters are copied by one call, past enqueue_rate');
SELECT throws_ok($$SELECT tq_enqueue('copies')$$, 'TQ003', NULL, 'which counts them');

-- one transaction can create and use any number of queues; so can its follow-ups

SELECT is(count(tq_create_queue('to' || i)), 70::bigint, '70 queues made in one transaction') FROM generate_series(1, 70) i;
SELECT count(tq_create_queue('of' || i, jsonb_build_object('follow_up', jsonb_build_object('queue', 'to' || i, 'on', '["cancelled"]'::jsonb))))
	FROM generate_series(1, 70) i;
SELECT is(count(tq_enqueue('of' || i)), 70::bigint, '... and used') FROM generate_series(1, 70) i;
SELECT count(tq_cancel(id)) FROM tq_jobs WHERE queue ~ '^of[0-9]+$';
SELECT is(count(*), 70::bigint, 'nothing that follows in it is lost') FROM tq_jobs WHERE queue ~ '^to[0-9]+$';

-- a job whose follow-up fails does not make others count twice

SELECT tq_create_queue('slow', '{"enqueue_rate": "5/min"}'), tq_create_queue('mixed', '{"follow_up": {"queue": "slow"}}'), tq_create_queue('small', '{"max_depth": 1}');
SELECT tq_enqueue('small');
SELECT tq_enqueue_many('mixed', ARRAY['1', '2', '3']::jsonb[]), tq_enqueue('mixed', options => '{"follow_up": {"queue": "small"}}');
WITH c AS MATERIALIZED (SELECT * FROM tq_claim('mixed', 4)), a AS (SELECT array_agg(id) i, array_agg(lease) l FROM c)
SELECT count(x) FROM a, tq_complete_many(i, l) x;
CREATE FUNCTION wait_of(statement text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 0;
EXCEPTION WHEN SQLSTATE 'TQ003' THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN substring(detail FROM '\d+');
END
$$;
SELECT ok(wait_of($$SELECT tq_enqueue('slow')$$) BETWEEN 1 AND 40000, 'three jobs and the next one are to be waited for, not six');

SELECT tq_reload();
SELECT is((SELECT count(*) FROM tq_check() WHERE found <> expected), 0::bigint, 'nothing is left behind');
-- ---- what a claim says of the attempt

SELECT tq_create_queue('claimed', '{"timeout": "10 min"}');
SELECT count(*) FROM (SELECT tq_enqueue('claimed'), tq_enqueue('claimed', timeout => '1 min', group_key => 'g', unique_key => 'u',
	options => '{"tags": ["a", "b"], "lease": "1 h"}')) e;
CREATE TABLE claimed AS SELECT * FROM tq_claim('claimed', max_jobs => 2, lease_for => '2 h') ORDER BY id;
SELECT results_eq('SELECT group_key, tags, unique_key FROM claimed',
	$$VALUES (NULL, NULL::text[], NULL), ('g', '{a,b}', 'u')$$, 'a claim returns group, tags and unique key');
SELECT results_eq($$SELECT round(extract(epoch FROM deadline - now()) / 60) FROM claimed$$, $$VALUES (10::numeric), (1)$$,
	'and when the timeout of the queue or the job ends the attempt');
SELECT ok(bool_and(lease_expires_at = deadline), 'with a longer lease it ends then') FROM claimed;
SELECT count(tq_complete(id, lease)) FROM claimed;
SELECT is((SELECT c.deadline FROM (SELECT tq_enqueue('unlimited')) e, LATERAL tq_claim('unlimited') c), NULL, 'it is null without a timeout');

SELECT * FROM finish();
