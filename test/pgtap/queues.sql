-- Settings of queues: every key with right and wrong values, what they come to, that nothing wrong leaves a trace.
\set QUIET 1
\pset format unaligned
\pset tuples_only true
SET client_min_messages = warning;

SELECT * FROM no_plan();

-- What a statement answers, or SQLSTATE and message.
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ' ' || sqlerrm;
END
$$;

-- ---- values

CREATE TABLE value (n int GENERATED ALWAYS AS IDENTITY, settings jsonb, wanted text);
INSERT INTO value (settings, wanted) VALUES
	('{}', 'ok'),
	('{"priority": -32768}', 'ok'),
	('{"priority": 32767}', 'ok'),
	('{"priority": 0}', 'ok'),
	('{"priority": null}', 'ok'),
	('{"priority": 32768}', '22023 setting "priority" has a wrong value'),
	('{"priority": -32769}', '22023 setting "priority" has a wrong value'),
	('{"priority": 1.5}', '22023 setting "priority" has a wrong value'),
	('{"priority": "1"}', '22023 setting "priority" has a wrong value'),
	('{"priority": true}', '22023 setting "priority" has a wrong value'),
	('{"priority": [1]}', '22023 setting "priority" has a wrong value'),
	('{"priority": {"a": 1}}', '22023 setting "priority" has a wrong value'),
	('{"priority": 1e400}', '22023 setting "priority" has a wrong value'),
	('{"max_attempts": 1}', 'ok'),
	('{"max_attempts": 65535}', 'ok'),
	('{"max_attempts": 0}', '22023 setting "max_attempts" has a wrong value'),
	('{"max_attempts": 65536}', '22023 setting "max_attempts" has a wrong value'),
	('{"lease": "1 ms"}', 'ok'),
	('{"lease": "00:00:30"}', 'ok'),
	('{"lease": "2 days"}', 'ok'),
	('{"lease": 30}', '22023 setting "lease" has a wrong value'),
	('{"lease": "0 s"}', '22023 setting "lease" has a wrong value'),
	('{"lease": "60 days"}', '22023 setting "lease" has a wrong value'),
	('{"lease": "1 month"}', '22023 setting "lease" has a wrong value'),
	('{"lease": "soon"}', '22023 setting "lease" has a wrong value'),
	('{"lease": ""}', '22023 setting "lease" has a wrong value'),
	('{"lease": "-1 s"}', '22023 setting "lease" has a wrong value'),
	('{"lease": "0.4 ms"}', '22023 setting "lease" has a wrong value'),
	('{"lease": "PT30S"}', 'ok'),
	('{"lease_grace": "0 s"}', 'ok'),
	('{"lease_grace": "1 h"}', 'ok'),
	('{"lease_grace": "61 min"}', '22023 setting "lease_grace" has a wrong value'),
	('{"retention": "0 s"}', 'ok'),
	('{"retention": "30 days"}', 'ok'),
	('{"retention": "4000 days"}', '22023 setting "retention" has a wrong value'),
	('{"dead_retention": "365 days"}', 'ok'),
	('{"dead_retention": 5}', '22023 setting "dead_retention" has a wrong value'),
	('{"retry": {}}', 'ok'),
	('{"retry": null}', 'ok'),
	('{"retry": {"policy": "exponential", "delay": "1 s", "max": "1 h", "factor": 1.5, "jitter": 0.5, "on_lost": "5 s"}}', 'ok'),
	('{"retry": {"policy": "linear"}}', 'ok'),
	('{"retry": {"policy": "fixed", "delay": "0 s"}}', 'ok'),
	('{"retry": {"policy": "list", "delays": ["1 s", "1 min", "1 h"]}}', 'ok'),
	('{"retry": "fixed"}', '22023 setting "retry" has a wrong value'),
	('{"retry": []}', '22023 setting "retry" has a wrong value'),
	('{"retry": {"policy": "list"}}', '22023 setting "retry" has a wrong value'),
	('{"retry": {"policy": "sometimes"}}', '22023 setting "retry.policy" has a wrong value'),
	('{"retry": {"policy": 1}}', '22023 setting "retry.policy" has a wrong value'),
	('{"retry": {"delay": 10}}', '22023 setting "retry.delay" has a wrong value'),
	('{"retry": {"delay": "1 year"}}', '22023 setting "retry.delay" has a wrong value'),
	('{"retry": {"factor": 0.5}}', '22023 setting "retry.factor" has a wrong value'),
	('{"retry": {"jitter": 2}}', '22023 setting "retry.jitter" has a wrong value'),
	('{"retry": {"delays": []}}', '22023 setting "retry.delays" has a wrong value'),
	('{"retry": {"delays": "1 s"}}', '22023 setting "retry.delays" has a wrong value'),
	('{"retry": {"delays": [1]}}', '22023 setting "retry.delays" has a wrong value'),
	('{"retry": {"speed": 1}}', '22023 unknown key "speed" in retry'),
	('{"retry": {"speed": null}}', '22023 unknown key "speed" in retry'),
	('{"retry": {"policy": "fixed", "delay": null}}', 'ok'),
	('{"retry": 1}', '22023 setting "retry" has a wrong value'),
	('{"retry": {"delays": {"0": "1 s"}}}', '22023 setting "retry.delays" has a wrong value'),
	('{"retry": {"delays": [null]}}', '22023 setting "retry.delays" has a wrong value'),
	('{"timeout": "1 ms"}', 'ok'),
	('{"timeout": "0 s"}', 'ok'),
	('{"timeout": "-1 s"}', '22023 setting "timeout" has a wrong value'),
	('{"timeout": 5}', '22023 setting "timeout" has a wrong value'),
	('{"timeout": ["5 s"]}', '22023 setting "timeout" has a wrong value'),
	('{"strict_timeout": true}', 'ok'),
	('{"strict_timeout": false}', 'ok'),
	('{"strict_timeout": "on"}', '22023 setting "strict_timeout" has a wrong value'),
	('{"strict_timeout": 1}', '22023 setting "strict_timeout" has a wrong value'),
	('{"on_lost": "retry"}', 'ok'),
	('{"on_lost": "bury"}', 'ok'),
	('{"on_lost": "dead"}', 'ok'),
	('{"on_lost": "RETRY"}', '22023 setting "on_lost" has a wrong value'),
	('{"on_lost": ""}', '22023 setting "on_lost" has a wrong value'),
	('{"on_lost": 1}', '22023 setting "on_lost" has a wrong value'),
	('{"cancel_grace": "0 s"}', 'ok'),
	('{"cancel_grace": "1 min"}', 'ok'),
	('{"cancel_grace": "-1 min"}', '22023 setting "cancel_grace" has a wrong value'),
	('{"expires_in": "1 h"}', 'ok'),
	('{"expires_in": "0 s"}', 'ok'),
	('{"expires_in": "1 year"}', '22023 setting "expires_in" has a wrong value'),
	('{"unique_for": "1 day"}', 'ok'),
	('{"unique_for": "always"}', '22023 setting "unique_for" has a wrong value'),
	('{"max_depth": 0}', 'ok'),
	('{"max_depth": 9007199254740991}', 'ok'),
	('{"max_depth": -1}', '22023 setting "max_depth" has a wrong value'),
	('{"max_depth": 9007199254740992}', '22023 setting "max_depth" has a wrong value'),
	('{"max_depth": 1.5}', '22023 setting "max_depth" has a wrong value'),
	('{"max_running": 0}', 'ok'),
	('{"max_running": 2147483647}', 'ok'),
	('{"max_running": 2147483648}', '22023 setting "max_running" has a wrong value'),
	('{"max_running": -1}', '22023 setting "max_running" has a wrong value'),
	('{"max_running": "many"}', '22023 setting "max_running" has a wrong value'),
	('{"rate": "100/s"}', 'ok'),
	('{"rate": "5 / min"}', 'ok'),
	('{"rate": "1000000/day"}', 'ok'),
	('{"rate": "1000001/s"}', '22023 setting "rate" has a wrong value'),
	('{"rate": "0/s"}', '22023 setting "rate" has a wrong value'),
	('{"rate": "-5/s"}', '22023 setting "rate" has a wrong value'),
	('{"rate": "100/week"}', '22023 setting "rate" has a wrong value'),
	('{"rate": "100"}', '22023 setting "rate" has a wrong value'),
	('{"rate": ""}', '22023 setting "rate" has a wrong value'),
	('{"rate": 100}', '22023 setting "rate" has a wrong value'),
	('{"rate": "100/s", "burst": 1000}', 'ok'),
	('{"burst": 1000, "rate": null}', 'ok'),
	('{"burst": 1}', 'ok'),
	('{"burst": 0}', '22023 setting "burst" has a wrong value'),
	('{"burst": 1.5}', '22023 setting "burst" has a wrong value'),
	('{"burst": "10"}', '22023 setting "burst" has a wrong value'),
	('{"burst": 1000001}', '22023 setting "burst" has a wrong value'),
	('{"rate": "1/d", "burst": 1000000}', '22023 setting "burst" has a wrong value'),
	('{"enqueue_rate": "3/h"}', 'ok'),
	('{"enqueue_rate": "often"}', '22023 setting "enqueue_rate" has a wrong value'),
	('{"group_rate": "1/s"}', 'ok'),
	('{"group_rate": {}}', '22023 setting "group_rate" has a wrong value'),
	('{"executors": 0}', 'ok'),
	('{"executors": 1000}', 'ok'),
	('{"executors": 1001}', '22023 setting "executors" has a wrong value'),
	('{"executors": -1}', '22023 setting "executors" has a wrong value'),
	('{"group_max_running": 0}', 'ok'),
	('{"group_max_running": 5}', 'ok'),
	('{"group_max_running": -1}', '22023 setting "group_max_running" has a wrong value'),
	('{"group_order": "strict"}', 'ok'),
	('{"group_order": "loose"}', 'ok'),
	('{"group_order": "none"}', '22023 setting "group_order" has a wrong value'),
	('{"group_order": true}', '22023 setting "group_order" has a wrong value'),
	('{"fair": true}', 'ok'),
	('{"fair": "yes"}', '22023 setting "fair" has a wrong value'),
	('{"fair": 1}', '22023 setting "fair" has a wrong value'),
	('{"weight": 0.01}', 'ok'),
	('{"weight": 100}', 'ok'),
	('{"weight": 0}', '22023 setting "weight" has a wrong value'),
	('{"weight": 100.5}', '22023 setting "weight" has a wrong value'),
	('{"weight": "1"}', '22023 setting "weight" has a wrong value'),
	('{"notify": true}', 'ok'),
	('{"notify": false}', 'ok'),
	('{"notify": "Post & Co"}', 'ok'),
	('{"notify": ""}', '22023 setting "notify" has a wrong value'),
	('{"notify": 1}', '22023 setting "notify" has a wrong value'),
	('{"notify": ["tq"]}', '22023 setting "notify" has a wrong value'),
	('{"notify": null}', 'ok'),
	('{"colour": 1}', '22023 unknown setting "colour"'),
	('{"colour": null}', '22023 unknown setting "colour"'),
	('{"Priority": 1}', '22023 unknown setting "Priority"'),
	('{"": 1}', '22023 unknown setting ""'),
	('{"priority": 1, "colour": 1}', '22023 unknown setting "colour"'),
	('[]', '22023 settings must be a JSON object'),
	('[{"priority": 1}]', '22023 settings must be a JSON object'),
	('1', '22023 settings must be a JSON object'),
	('null', '22023 settings must be a JSON object');
