-- What a typo meets: queues that come into being, near names in hints, the wrong value in the message, unknown kinds. No
-- hint tells a role of a queue on which it has no right.
SET client_min_messages = warning;

SELECT * FROM no_plan();

-- What a statement answers to a role: 'ok', or SQLSTATE, message, detail and hint.
CREATE FUNCTION attempt(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	PERFORM set_config('role', who, true);
	EXECUTE statement;
	PERFORM set_config('role', 'none', true);
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' / ', sqlstate, sqlerrm, nullif(detail, ''), nullif(hint, ''));
END
$$;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE sql AS 'SELECT public.attempt(''none'', statement)';

SELECT tq_create_queue('mail'), tq_create_queue('invoices');
CREATE ROLE y_none;
CREATE ROLE y_mail;
CREATE ROLE y_all;
CREATE ROLE y_create;
SELECT tq_grant('mail', 'y_mail', 'produce'), tq_grant('*', 'y_all', p), tq_grant('*', 'y_create', 'create')
FROM unnest('{produce,consume,manage}'::text[]) p;

-- ---- queues

-- all of them say the same of a queue that does not exist, and create none
SELECT is(attempt(statement), 'TQ002 / queue "mial" does not exist / The queue was never created, or it is being dropped. / Perhaps you '
	'meant "mail". Queues are created by tq_create_queue, or by the first enqueue if tq.auto_create_queues is on.', statement)
FROM unnest(ARRAY[$$SELECT tq_alter_queue('mial', '{}')$$, $$SELECT tq_drop_queue('mial')$$, $$SELECT tq_pause('mial')$$, $$SELECT tq_resume('mial')$$,
	$$SELECT tq_grant('mial', 'y_none', 'produce')$$, $$SELECT tq_revoke('mial', 'y_none', 'produce')$$, $$SELECT tq_handle('mial', NULL, 'tq_now()')$$,
	$$SELECT tq_unhandle('mial', NULL)$$, $$SELECT tq_schedule('s', 'mial', every => '1 d')$$, $$SELECT tq_purge('mial', 'all')$$,
	$$SELECT tq_retry_many('mial')$$, $$SELECT tq_create_queue('x', '{"follow_up": {"queue": "mial"}}')$$]) statement;
SELECT is(attempt($$SELECT tq_alter_queue('nothing of the kind', '{}')$$), 'TQ002 / queue "nothing of the kind" does not exist / The queue was never created, or it is being '
	'dropped. / Queues are created by tq_create_queue, or by the first enqueue if tq.auto_create_queues is on.', 'no name is near');
SELECT ok(attempt(format('SELECT tq_alter_queue(%L, ''{}'')', wrong)) LIKE '%' || hint || '%', wrong || ': ' || hint)
FROM (VALUES ('mails', 'Perhaps you meant "mail".'), ('Mail', 'Perhaps you meant "mail".'), ('invoice', 'Perhaps you meant "invoices".'),
	('imvoises', 'Perhaps you meant "invoices".'), ('m', 'on. / Queues')) v (wrong, hint)
WHERE wrong <> 'm';
SELECT results_eq('SELECT queue FROM tq_queues ORDER BY 1', $$VALUES ('invoices'), ('mail')$$, 'none was created');

-- claims and tq_wait wait for it
SELECT is((SELECT count(*)::int FROM tq_claim('mial')), 0, 'a claim of a queue that does not exist returns nothing');
SELECT is((SELECT count(*)::int FROM tq_claim_any('{mial,mail,more}', wait => '10 ms')), 0, '... nor does one of several'); -- limit: nothing comes
CALL tq_wait('{mial}', '10 ms'); -- limit: nothing comes
SELECT is((SELECT count(*)::int FROM tq_queues), 2, 'and creates none');
SET tq.auto_create_queues = off;
SELECT matches(attempt($$SELECT * FROM tq_claim('mial')$$), '^TQ002.*Perhaps you meant "mail"', 'without tq.auto_create_queues it is an error');
SELECT matches(attempt($$CALL tq_wait('{mial}', '0')$$), '^TQ002.*Perhaps you meant "mail"', '... of tq_wait, too');
SELECT matches(attempt($$SELECT tq_enqueue('mial')$$), '^TQ002.*Perhaps you meant "mail"', '... and of an enqueue');
RESET tq.auto_create_queues;

-- ---- rights

SELECT is(attempt('y_none', format('SELECT tq_enqueue(%L)', queue)), format('42501 / permission denied for queue "%s" / The privilege needed is produce, or '
	'create if there is no such queue. / A role that may manage the queue can grant it with tq_grant.', queue), 'without a right: ' || queue)
