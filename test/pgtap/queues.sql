-- Settings of queues: every key with valid and invalid values, their effect, and that an invalid value changes nothing.
SET client_min_messages = warning;
SET tq.max_pinned_wait = '1 h';

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
	('{"change_retention": "1 day"}', 'ok'),
	('{"change_retention": "-1 day"}', '22023 setting "change_retention" has a wrong value'),
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
	('{"order": "enqueued"}', 'ok'),
	('{"order": "ready"}', 'ok'),
	('{"order": "random"}', '22023 setting "order" has a wrong value'),
	('{"order": 1}', '22023 setting "order" has a wrong value'),
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
-- a key that this version may not know: null sets no value
INSERT INTO value (settings, wanted) SELECT jsonb_build_object(k, NULL), 'ok'
	FROM unnest(ARRAY['burst', 'cancel_grace', 'change_retention', 'dead_retention', 'enqueue_rate', 'executors', 'expires_in', 'fair', 'follow_up', 'group_max_running', 'group_order',
		'group_rate', 'lease', 'lease_grace', 'max_attempts', 'max_depth', 'max_running', 'on_lost', 'order', 'rate', 'retention', 'strict_timeout',
		'timeout', 'unique_for', 'weight']) k;

SELECT tq_create_queue('altered', '{"priority": 77}');
-- an error without the value that it shows
CREATE FUNCTION short(error text) RETURNS text LANGUAGE sql AS $$SELECT regexp_replace(error, '(has a wrong value|a JSON object): .*', '\1')$$;
SELECT is(short(attempt(format('SELECT tq_create_queue(%L, %L)', 'made ' || n, settings))), wanted, 'tq_create_queue: ' || left(settings::text, 100)) FROM value;
SELECT results_eq($$SELECT queue FROM tq_queues WHERE queue LIKE 'made %' AND state = 'active' ORDER BY 1$$,
	$$SELECT 'made ' || n FROM value WHERE wanted = 'ok' ORDER BY 1$$, 'made only where all is well');
