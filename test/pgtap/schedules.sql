-- tq_schedule and related functions: which parts of a definition reach the job, what a replacement changes, bounds and
-- time zones, rights of owners. test/t/schedules_fire.pl tests that schedules fire.
\pset fieldsep '\n'
SET client_min_messages = warning;
SET timezone = 'UTC';

SELECT * FROM no_plan();

CREATE FUNCTION complaint(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(': ', sqlstate, sqlerrm, nullif(detail, ''));
END
$$;

SELECT tq_create_queue('work'), tq_create_queue('other');

-- ---- every option of tq_enqueue reaches the job

SELECT tq_schedule('all', 'work', '{"p": 1}', 'k', every => '100 d', options => '{"priority": 7, "max_attempts": 3, "retry": {"delay": "3 s"},
	"timeout": "5 s", "expires_in": "2 h", "group_key": "g", "unique_key": "u", "unique_mode": "replace", "headers": {"h": 1}, "delay": "1 h",
	"lease": "7 s", "tags": ["a", "b"], "unique_for": "1 min", "weight": 2}');
SELECT tq_schedule_run('all') AS job \gset
SELECT tq_schedule_run('all') AS second \gset
SELECT is((SELECT state FROM tq_get(:job)), 'cancelled', 'unique_mode and unique_key: the first job is replaced');
SELECT is(to_jsonb(g) - '{id,headers,run_at,enqueued_at,expires_at,policies,origin}'::text[] - (SELECT array_agg(key) FROM jsonb_each(to_jsonb(g)) WHERE value = 'null'),
	'{"queue": "work", "kind": "k", "state": "delayed", "priority": 7, "attempt": 0, "max_attempts": 3, "payload": {"p": 1}, "group_key": "g", "unique_key": "u", "tags": ["a", "b"]}',
	'what the job says') FROM tq_get(:second) g;
SELECT is(run_at - enqueued_at BETWEEN '50 min' AND '1 h', true, 'delay'), is(expires_at - run_at, '2 h'::interval, 'expires_in counts from the start'),
	is(origin, :job::bigint, 'the job that it replaced'), is(headers - 'schedule', '{"h": 1}', 'headers'),
	is(headers #>> '{schedule,name}', 'all', '... with the name'), is((headers #>> '{schedule,fire_at}')::timestamptz, run_at - '1 h'::interval, '... and the time')
	FROM tq_get(:second);
SELECT is(policies #>> '{lease,value}', '00:00:07', 'lease'), is(policies #>> '{timeout,value}', '00:00:05', 'timeout'),
	is(policies #>> '{retry,value,delay}', '00:00:03', 'retry'), is(policies #>> '{unique_for,value}', '00:01:00', 'unique_for'),
	is(policies #>> '{weight,value}', '2', 'weight') FROM tq_get(:second);
SELECT is((SELECT array_agg(outcome || (job_id IN (:job, :second)) ORDER BY fire_at) FROM tq.schedule_fire WHERE schedule = 'all'), '{manualtrue,manualtrue}', 'two runs are noted');
SELECT tq_schedule('plain', 'work', every => '100 d', options => '{"delay": null, "tags": null, "lease": "5 s"}');
SELECT is((SELECT policies #>> '{lease,value}' FROM tq_get(tq_schedule_run('plain'))), '00:00:05', 'null is as if left out');
SELECT tq_schedule('plain', 'work', every => '100 d');
SELECT is(jsonb_object_keys(headers), 'schedule', 'a job of a schedule that says nothing') FROM tq_get(tq_schedule_run('plain'));
SELECT is((SELECT max_attempts || ' ' || priority || ' ' || payload FROM tq_get(tq_schedule_run('plain'))), '20 100 {}', '... has what its queue has');
SELECT tq_schedule('ignored', 'work', every => '100 d', options => '{"unique_key": "u", "unique_mode": "ignore"}');
SELECT is(tq_schedule_run('ignored'), NULL, 'null if the key is taken and that is to be ignored');
SELECT tq_schedule('skipped', 'work', every => '100 d', options => '{"unique_key": "u", "delay": null}');
SELECT is(tq_schedule_run('skipped'), :second::bigint, 'the id of the job that has the key');
SELECT is((SELECT job_id FROM tq.schedule_fire WHERE schedule = 'skipped'), NULL, '... which is not its own');
SELECT tq_schedule('clash', 'work', every => '100 d', options => '{"unique_key": "u", "unique_mode": "error"}');
SELECT ok(complaint($$SELECT tq_schedule_run('clash')$$) ~ '^TQ008', 'an error if that is asked for');
SELECT is((SELECT count(*)::int FROM tq.schedule_fire WHERE schedule = 'clash'), 0, '... which leaves nothing behind');
-- the random part of the start
SELECT tq_schedule('spread', 'work', every => '100 d', options => '{"jitter": "10 s"}');
CREATE TEMP TABLE spread AS SELECT tq_schedule_run('spread') AS id FROM generate_series(1, 20);
SELECT ok(bool_and(g.run_at - g.enqueued_at BETWEEN '-3 min' AND '10 s') AND count(DISTINCT g.run_at) > 15, 'jitter') FROM spread s, tq_get(s.id) g;

-- ---- times

SELECT tq_schedule('e', 'work', every => '90 min');
SELECT is(next_at, defined_at + '90 min'::interval, 'every counts from the definition') FROM tq_schedules WHERE name = 'e';
SELECT tq_schedule('f', 'work', every => '6 h', timezone => 'Asia/Kathmandu', options => '{"start": "2026-01-01 00:00"}');
SELECT is(starts_at, '2026-01-01 00:00+05:45'::timestamptz, 'start is on the clocks of the time zone'),
	is(extract(epoch FROM next_at - starts_at)::bigint % 21600, 0::bigint, 'every counts from the start') FROM tq_schedules WHERE name = 'f';
SELECT tq_unschedule('f'); -- it fires at certain times of the day
SELECT tq_schedule('g', 'work', cron => '0 0 1 1 *', timezone => 'America/New_York', options => '{"start": "2090-01-01 00:00", "end": "2091-01-01 00:00+00"}');
SELECT is(next_at, '2090-01-01 05:00+00'::timestamptz, 'a start is a time if the expression says so'), is(ends_at, '2091-01-01 00:00+00'::timestamptz, 'an offset counts')
	FROM tq_schedules WHERE name = 'g';
SELECT is(complaint($$SELECT tq_schedule('h', 'work', cron => '0 0 1 1 *', options => '{"start": "2090-01-01 00:00:01", "end": "2090-12-31"}')$$),
	'22023: schedule "h" would never fire: None of its times is between now and its end.', 'a schedule that would never fire');
SET timezone = 'Asia/Tokyo';
SELECT tq_schedule('i', 'work', cron => '@daily', timezone => 'Europe/Berlin', options => '{"start": "2090-06-01"}');
SELECT is(next_at, '2090-06-01 00:00+02'::timestamptz, 'the session''s time zone does not matter'), is(current_setting('timezone'), 'Asia/Tokyo', '... and stays')
	FROM tq_schedules WHERE name = 'i';
SET timezone = 'UTC';

-- ---- errors name the mistake

SELECT is(complaint(statement), wanted, 'the error of ' || statement || ' names what is wrong') FROM (VALUES
	($$SELECT tq_schedule('x', 'work', cron => '0 25 * * *')$$, '22023: cron expression "0 25 * * *" is not valid: In the field hour, at position 3: Hours are 0 to 23.'),
	($$SELECT tq_schedule('x', 'work', cron => '0 0 30 2 *')$$, '22023: cron expression "0 0 30 2 *" is not valid: In the field day of month, at position 5: No such day ever comes in the months given.'),
	($$SELECT tq_schedule('x', 'work', every => '1 month')$$, '22023: every must not contain months or years: 1 mon: They have no fixed length.'),
	($$SELECT tq_schedule('x', 'work', every => '0.5 s')$$, '22023: every is out of range: 00:00:00.5: It must be at least 1 s and at most 3652 days.'),
	($$SELECT tq_schedule('x', 'work')$$, '22023: cron or every must be given'),
	($$SELECT tq_schedule('x', 'work', cron => '@daily', every => '1 d')$$, '22023: cron and every cannot both be given'),
	($$SELECT tq_schedule('x', 'work', every => '1 d', catch_up => 'some')$$, '22023: unknown catch_up "some"'),
	($$SELECT tq_schedule('x', 'work', every => '1 d', overlap => 'wait')$$, '22023: unknown overlap "wait"'),
	($$SELECT tq_schedule('x', 'work', every => '1 d', options => '{"jiter": "1 s"}')$$, '22023: unknown key "jiter" in options'),
	($$SELECT tq_schedule('x', 'work', every => '1 d', options => '{"retry": {"delay": "x"}}')$$, '22023: argument "retry.delay" has a wrong value: "x": It must be a string with an interval, such as "30 s".'),
	($$SELECT tq_schedule('x', 'work', every => '1 d', timezone => 'Europe/Berln')$$, '22023: time zone "Europe/Berln" does not exist: There is no such name in the time zone database.')
	) c (statement, wanted);
SELECT is((SELECT count(*)::int FROM tq_schedules WHERE name = 'x'), 0, 'and nothing is defined');

-- ---- replacement

SELECT tq_schedule('r', 'work', '1', cron => '@yearly', timezone => 'Europe/Berlin');
CREATE TEMP TABLE r AS SELECT s.*, t.fired_until, t.revision FROM tq_schedules s, tq.schedule t WHERE s.name = 'r' AND t.name = 'r';
SELECT tq_schedule('r', 'other', '2', 'k', cron => '@yearly', timezone => 'Europe/Berlin', catch_up => 'all', overlap => 'skip', options => '{"priority": 1}');
SELECT is((s.queue, s.payload, s.kind, s.catch_up, s.overlap, s.options), ('other'::text, '2'::jsonb, 'k'::text, 'all'::text, 'skip'::text, '{"priority": 1}'::jsonb), 'everything is replaced'),
	is(t.fired_until, r.fired_until, 'with the same times it goes on where it was'), ok(t.revision > r.revision, 'the scheduler can tell the difference')
	FROM r, tq_schedules s, tq.schedule t WHERE s.name = 'r' AND t.name = 'r';
SELECT tq_schedule_pause('r');
SELECT is((state, next_at)::text, '(paused,)', 'paused') FROM tq_schedules WHERE name = 'r';
SELECT tq_schedule('r', 'other', '3', cron => '@yearly', timezone => 'Europe/Berlin');
SELECT is(state, 'paused', 'a pause stays') FROM tq_schedules WHERE name = 'r';
SELECT tq_schedule('r', 'other', '3', cron => '@monthly', timezone => 'Europe/Berlin');
SELECT ok(t.fired_until > r.fired_until, 'with other times it counts from now') FROM r, tq.schedule t WHERE t.name = 'r';
SELECT tq_schedule_resume('r');
SELECT ok(state = 'active' AND next_at > now(), 'resumed') FROM tq_schedules WHERE name = 'r';
SELECT tq_schedule_resume('r'), tq_schedule_pause('r'), tq_schedule_pause('r');
SELECT is(state, 'paused', 'twice is no error') FROM tq_schedules WHERE name = 'r';
SELECT ok(tq_schedule_run('r') > 0, 'it can be run by hand all the same');
BEGIN;
SELECT tq_unschedule('r');
SELECT is((SELECT count(*)::int FROM tq_schedules WHERE name = 'r'), 0, 'gone');
ROLLBACK;
SELECT is((SELECT count(*)::int FROM tq_schedules WHERE name = 'r'), 1, '... but not after a rollback');
SELECT tq_unschedule('r');
SELECT is((SELECT count(*)::int FROM tq.schedule_fire WHERE schedule = 'r'), 0, 'with what was noted of it');
SELECT is(complaint($$SELECT tq_unschedule('r')$$), '42704: schedule "r" does not exist', 'once');

-- ---- rows changed by hand

ALTER TABLE tq.schedule DISABLE TRIGGER tq_reload;	-- only tq may write
UPDATE tq.schedule SET cron = '61 * * * *', every = NULL WHERE name = 'plain';
SELECT is((state, next_at, last_error)::text, '(invalid,,"cron expression ""61 * * * *"" is not valid")', 'a row that tq_schedule would not write') FROM tq_schedules WHERE name = 'plain';
SELECT tq_schedule('plain', 'work', every => '1 d');
SELECT is(state, 'active', '... is put right') FROM tq_schedules WHERE name = 'plain';
BEGIN;
ALTER TABLE tq.schedule ALTER revision DROP NOT NULL;
UPDATE tq.schedule SET revision = NULL WHERE name = 'plain';
SELECT seq_scan + idx_scan AS before FROM pg_stat_xact_all_tables WHERE relid = 'tq.schedule'::regclass \gset
SELECT complaint($$SELECT tq_schedule_run('plain')$$) AS answer \gset
SELECT seq_scan + idx_scan - :before AS scans FROM pg_stat_xact_all_tables WHERE relid = 'tq.schedule'::regclass \gset
ROLLBACK;
SELECT is(:'answer'::text, '55P03: schedule "plain" is being changed or dropped', 'a row without a revision cannot be run'),
	ok(:scans < 20, '... which takes few reads, not ' || :scans);

-- ---- owners

CREATE ROLE s_one;
CREATE ROLE s_two;
CREATE ROLE s_three;
CREATE ROLE s_member IN ROLE s_one;
SELECT tq_grant('work', 's_one', 'produce'), tq_grant('work', 's_two', 'produce'), tq_grant('work', 's_three', 'manage'), tq_grant('other', 's_three', 'produce');
SET ROLE s_one;
SELECT tq_schedule('one''s', 'work', '{"secret": 1}', every => '1 d');
SELECT ok(complaint($$SELECT tq_schedule('made', 'a new queue', every => '1 d')$$) ~ '^42501', 'a queue is made only by those who may');
SELECT is(owner, 's_one'::regrole, 'it is its maker''s'), is(payload, '{"secret": 1}', '... who sees all of it') FROM tq_schedules WHERE name = 'one''s';
SET ROLE s_member;
SELECT is(payload, '{"secret": 1}', 'so do members') FROM tq_schedules WHERE name = 'one''s';
SELECT tq_schedule_pause('one''s'), tq_schedule_resume('one''s');
SET ROLE s_two;
SELECT is((SELECT count(*)::int FROM tq_schedules), 0, 'others do not see it');
SELECT is(complaint(statement), '42501: permission denied for schedule "one''s": It belongs to another role, and the privilege ' || wanted || ' on its queue is missing.', statement)
	FROM (VALUES ($$SELECT tq_schedule('one''s', 'work', every => '1 d')$$, 'manage'), ($$SELECT tq_unschedule('one''s')$$, 'manage'),
		($$SELECT tq_schedule_run('one''s')$$, 'operate or manage'), ($$SELECT tq_schedule_pause('one''s')$$, 'operate or manage'),
		($$SELECT tq_schedule_resume('one''s')$$, 'operate or manage')) v (statement, wanted);
SET ROLE s_three;
SELECT is((name, payload)::text, '(one''s,)', 'who may manage the queue sees that it is there') FROM tq_schedules WHERE name = 'one''s';
SELECT is(complaint($$SELECT tq_schedule('one''s', 'work', every => '1 d')$$), '42501: permission denied for queue "work": The privilege needed is produce.', 'cannot replace it');
SELECT ok(tq_schedule_run('one''s') > 0, 'but run it, with its owner''s rights');
SELECT tq_schedule('one''s', 'other', every => '1 d');
RESET ROLE;
SELECT is((queue, owner)::text, '(other,s_three)', 'unless he may produce to the new queue: then it is his') FROM tq_schedules WHERE name = 'one''s';
SET ROLE s_one;
SELECT ok(complaint($$SELECT tq_unschedule('one''s')$$) ~ '^42501', '... and no longer the other''s');
RESET ROLE;
SELECT tq_schedule('one''s', 'work', every => '1 d');
UPDATE tq.schedule SET owner = 's_one' WHERE name = 'one''s';
SELECT tq_revoke('work', 's_one', 'produce');
SELECT is(complaint($$SELECT tq_schedule_run('one''s')$$), '42501: permission denied for queue "work": The privilege needed is produce, or create if there is no such queue.', 'the owner''s rights count, not the caller''s');
SELECT is(current_user::text, session_user::text, '... who is himself again');
DROP ROLE s_member;
DROP ROLE s_one;
SELECT is(complaint($$SELECT tq_schedule_run('one''s')$$), '42501: the role that schedule "one''s" belongs to does not exist', 'a role that was dropped has none');
SELECT ok(tq_schedule_run('plain') > 0, 'others are not concerned');
DROP ROLE s_two;
DROP ROLE s_three;

-- ---- limits per queue and role; test/t/schedules_under_load.pl tests which calls wait for each other

CREATE ROLE s_limited;
SELECT tq_create_queue('l_one'), tq_create_queue('l_two');
SELECT tq_grant('l_one', 's_limited', 'produce'), tq_grant('l_two', 's_limited', 'produce');
SELECT is((SELECT string_agg(setting || ' ' || context, ', ' ORDER BY name) FROM pg_settings WHERE name ~ '^tq.max_schedules'),
	'1000 superuser, 10000 superuser', 'defaults and contexts');
SET tq.max_schedules_per_queue = 2;
SET tq.max_schedules_per_role = 3;
SET ROLE s_limited;
SELECT is(complaint('SET tq.max_schedules_per_role = 0'), '42501: permission denied to set parameter "tq.max_schedules_per_role"', 'a limit is a superuser''s');
SELECT tq_schedule('l 1', 'l_one', every => '1 d'), tq_schedule('l 2', 'l_one', every => '1 d');
SELECT is(complaint($$SELECT tq_schedule('l 3', 'l_one', every => '1 d')$$),
	'53400: too many schedules for queue "l_one": It has at least 2; tq.max_schedules_per_queue allows 2.', 'one more for the queue');
SELECT is(complaint($$SELECT tq_schedule(n, 'l_two', every => '1 d') FROM unnest('{l 3,l 4}'::text[]) n$$),
	'53400: too many schedules of role "s_limited": It has at least 3; tq.max_schedules_per_role allows 3.', 'one more of the role, in one statement');
SELECT is((SELECT count(*)::int FROM tq_schedules), 2, '... which adds none then');
SELECT tq_schedule('l 3', 'l_two', every => '1 d');
SELECT tq_schedule('l 1', 'l_one', every => '2 d');
SELECT is((SELECT every FROM tq_schedules WHERE name = 'l 1'), '2 d', 'a schedule is replaced when there is room for no other');
SELECT ok(complaint($$SELECT tq_schedule('l 3', 'l_one', every => '1 d')$$) ~ '^53400: too many schedules for queue', '... but not moved to a full queue');
SELECT tq_schedule('l 1', 'l_two', every => '1 d');
SELECT tq_unschedule('l 3');
SELECT tq_schedule('l 4', 'l_one', every => '1 d');
SELECT is((SELECT array_agg(name || ' ' || queue ORDER BY name) FROM tq_schedules), '{l 1 l_two,l 2 l_one,l 4 l_one}', 'one that moves or goes makes room');
RESET ROLE;
SELECT ok(complaint($$SELECT tq_schedule('l 5', 'l_one', every => '1 d')$$) ~ '^53400', 'a superuser is not exempt');
SET tq.max_schedules_per_queue = 1;
SET tq.max_schedules_per_role = 1;
SELECT is((SELECT count(*)::int FROM tq_schedules WHERE name ~ '^l '), 3, 'those that there are stay when a limit is lowered');
SET ROLE s_limited;
SELECT tq_schedule_pause('l 1'), tq_schedule_resume('l 1'), tq_schedule('l 2', 'l_one', every => '3 d');
SELECT is((SELECT every FROM tq_schedules WHERE name = 'l 2'), '3 d', '... and can be changed');
RESET ROLE;
SET tq.max_schedules_per_queue = 0;
SET tq.max_schedules_per_role = 0;
SELECT tq_schedule('l 5', 'l_one', every => '1 d');
SELECT is((SELECT count(*)::int FROM tq_schedules WHERE queue = 'l_one'), 3, '0: no limit');
RESET tq.max_schedules_per_queue;
RESET tq.max_schedules_per_role;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) AS old FROM tq.schedule \gset
SELECT tq_schedule('l 6', 'l_two', every => '1 d');
SET LOCAL tq.max_schedules_per_queue = 2;
SELECT ok(complaint($$SELECT tq_schedule('l 7', 'l_two', every => '1 d')$$) ~ '^53400', 'what the transaction itself has added counts');
ROLLBACK;
SELECT is((SELECT count(*)::int FROM tq_schedules WHERE queue = 'l_two'), 1, 'a rollback gives the place back');
-- with a new owner, the new owner's limit applies
SET tq.max_schedules_per_role = 1;
SELECT ok(complaint($$SELECT tq_schedule('l 1', 'l_two', every => '1 d')$$) ~ '^53400: too many schedules of role', 'a schedule that gets another owner is one more of that role''s');
RESET tq.max_schedules_per_role;
SELECT tq_unschedule(name) FROM tq_schedules WHERE name ~ '^l ';

-- ---- late schedules

SELECT is((SELECT status || ' ' || value FROM tq_health() WHERE item = 'late schedules'), 'ok none', 'nothing is late');
SELECT ok(tq_metrics() ~ 'tq_schedule_lateness_seconds\{queue="work"\} 0', 'the metrics say so');

-- functions that a session can call only as a trigger
SELECT ok(complaint('SELECT tq.schedule_changed()') ~ '^0A000|^39P01', 'the trigger is none of its business');
SELECT is(sum(found), 0::numeric, 'memory and journal agree') FROM tq_check() WHERE expected >= 0;

SELECT * FROM finish();