FROM unnest('{mail,mial,invoices,invoice}'::text[]) queue;
SELECT is(attempt('y_none', format('SELECT * FROM tq_claim(%L)', queue)), format('42501 / permission denied for queue "%s" / The privilege needed is consume. / '
	'A role that may manage the queue can grant it with tq_grant.', queue), '... a claim: ' || queue) FROM unnest('{mail,mial}'::text[]) queue;
SELECT is(attempt('y_mail', format('SELECT tq_enqueue(%L)', queue)), format('42501 / permission denied for queue "%s" / The privilege needed is produce, or '
	'create if there is no such queue. / %sA role that may manage the queue can grant it with tq_grant.', queue, hint), 'with a right on mail: ' || queue)
FROM (VALUES ('mial', 'Perhaps you meant "mail". '), ('invoice', ''), ('invoices', '')) v (queue, hint);
SELECT is(attempt('y_all', $$SELECT tq_enqueue('mial')$$), '42501 / permission denied to create queue "mial" / There is no such queue. The privilege needed is '
	'create. / Perhaps you meant "mail". A role that may manage all queues can grant it with tq_grant, queue => ''*'', or create the queue.', 'the right to create is named');
SELECT is(attempt(role, $$SELECT tq_create_queue('mine')$$), '42501 / permission denied to create queue "mine" / The privilege needed is create. / A role that may manage '
	'all queues can grant it with tq_grant, queue => ''*'', or create the queue.', '... for ' || role) FROM unnest('{y_none,y_mail,y_all}'::text[]) role;
SELECT is(attempt('y_all', $$SELECT * FROM tq_claim('mial')$$), 'ok', 'who may consume from all queues waits for one');
SELECT is(attempt('y_create', $$SELECT * FROM tq_claim('mial')$$), 'ok', 'so does who may create it');
SELECT matches(attempt('y_create', $$SELECT * FROM tq_claim('mail')$$), '^42501', 'but not for one of others');
SELECT matches(attempt('y_create', $$SELECT tq_schedule('s', 'mial', every => '1 d')$$), '^42501.*The privilege needed is produce', 'nor does a schedule create one');

-- ---- words and values