SELECT is(attempt(format('SELECT tq_drop_queue(%L)', queue)), 'ok', queue || ' can be dropped') FROM tq_queues WHERE queue LIKE 'made %';
SELECT is(short(attempt(format('SELECT tq_alter_queue(''altered'', %L)', settings))), wanted, 'tq_alter_queue: ' || left(settings::text, 100)) FROM value;
SELECT is(attempt($$SELECT tq_alter_queue('altered', jsonb_object_agg(k, NULL))
	FROM unnest(ARRAY['burst', 'cancel_grace', 'change_retention', 'dead_retention', 'enqueue_rate', 'executors', 'expires_in', 'fair', 'follow_up', 'group_max_running', 'group_order',
		'group_rate', 'lease', 'lease_grace', 'max_attempts', 'max_depth', 'max_running', 'on_lost', 'order', 'priority', 'rate', 'retention', 'retry',
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

-- ---- the effect of a setting

SELECT tq_create_queue('worth', '{"priority": -5, "max_attempts": 2, "lease": "7 min",
	"retry": {"policy": "list", "delays": ["100 s", "200 s"], "jitter": 0}}');
SELECT tq_enqueue('worth') AS job \gset
SELECT lease, priority, max_attempts, lease_expires_at - interval '7 min' BETWEEN now() - interval '1 s' AND clock_timestamp() + interval '1 s' AS lasts
	FROM tq_claim('worth') \gset
SELECT is(:priority, -5, 'the priority of a job that has none');
SELECT is(:max_attempts, 2, 'its attempts');
SELECT ok(:'lasts'::boolean, 'its lease');
SELECT is(tq_fail(:job, :lease, 'x'), 'delayed', 'it is tried again');
SELECT is(extract(epoch FROM run_at - at)::int, 100, 'as the policy says') FROM tq_get(:job), tq_history(:job) WHERE event = 'failed';
SELECT tq_retry(:job) \gset
SELECT lease FROM tq_claim('worth') \gset
SELECT is(tq_fail(:job, :lease, 'x'), 'dead', 'and no more often than it may');
SELECT tq_enqueue('worth', priority => 9, max_attempts => 5) AS job \gset
SELECT lease, priority, max_attempts, lease_expires_at - now() > interval '50 min' AS lasts
	FROM tq_claim('worth', lease_for => '1 h') \gset
SELECT is(:priority, 9, 'what the job says comes first');
SELECT is(:max_attempts, 5, 'also for its attempts');
SELECT ok(:'lasts'::boolean, 'and what the claim says, for its lease');
SELECT is(tq_complete(:job, :lease), 'succeeded', 'the job can be completed');

-- a setting is checked together with the existing ones
SELECT tq_create_queue('slow', '{"rate": "1/d", "burst": 3652}');
SELECT is(attempt($$SELECT tq_alter_queue('slow', '{"burst": 3653}')$$), '22023 setting "burst" has a wrong value: 3653', 'a burst beyond ten years');
SELECT is(attempt($$SELECT tq_alter_queue('slow', '{"burst": 3653, "rate": "2/d"}')$$), 'ok', 'fits to a higher rate');
SELECT is((SELECT settings FROM tq_queues WHERE queue = 'slow'), '{"burst": 3653, "rate": "2/d"}'::jsonb, 'the queue has both settings');

-- ---- a pause of one group

SELECT tq_create_queue('tenants');
SELECT tq_enqueue('tenants', group_key => g) FROM unnest('{t1,t1,t2}'::text[]) g;
SELECT tq_pause('tenants', group_key => 't1');
SELECT min(id) AS held FROM tq.job WHERE group_key = 't1' \gset
SELECT is((SELECT string_agg(g.group_key, ' ') FROM tq_claim('tenants', 10) c, tq_get(c.id) g), 't2', 'a paused group is held, others are not');
SELECT matches(tq_explain(:held), 'but group "t1" of queue "tenants" is paused.*tq_resume\(''tenants'', group_key => ''t1''\)', 'tq_explain says it');
SELECT tq_enqueue('tenants', group_key => 't1', priority => -5), tq_enqueue('tenants', kind => 'alone') \g /dev/null
SELECT is((SELECT string_agg(coalesce(c.kind, '-'), ' ') FROM tq_claim('tenants', 10) c), 'alone', 'new jobs of the group wait, jobs without a group do not');
BEGIN;
SELECT tq_resume('tenants', group_key => 't1');
ROLLBACK;
SELECT is((SELECT count(*)::int FROM tq_claim('tenants', 10)), 0, 'a rolled back resume is none');
SELECT is((SELECT string_agg(concat(group_key, paused_until), ' ') FROM tq.group_setting), 't1infinity', 'the row has the pause');
SELECT tq_reload();
SELECT is((SELECT count(*)::int FROM tq_claim('tenants', 10)), 0, 'a reload keeps it');
SELECT tq_resume('tenants', group_key => 't1');
SELECT is((SELECT c.priority FROM tq_claim('tenants', 10) c), -5, 'a resume ends it, and the group keeps its order');
SELECT is((SELECT string_agg(concat(group_key, paused_until), ' ') FROM tq.group_setting), NULL, '... also in the row');
SELECT tq_pause('tenants', group_key => 'later');
SELECT tq_enqueue('tenants', group_key => 'later') AS later \gset
SELECT is((SELECT count(*)::int FROM tq_claim('tenants')), 0, 'a group can be paused before it has jobs');
SELECT tq_pause('tenants', group_key => 'later', until => clock_timestamp() + interval '300 ms');
SELECT is((SELECT id FROM tq_claim('tenants', wait => '3 min')), :later::bigint, 'a pause ends at its time, and wakes a waiting claim');
BEGIN;
SELECT tq_pause('tenants', group_key => 'undone');
ROLLBACK;
SELECT tq_enqueue('tenants', group_key => 'undone') AS undone \gset
SELECT is((SELECT id FROM tq_claim('tenants')), :undone::bigint, 'a rolled back pause is none');
SELECT tq_pause('tenants', group_key => 'undone');
SELECT is((SELECT action FROM tq_get(:undone) g, tq_heartbeat(g.id, g.lease)), 'quiet', 'a heartbeat of a job of a paused group');
SELECT tq_resume('tenants', group_key => 'undone');
SELECT is(attempt($$SELECT tq_pause('tenants', 'k', group_key => 'g')$$), '22023 kind and group_key must not both be given', 'a kind or a group');
SELECT is(attempt($$SELECT tq_pause('tenants', group_key => '')$$), '22023 group_key must not be empty', 'no empty group');
SELECT is(attempt($$SELECT tq_pause('tenants', group_key => repeat('x', 128))$$), '22023 group_key is too long', 'no longer group than a job can have');
SELECT is(attempt($$SELECT tq_resume('tenants', group_key => E'a\nb')$$), '22023 group_key must not contain control characters', 'nor one with control characters');
SELECT matches(attempt(format($$SELECT count(tq_pause('tenants', group_key => 'many' || i)) FROM generate_series(1, %s) i$$,
	current_setting('tq.max_groups')::int + 1)), '^53400 too many groups', 'many pauses at once stop at the share');
SELECT is(attempt($$SELECT tq_pause('tenants', group_key => 'one more')$$), 'ok', '... and a rollback gives the slots back');

-- ---- limits of one group

SELECT tq_create_queue('shares', '{"group_max_running": 1}');
SELECT tq_enqueue('shares', group_key => g) FROM unnest('{big,big,big,big,small,small}'::text[]) g \g /dev/null
CREATE FUNCTION started(queue text, n int DEFAULT 10) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(group_key || jobs, ' ' ORDER BY group_key) FROM (SELECT group_key, count(*) AS jobs FROM tq_claim(queue, n) GROUP BY 1) c
$$;
SELECT tq_limit_group('shares', 'big', 3);
SELECT is(started('shares'), 'big3 small1', 'a group has a limit of its own, the others that of the queue');
SELECT max(id) AS last_big FROM tq.job WHERE group_key = 'big' \gset
SELECT matches(tq_explain(:last_big), 'its group "big" has 3 jobs running, and the max_running of this group of queue "shares" is 3', 'tq_explain names it');
SELECT is((SELECT groups FROM tq_queues WHERE queue = 'shares'), '{"big": {"max_running": 3}}', 'tq_queues shows it');
BEGIN;
SELECT tq_limit_group('shares', 'big', 4);
ROLLBACK;
SELECT is(started('shares'), NULL, 'a rolled back limit is none');
SELECT tq_reload();
SELECT is(started('shares'), NULL, 'a reload keeps the limit');
SELECT tq_limit_group('shares', 'big', 4);
SELECT is(started('shares'), 'big1', 'a higher limit counts at once');
SELECT tq_limit_group('shares', 'big', 2);
SELECT tq_enqueue('shares', group_key => 'big') \g /dev/null
SELECT tq_complete(g.id, g.lease) FROM tq_running r, tq_get(r.id) g WHERE r.queue = 'shares' AND g.group_key = 'big' LIMIT 2 \g /dev/null
SELECT is(started('shares'), NULL, 'with a lower one, running jobs go on, and none starts until enough have ended');
SELECT tq_complete(g.id, g.lease) FROM tq_running r, tq_get(r.id) g WHERE r.queue = 'shares' AND g.group_key = 'big' LIMIT 1 \g /dev/null
SELECT is(started('shares'), 'big1', '... then one may');
SELECT tq_enqueue('shares', group_key => 'big') FROM generate_series(1, 3) \g /dev/null
SELECT tq_limit_group('shares', 'big', 0);
SELECT is(started('shares'), 'big3', '0: no limit');
SELECT tq_pause('shares', group_key => 'big');
SELECT is((SELECT groups FROM tq_queues WHERE queue = 'shares'), '{"big": {"max_running": 0, "paused_until": "infinity"}}', 'a pause stands beside a limit');
SELECT tq_resume('shares', group_key => 'big');
SELECT tq_limit_group('shares', 'big');
SELECT is((SELECT groups FROM tq_queues WHERE queue = 'shares'), NULL, 'null removes a limit');
SELECT is((SELECT count(*)::int FROM tq.group_setting WHERE group_key = 'big'), 0, '... and its row');
SELECT tq_enqueue('shares', group_key => 'big') \g /dev/null
SELECT is(started('shares'), NULL, '... and the limit of the queue counts again');
SELECT tq_alter_queue('shares', '{"group_max_running": 0}');
SELECT tq_limit_group('shares', 'new', rate => '1/d');
SELECT tq_enqueue('shares', group_key => g) FROM unnest('{new,new,other,other}'::text[]) g \g /dev/null
SELECT is(started('shares'), 'big1 new1 other2 small1', 'a rate of one group');
SELECT max(id) AS last_new FROM tq.job WHERE group_key = 'new' \gset
SELECT matches(tq_explain(:last_new), 'its group "new" has started as many as its own rate allows; the next can start in 2[34]', '... that tq_explain names');
SELECT tq_reload();
SELECT is(started('shares'), NULL, '... and that a reload does not refill');
SELECT tq_limit_group('shares', 'new', rate => '1000000/s');
SELECT is(started('shares'), 'new1', '... until a higher one');
BEGIN;
SELECT tq_limit_group('shares', 'both', 1), tq_pause('shares', group_key => 'both');
SELECT tq_limit_group('shares', 'both'), tq_resume('shares', group_key => 'both');
COMMIT;
SELECT is((SELECT count(*)::int FROM tq.group_setting WHERE group_key = 'both'), 0, 'changes of one transaction follow each other');
SELECT is(attempt($$SELECT tq_limit_group('nowhere', 'g', 1)$$), 'TQ002 queue "nowhere" does not exist', 'no queue');
SELECT is(attempt($$SELECT tq_limit_group('shares', NULL, 1)$$), '22004 group_key must not be null', 'no group');
SELECT is(attempt($$SELECT tq_limit_group('shares', 'g', -1)$$), '22023 max_running is out of range: -1', 'no number below 0');
SELECT is(attempt($$SELECT tq_limit_group('shares', 'g', rate => 'often')$$), '22023 argument "rate" has a wrong value: "often"', 'no rate');
SELECT matches(attempt(format($$SELECT count(tq_limit_group('shares', 'many' || i, 1)) FROM generate_series(1, %s) i$$,
	current_setting('tq.max_groups')::int + 1)), '^53400 too many groups', 'many limits at once stop at the share');
ALTER TABLE tq.group_setting DISABLE TRIGGER tq_reload;	-- only tq may write
INSERT INTO tq.group_setting (queue_id, group_key, rate) SELECT id, 'by hand', 'nonsense' FROM tq.queue WHERE name = 'shares';
SELECT tq_reload();
SELECT is(attempt($$SELECT tq_limit_group('shares', 'by hand', 2)$$), 'ok', 'a rate by hand that is none blocks nothing');
SELECT is((SELECT groups -> 'by hand' FROM tq_queues WHERE queue = 'shares'), '{"max_running": 2}', '... and is replaced');

-- ---- settings written by hand block nothing

SELECT tq_create_queue('by hand');
ALTER TABLE tq.queue DISABLE TRIGGER tq_reload;
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