-- a key that this version serves or not: null is no value
INSERT INTO value (settings, wanted) SELECT jsonb_build_object(k, NULL), 'ok'
	FROM unnest(ARRAY['burst', 'cancel_grace', 'dead_retention', 'enqueue_rate', 'executors', 'expires_in', 'fair', 'follow_up', 'group_max_running', 'group_order',
		'group_rate', 'lease', 'lease_grace', 'max_attempts', 'max_depth', 'max_running', 'on_lost', 'rate', 'retention', 'strict_timeout',
		'timeout', 'unique_for', 'weight']) k;

SELECT tq_create_queue('altered', '{"priority": 77}');
SELECT is(attempt(format('SELECT tq_create_queue(%L, %L)', 'made ' || n, settings)), wanted, 'tq_create_queue: ' || left(settings::text, 100)) FROM value;
SELECT results_eq($$SELECT queue FROM tq_queues WHERE queue LIKE 'made %' AND state = 'active' ORDER BY 1$$,
	$$SELECT 'made ' || n FROM value WHERE wanted = 'ok' ORDER BY 1$$, 'made only where all is well');
SELECT is(attempt(format('SELECT tq_drop_queue(%L)', queue)), 'ok', queue || ' can be dropped') FROM tq_queues WHERE queue LIKE 'made %';
SELECT is(attempt(format('SELECT tq_alter_queue(''altered'', %L)', settings)), wanted, 'tq_alter_queue: ' || left(settings::text, 100)) FROM value;
SELECT is(attempt($$SELECT tq_alter_queue('altered', jsonb_object_agg(k, NULL))
	FROM unnest(ARRAY['burst', 'cancel_grace', 'dead_retention', 'enqueue_rate', 'executors', 'expires_in', 'fair', 'follow_up', 'group_max_running', 'group_order',
		'group_rate', 'lease', 'lease_grace', 'max_attempts', 'max_depth', 'max_running', 'on_lost', 'priority', 'rate', 'retention', 'retry',
		'strict_timeout', 'timeout', 'unique_for', 'weight']) k$$), 'ok', 'null for every key');