SELECT is(attempt(statement), wanted, statement) FROM (VALUES
	($$SELECT tq_alter_queue('mail', '{"leas": "1 s"}')$$, '22023 / unknown setting "leas" / Perhaps you meant "lease". Known settings are burst, cancel_grace, '
		'change_retention, dead_retention, enqueue_rate, executors, expires_in, fair, follow_up, group_max_running, group_order, group_rate, lease, lease_grace, max_attempts, max_depth, '
		'max_running, notify, on_lost, order, priority, rate, retention, retry, strict_timeout, timeout, unique_for, weight.'),
	($$SELECT tq_enqueue('mail', options => '{"tag": []}')$$, '22023 / unknown key "tag" in options / Perhaps you meant "tags". Known keys are batch, follow_up, lease, '
		'on_parent_failure, tags, unique_for, weight.'),
	($$SELECT tq_enqueue('mail', retry => '{"dealy": "1 s"}')$$, '22023 / unknown key "dealy" in retry / Perhaps you meant "delay". Known keys are policy, delay, max, '
		'factor, jitter, delays, on_lost.'),
	($$SELECT tq_enqueue('mail', unique_mode => 'replase')$$, '22023 / unknown unique_mode "replase" / Perhaps you meant "replace". Known modes are skip, skip_waiting, ignore, '
		'replace, replace_waiting, keep_run_at, error.'),
	($$SELECT tq_purge('mail', 'canceled')$$, '22023 / unknown state "canceled" / Perhaps you meant "cancelled". The state can be ready, delayed, blocked, succeeded, dead, '
		'buried, cancelled, expired, all.'),
	($$SELECT tq_retry_many('mail', 'dad')$$, '22023 / jobs that are "dad" cannot be retried / Perhaps you meant "dead". The state can be dead, buried, cancelled, '
		'expired, delayed.'),
	($$SELECT * FROM tq_list('mail', 'redy')$$, '22023 / unknown state "redy" / Perhaps you meant "ready". The state can be ready, delayed, blocked, running, succeeded, '
		'dead, buried, cancelled, expired.'),
	($$SELECT * FROM tq_cancel_many('mail', 'runing')$$, '22023 / unknown state "runing" / Perhaps you meant "running". The state can be ready, delayed, blocked, running.'),
	($$SELECT * FROM tq_retry_where('mail', 'ready')$$, '22023 / jobs that are "ready" cannot be retried / The state can be delayed, dead, '
		'buried, cancelled, expired.'),
	($$SELECT * FROM tq_purge_many('mail', 'al')$$, '22023 / unknown state "al" / Perhaps you meant "all". The state can be ready, delayed, blocked, succeeded, dead, buried, '
		'cancelled, expired, all.'),
	($$SELECT tq_enqueue_many('mail', '{1}', run_ats => '{infinity}')$$, '22023 / run_ats must be finite: infinity'),
	($$SELECT tq_grant('mail', 'y_none', 'consum')$$, '22023 / unknown privilege "consum" / Perhaps you meant "consume". Known privileges are produce, consume, '
		'operate, manage, metrics, inspect, monitor, create.'),
	($$SELECT tq_grant('mail', 'y_none', 'everything')$$, '22023 / unknown privilege "everything" / Known privileges are produce, consume, operate, manage, metrics, '
		'inspect, monitor, create.'),
	($$SELECT tq_enqueue('mail', options => '{"lease": "5 mints"}')$$, '22023 / option "lease" has a wrong value: "5 mints" / It must be a string with an interval, such '
		'as "30 s".'),
	($$SELECT tq_alter_queue('mail', '{"priority": 70000}')$$, '22023 / setting "priority" has a wrong value: 70000 / It must be between -32768 and 32767.'),
	($$SELECT tq_alter_queue('mail', '{"fair": "yes"}')$$, '22023 / setting "fair" has a wrong value: "yes" / It must be true or false.'),
	($$SELECT tq_alter_queue('mail', '{"retry": {"delays": [1, "x"]}}')$$, '22023 / setting "retry.delays" has a wrong value: 1 / It must be a string with an interval, '
		'such as "30 s".'),
	($$SELECT tq_alter_queue('mail', '{"retry": {"policy": {"a": [null]}}}')$$, '22023 / setting "retry.policy" has a wrong value: {"a": [null]} / It must be one of '
		'exponential, linear, fixed, list.'),
	($$SELECT tq_enqueue('mail', options => '[1, 2]')$$, '22023 / options must be a JSON object: [1, 2]'),
	($$SELECT tq_enqueue('mail', headers => '"x"')$$, '22023 / headers must be a JSON object: "x"'),
	($$SELECT tq_enqueue('mail', timeout => '-1 s')$$, '22023 / timeout is out of range: -00:00:01 / It must be at least 0.001 s and at most 3652 days.'),
	($$SELECT tq_enqueue('mail', run_at => 'infinity')$$, '22023 / run_at must be finite: infinity'),
	($$SELECT tq_pause('mail', until => '2020-01-01 00:00+00')$$, '22023 / until must be in the future: ' || timestamptz '2020-01-01 00:00+00')
) v (statement, wanted);
SELECT is(length(attempt(format('SELECT tq_enqueue(''mail'', options => %L)', jsonb_build_object('lease', repeat('é', n))))) < 400, true, n || ' characters are cut')
FROM unnest(ARRAY[200, 2000]) n;
SELECT matches(attempt($$SELECT tq_enqueue('mail', options => '{"weight": 1e100000}')$$), '^22023 / option "weight" has a wrong value: 10{80,}[.]{3} .cut: it had 100001 bytes', 'digits, too');

-- schedules, time zones, handlers, subscriptions, workers
SELECT tq_schedule('nightly', 'invoices', every => '1 d') \g /dev/null
SELECT is(attempt(format('SELECT %s(''nigthly'')', function)), '42704 / schedule "nigthly" does not exist / Perhaps you meant "nightly". The view tq_schedules lists '
	'those that there are.', function) FROM unnest('{tq_unschedule,tq_schedule_pause,tq_schedule_resume,tq_schedule_run}'::text[]) function;
SELECT is(attempt('y_mail', $$SELECT tq_unschedule('nigthly')$$), '42704 / schedule "nigthly" does not exist / The view tq_schedules lists those that there are.',
	'without a right on its queue no schedule is named');
SELECT is(attempt('y_all', $$SELECT tq_unschedule('nigthly')$$) LIKE '%"nightly"%', true, 'with one it is');
SELECT tq_unschedule('nightly') \g /dev/null
SELECT is(attempt($$SELECT tq_unschedule('nigthly')$$), '42704 / schedule "nigthly" does not exist / The view tq_schedules lists those that there are.', 'nor is one that is gone');
SELECT is(attempt(format('SELECT tq_schedule_next(''@daily'', %L)', zone)), format('22023 / time zone "%s" does not exist / There is no such name in the time zone database. / '
	'Perhaps you meant "%s". The view pg_timezone_names lists those that there are.', zone, near), 'zone ' || zone)
FROM (VALUES ('Europe/Berln', 'Europe/Berlin'), ('Amerika/New_York', 'America/New_York')) v (zone, near);
SELECT is(attempt($$SELECT tq_unschedule('x')$$), '42704 / schedule "x" does not exist / The view tq_schedules lists those that there are.', 'no near name');
CREATE FUNCTION handle(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT tq_handle('invoices', 'bill', 'handle(tq_job)'), tq_handle('mail', 'bull', 'handle(tq_job)') \g /dev/null
SELECT is(attempt($$SELECT tq_unhandle('invoices', 'bil')$$), '42704 / queue "invoices" has no handler for kind "bil" / Perhaps you meant "bill". tq_handlers shows what handlers '
	'there are.', 'a handler of this queue');
SELECT is(attempt($$SELECT tq_unhandle('invoices', NULL)$$), '42704 / queue "invoices" has no handler for every kind / tq_handlers shows what handlers there are.', 'none for every kind');
SELECT tq_unhandle('mail', 'bull') \g /dev/null
SELECT is(attempt($$SELECT tq_unsubscribe('mail', 'https://example.org/hok')$$), '42704 / queue "mail" has no subscription for "https://example.org/hok" / tq_subscriptions shows what '
	'subscriptions there are.', 'the address is shown');

-- ---- kinds

SELECT is(attempt($$SELECT tq_pause('mail', 'digest')$$), '42704 / kind "digest" of queue "mail" is unknown / The server knows of no job of this kind, no worker waits '
	'for one, and no handler or schedule names the kind. / The view tq_queues lists the kinds of a queue.', 'a kind that nobody knows cannot be paused');
SELECT is((SELECT paused_kinds FROM tq.queue WHERE name = 'mail'), '{}', '... and is not');
SELECT is((SELECT kinds FROM tq_queues WHERE queue = 'mail'), NULL, '... nor noted');
SELECT tq_resume('mail', 'digest');
SELECT is((SELECT kinds FROM tq_queues WHERE queue = 'mail'), NULL, 'to resume it does nothing');
SELECT tq_enqueue('mail', kind => 'digest') AS job \gset
SELECT is(attempt($$SELECT tq_pause('mail', 'digset')$$), '42704 / kind "digset" of queue "mail" is unknown / The server knows of no job of this kind, no worker waits '
	'for one, and no handler or schedule names the kind. / Perhaps you meant "digest". The view tq_queues lists the kinds of a queue.', 'a near one');
SELECT tq_pause('mail', 'digest');
SELECT is(paused_kinds, '{"digest": null}', 'one that has a job can be paused') FROM tq.queue WHERE name = 'mail';
SELECT tq_resume('mail', 'digest');
SELECT is(paused_kinds, '{}', 'and resumed') FROM tq.queue WHERE name = 'mail';
SELECT tq_schedule('weekly', 'mail', kind => 'weekly', every => '7 d');
SELECT is(attempt($$SELECT tq_pause('mail', 'weekly')$$), 'ok', 'one of a schedule');
SELECT is(attempt($$SELECT tq_pause('invoices', 'bill')$$), 'ok', 'one of a handler');
SELECT is(attempt($$SELECT tq_pause('mail', 'bill')$$) ~ '^42704', true, '... of that queue only');

-- a worker that asks for a kind that no job has
CREATE FUNCTION asked() RETURNS text LANGUAGE sql
	AS $$SELECT value || ', ' || status FROM public.tq_health() WHERE item = 'kinds that workers ask for in vain'$$;
SELECT tq_create_queue('work'), tq_grant('work', 'y_mail', 'produce');
SELECT tq_enqueue('work', kind => 'digest') AS job \gset
SELECT ok(tq_explain(:job) LIKE '%no worker has asked for queue "work", kind "digest" since the server started%tq_claim(''work'').', 'nobody asks');
SELECT is(asked(), 'none, ok', 'and tq_health has nothing to say');
SELECT is((SELECT count(*)::int FROM tq_claim('work', kinds => '{digests}')), 0, 'a worker asks for another kind');
SELECT ok(tq_explain(:job) LIKE '%Workers have asked for kinds of which the queue has no jobs: "digests".', 'tq_explain names it');
SELECT is(asked(), '"digests" of work, warn', 'so does tq_health');
SELECT is((SELECT count(*)::int FROM tq_claim('work', kinds => '{digests,other}')), 0, 'and for one more');
SELECT matches(asked(), '"other" of work.*, warn', 'both are named');
SET ROLE y_mail;
SELECT is(tq_explain(:job) LIKE '%digests%', false, 'who may only produce is not told');
RESET ROLE;
SELECT tq_enqueue('work', kind => 'other') AS other \gset
SELECT ok(tq_explain(:job) LIKE '%of which the queue has no jobs: "digests".', 'a kind that gets a job is none of them');
SELECT is((SELECT count(*)::int FROM tq_claim('work', 5)), 2, 'a worker asks for all kinds');
SELECT is(asked(), '"digests" of work, ok', 'without jobs that wait it is nothing to warn of');

SELECT is((SELECT count(*) FROM tq_check() WHERE found <> expected), 0::bigint, 'nothing is left behind');
SELECT * FROM finish();