SELECT is((SELECT settings FROM tq_queues WHERE queue = 'altered'), '{}', 'leaves none');

-- ---- the names of queues and kinds

CREATE TABLE name (name text, wanted text);
INSERT INTO name VALUES
	('a', 'ok'),
	('A queue with spaces, "quotes" and ''quotes''', 'ok'),
	(repeat('x', 63), 'ok'),
	(repeat('é', 31), 'ok'),
	('日本', 'ok'),
	('', '22023 name must not be empty'),
	(repeat('x', 64), '22023 name is too long'),
	(repeat('é', 32), '22023 name is too long'),
	(E'a\tb', '22023 name must not contain control characters'),
	(E'\x7f', '22023 name must not contain control characters'),
	(NULL, '22004 name must not be null');
SELECT is(attempt(format('SELECT tq_create_queue(%L)', name)), wanted, 'tq_create_queue: name ' || coalesce(name, 'null')) FROM name;
SELECT is(attempt(format('SELECT tq_enqueue(%L)', name)), replace(wanted, 'name', 'queue'), 'tq_enqueue: queue ' || coalesce(name, 'null')) FROM name;
SELECT count(tq_cancel(id)) FROM tq_jobs JOIN name ON queue = name WHERE state = 'ready' \gset
SELECT is(attempt(format('SELECT tq_drop_queue(%L)', name)), wanted, 'tq_drop_queue: name ' || coalesce(name, 'null')) FROM name;
SELECT is(attempt(format('SELECT tq_enqueue(%L, kind => %L)', 'kinds', name)), replace(wanted, 'name', 'kind'), 'tq_enqueue: kind ' || name)
	FROM name WHERE name IS NOT NULL;
SELECT is(attempt(format('SELECT tq_pause(%L, %L)', 'kinds', name)), replace(wanted, 'name', 'kind'), 'tq_pause: kind ' || name)
	FROM name WHERE name IS NOT NULL;

-- ---- what a setting is worth

SELECT tq_create_queue('worth', '{"priority": -5, "max_attempts": 2, "lease": "7 s",
	"retry": {"policy": "list", "delays": ["100 s", "200 s"], "jitter": 0}}');
SELECT tq_enqueue('worth') AS job \gset
SELECT lease, priority, max_attempts, extract(epoch FROM lease_expires_at - clock_timestamp()) AS left FROM tq_claim('worth') \gset
SELECT is(:priority, -5, 'the priority of a job that has none');
SELECT is(:max_attempts, 2, 'its attempts');
SELECT ok(:left BETWEEN 2 AND 7, 'its lease');
SELECT is(tq_fail(:job, :lease, 'x'), 'delayed', 'it is tried again');
SELECT ok(extract(epoch FROM run_at - clock_timestamp()) BETWEEN 90 AND 100, 'as the policy says') FROM tq_get(:job);
SELECT tq_retry(:job) \gset
SELECT lease FROM tq_claim('worth') \gset
SELECT is(tq_fail(:job, :lease, 'x'), 'dead', 'and no more often than it may');
SELECT tq_enqueue('worth', priority => 9, max_attempts => 5) AS job \gset
SELECT lease, priority, max_attempts, extract(epoch FROM lease_expires_at - clock_timestamp()) AS left
	FROM tq_claim('worth', lease_for => '1 h') \gset
SELECT is(:priority, 9, 'what the job says comes first');
SELECT is(:max_attempts, 5, 'also for its attempts');
SELECT ok(:left > 3000, 'and what the claim says, for its lease');
SELECT is(tq_complete(:job, :lease), 'succeeded');

-- a setting is checked together with those that are there
SELECT tq_create_queue('slow', '{"rate": "1/d", "burst": 3652}');
SELECT is(attempt($$SELECT tq_alter_queue('slow', '{"burst": 3653}')$$), '22023 setting "burst" has a wrong value', 'a burst beyond ten years');
SELECT is(attempt($$SELECT tq_alter_queue('slow', '{"burst": 3653, "rate": "2/d"}')$$), 'ok', 'fits to a higher rate');
SELECT is((SELECT settings FROM tq_queues WHERE queue = 'slow'), '{"burst": 3653, "rate": "2/d"}'::jsonb);

-- ---- settings that got into the table by hand do not stop anything

SELECT tq_create_queue('by hand');
UPDATE tq.queue SET settings = '{"priority": "high"}' WHERE name = 'by hand';
SELECT lives_ok('SELECT tq_reload()', 'wrong settings in the table are no obstacle');
SELECT lives_ok($$SELECT tq_enqueue('by hand')$$, 'to the queue either');
SELECT is((SELECT priority FROM tq_claim('by hand')), 100, 'which goes by the defaults');
UPDATE tq.queue SET settings = '{"priority": 3}' WHERE name = 'by hand';
SELECT tq_reload();
SELECT tq_enqueue('by hand') AS job \gset
SELECT is((SELECT priority FROM tq_claim('by hand')), 3, 'right ones written by hand count after tq_reload');

SELECT is((SELECT count(*) FROM tq_check() WHERE found <> expected), 0::bigint, 'nothing is left behind');
SELECT * FROM finish();
