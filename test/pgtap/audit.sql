-- tq_audit: which calls are recorded, with which roles, and which roles see them. Subscriptions.
SET client_min_messages = warning;

SELECT * FROM no_plan();
CREATE ROLE a_manage;
CREATE ROLE a_operate;
CREATE ROLE a_inspect;
CREATE ROLE a_consume;
CREATE ROLE a_none;
SELECT tq_create_queue('mine', '{"lease": "1 min"}'), tq_create_queue('other');
SELECT tq_grant('mine', ('a_' || p)::regrole, p) FROM unnest('{manage,operate,inspect,consume}'::text[]) p;
CREATE FUNCTION handle(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
-- a kind that can be paused
SELECT tq_enqueue('mine', kind => 'k') \g /dev/null
SELECT tq_complete(id, lease) FROM tq_claim('mine') \g /dev/null
CREATE TABLE seen AS SELECT coalesce(max(id), 0) AS id FROM tq_audit;
-- What was recorded since the last call.
CREATE FUNCTION recorded() RETURNS text LANGUAGE sql AS $$
	WITH new AS (SELECT a.* FROM tq_audit a, seen s WHERE a.id > s.id), kept AS (UPDATE seen SET id = (SELECT max(id) FROM new) WHERE EXISTS (SELECT FROM new))
	SELECT string_agg(concat_ws(' ', role, action, queue, job_id IS NOT NULL, detail), '; ' ORDER BY id) FROM new
$$;

-- ---- what is recorded

SELECT current_user AS me \gset
SELECT is((SELECT string_agg(concat_ws(' ', action, queue, detail), '; ' ORDER BY id) FROM tq_audit WHERE action <> 'grant'),
	'create_queue mine {"settings": {"lease": "1 min"}}; create_queue other {"settings": {}}', 'queues are created');
SELECT is((SELECT count(*)::int FROM tq_audit WHERE action = 'grant'), 4, 'grants');
CREATE TABLE calls (n serial, call text, wanted text);
INSERT INTO calls (call, wanted) VALUES
	($$SELECT tq_alter_queue('mine', '{"weight": 2}')$$, 'alter_queue mine f {"settings": {"weight": 2}}'),
	($$SELECT tq_pause('mine', 'k')$$, 'pause mine f {"kind": "k"}'),
	($$SELECT tq_resume('mine', 'k')$$, 'resume mine f {"kind": "k"}'),
	($$SELECT tq_limit_group('mine', 'g', 3, '5/s')$$, 'limit_group mine f {"rate": "5/s", "group_key": "g", "max_running": 3}'),
	($$SELECT tq_limit_group('mine', 'g')$$, 'limit_group mine f {"group_key": "g"}'),
	($$SELECT tq_cancel(tq_enqueue('mine'), 'why')$$, 'cancel mine t {"reason": "why"}'),
	($$SELECT tq_reschedule(tq_enqueue('mine'), priority => 1)$$, 'reschedule mine t'),
	($$SELECT tq_create_queue('third')$$, 'create_queue third f {"settings": {}}'),
	($$SELECT status FROM tq_cancel_jobs(ARRAY[tq_enqueue('third'), tq_enqueue('mine'), 9007199254740993, tq_enqueue('third')], 'why')$$,
		format('cancel_jobs third f {"jobs": 2, "reason": "why"}; %s cancel_jobs mine f {"jobs": 1, "reason": "why"}', current_user)),
	($$SELECT status FROM tq_cancel_jobs(ARRAY[9007199254740993])$$, NULL),
	($$SELECT tq_free_key('mine', 'kept')$$, 'free_key mine t {"unique_key": "kept"}'),
	($$SELECT tq_free_key('mine', 'kept')$$, NULL),
	($$SELECT tq_retry(tq_enqueue('mine', delay => '1 h'))$$, 'retry mine t'),
	($$SELECT tq_retry_many('mine', kind => 'k')$$, 'retry_many mine f {"jobs": 0, "kind": "k", "state": "dead"}'),
	($$SELECT tq_purge('mine', 'ready') > 0$$, 'purge mine f {"jobs": 2, "state": "ready"}'),
	($$SELECT tq_retry(tq_enqueue('mine', delay => '1 h'), with_children => true)$$, 'retry mine t {"with_children": true}'),
	($$SELECT changed FROM tq_cancel_many('mine', 'ready', worker => 'w', reason => 'why')$$, 'cancel_many mine f {"jobs": 0, "state": "ready", "reason": "why", "worker": "w"}'),
	($$SELECT changed FROM tq_reschedule_many('mine', kind => 'k', group_key => 'g', priority => 1)$$, 'reschedule_many mine f {"jobs": 0, "kind": "k", "group_key": "g"}'),
	($$SELECT changed FROM tq_retry_where('mine', search => '{"secret": 1}', created_to => '2001-01-01 00:00+00')$$,
		format('retry_where mine f {"jobs": 0, "state": "dead", "search": true, "created_to": "%s"}', timestamptz '2001-01-01 00:00+00')),
	($$SELECT changed FROM tq_purge_many(NULL, 'ready', unique_key => 'u', tag => 't')$$, 'purge_many f {"tag": "t", "jobs": 0, "state": "ready", "unique_key": "u"}'),
	($$SELECT tq_grant('mine', 'a_none', 'produce', 'consume')$$, 'grant mine f {"role": "a_none", "privileges": "produce, consume"}'),
	($$SELECT tq_revoke('mine', 'a_none', 'produce', 'consume')$$, 'revoke mine f {"role": "a_none", "privileges": "produce, consume"}'),
	($$SELECT tq_grant('*', 'a_none', 'create')$$, 'grant f {"role": "a_none", "privileges": "create"}'),
	($$SELECT tq_schedule('s', 'mine', every => '1000 d')$$, 'schedule mine f {"schedule": "s"}'),
	($$SELECT tq_schedule_pause('s')$$, 'schedule_pause mine f {"schedule": "s"}'),
	($$SELECT tq_schedule_resume('s')$$, 'schedule_resume mine f {"schedule": "s"}'),
	($$SELECT tq_schedule_run('s')$$, 'schedule_run mine f {"schedule": "s"}'),
	($$SELECT tq_unschedule('s')$$, 'unschedule mine f {"schedule": "s"}'),
	($$SELECT tq_handle('mine', 'k', 'handle(tq_job)')$$, 'handle mine f {"kind": "k", "function": "public.handle"}'),
	($$SELECT tq_unhandle('mine', 'k')$$, 'unhandle mine f {"kind": "k"}'),
	($$SELECT tq_subscribe('mine', 'https://example.org/', '{"secret": "x"}')$$, 'subscribe mine f {"url": "https://example.org/"}'),
	($$SELECT tq_unsubscribe('mine', 'https://example.org/')$$, 'unsubscribe mine f {"url": "https://example.org/"}'),
	($$SELECT tq_drain('w')$$, 'drain f {"worker": "w"}'),
	($$SELECT tq_undrain('w')$$, 'undrain f {"worker": "w"}'),
	($$SELECT tq_release_worker('w')$$, 'release_worker f {"jobs": 0, "worker": "w"}'),
	($$SELECT tq_drop_queue('other')$$, 'drop_queue other f');
SELECT tq_enqueue('mine', kind => 'kept', unique_key => 'kept', options => '{"unique_for": "1 d"}') \g /dev/null
SELECT tq_complete(id, lease) FROM tq_claim('mine', kinds => '{kept}') \g /dev/null
SELECT recorded() IS NULL \g /dev/null
CREATE FUNCTION recorded_of(call text) RETURNS text LANGUAGE plpgsql AS $$BEGIN EXECUTE call; RETURN public.recorded(); END$$;
SELECT is(recorded_of(call), :'me' || ' ' || wanted, call) FROM calls ORDER BY n;
SELECT tq_cancel(tq_enqueue('mine'), repeat(U&'\00e4', 1000)) \g /dev/null
SELECT is((SELECT length(detail ->> 'reason') FROM tq_audit ORDER BY id DESC LIMIT 1), 500, 'a long text is cut');

-- workers' calls are not
SELECT recorded() \g /dev/null
SELECT changed FROM tq_purge_many('mine', 'all', dry_run => true) \g /dev/null
SELECT tq_enqueue('mine'), tq_enqueue_many('mine', '{"{}","{}"}') \g /dev/null
SELECT tq_complete(id, lease) FROM tq_claim('mine') \g /dev/null
SELECT tq_fail(id, lease, 'x', fatal => true) FROM tq_claim('mine') \g /dev/null
SELECT is(recorded(), NULL, 'work is not recorded');
SELECT throws_ok($$SELECT tq_pause('nowhere')$$, 'TQ002', NULL, 'what fails');
SELECT is(recorded(), NULL, '... is not recorded');

-- the roles, and the transaction
BEGIN;
SET LOCAL ROLE a_operate;
SELECT tq_pause('mine'), tq_resume('mine');
RESET ROLE;
SELECT is((SELECT string_agg(concat_ws(' ', role, session_role = :'me', action), '; ' ORDER BY a.id) FROM tq_audit a, seen s WHERE a.id > s.id),
	'a_operate t pause; a_operate t resume', 'the current user, and the role that logged in');
ROLLBACK;
SELECT is(recorded(), NULL, 'a rollback removes it');
CREATE FUNCTION through() RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public AS $$SELECT tq_pause('mine')$$;
ALTER FUNCTION through() OWNER TO a_manage;
SET ROLE a_none;
SELECT through();
RESET ROLE;
SELECT is(recorded(), 'a_manage pause mine f', 'a SECURITY DEFINER function counts as its owner');
SELECT tq_resume('mine');

-- ---- who sees it

CREATE FUNCTION seen_by(who text, query text DEFAULT 'SELECT string_agg(DISTINCT coalesce(queue, ''-''), '' '' ORDER BY coalesce(queue, ''-'')) FROM tq_audit')
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	PERFORM set_config('role', who, true);
	EXECUTE query INTO answer;
	PERFORM set_config('role', 'none', true);
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END
$$;
SELECT is(seen_by(who), wanted, 'tq_audit as ' || who)
	FROM (VALUES ('a_manage', 'mine'), ('a_inspect', 'mine'), ('a_operate', NULL), ('a_consume', NULL), ('a_none', NULL), (:'me', '- mine other third')) v (who, wanted);
SELECT tq_grant('*', 'a_none', 'inspect');
SELECT is(seen_by('a_none'), '- mine other third', 'all rows with inspect on all queues');
SELECT tq_revoke('*', 'a_none', 'inspect');
SELECT is(seen_by('a_manage', 'INSERT INTO tq.audit (id) VALUES (1)'), '42501', 'the table is closed');
SELECT is(seen_by('a_manage', 'DELETE FROM tq_audit RETURNING 1'), '42501', '... and the view is to read');

-- ---- subscriptions

SELECT tq_subscribe('mine', 'https://example.org:8443/a?b=c#d', '{"secret": "s"}'), tq_subscribe('mine', 'HTTP://[::1]/');
SELECT tq_subscribe('mine', 'HTTP://[::1]/', '{"n": 2}');
SELECT results_eq($$SELECT queue, url, options, role, active FROM tq_subscriptions ORDER BY url$$,
	format($$VALUES ('mine', 'HTTP://[::1]/', '{"n": 2}'::jsonb, %L::regrole, true), ('mine', 'https://example.org:8443/a?b=c#d', '{"secret": "s"}', %1$L, true)$$, :'me'),
	'targets; a second call replaces the options');
SELECT is(seen_by(who, 'SELECT string_agg(concat_ws('' '', url, options), ''; '' ORDER BY url) FROM tq_subscriptions'), wanted, 'tq_subscriptions as ' || who)
	FROM (VALUES ('a_manage', 'HTTP://[::1]/ {"n": 2}; https://example.org:8443/a?b=c#d {"secret": "s"}'), ('a_inspect', 'HTTP://[::1]/; https://example.org:8443/a?b=c#d'),
		('a_operate', NULL), ('a_consume', NULL), ('a_none', NULL)) v (who, wanted);
SELECT throws_ok(format('SELECT tq_subscribe(%L, %L)', 'mine', url), '22023', 'url is not valid', 'not valid: ' || url)
	FROM unnest(ARRAY['ftp://example.org', 'example.org', 'https://', 'http:///path', 'https://:80/', 'https://user@example.org', 'https://u:p@example.org/x',
		'https://example.org/a b', E'https://example.org/\n', 'https://exämple.org', 'javascript:alert(1)', 'https://a.org/<b>']) url;
SELECT throws_ok($$SELECT tq_subscribe('mine', '')$$, '22023', NULL, 'an empty URL');
SELECT lives_ok($$SELECT tq_subscribe('mine', 'https://example.org/@user')$$, 'an @ after the host');
SELECT throws_ok($$SELECT tq_subscribe('mine', 'https://example.org', '[]')$$, '22023', 'options must be a JSON object: []', 'options that are no object');
SELECT throws_ok($$SELECT tq_subscribe('nowhere', 'https://example.org')$$, 'TQ002', NULL, 'no queue');
SELECT throws_ok($$SELECT tq_unsubscribe('mine', 'https://example.org/none')$$, '42704', 'queue "mine" has no subscription for "https://example.org/none"', 'no target');
SELECT is(seen_by(who, $$SELECT tq_subscribe('mine', 'https://example.org/x')$$), wanted, 'tq_subscribe as ' || who)
	FROM (VALUES ('a_manage', '42501'), ('a_consume', '42501'), ('a_inspect', '42501'), ('a_none', '42501')) v (who, wanted);
SELECT tq_grant('mine', 'a_manage', 'consume');
SELECT is(seen_by('a_manage', $$SELECT tq_subscribe('mine', 'https://example.org/x')$$), '', '... which takes manage and consume');
SELECT is(seen_by('a_manage', $$SELECT tq_unsubscribe('mine', 'https://example.org/x')$$), '', '... and ends with manage');
SELECT tq_subscribe('mine', 'https://example.org/' || i) FROM generate_series(1, 97) i \g /dev/null
SELECT throws_ok($$SELECT tq_subscribe('mine', 'https://example.org/one more')$$, '22023', NULL, 'not valid even if there were room');
SELECT throws_ok($$SELECT tq_subscribe('mine', 'https://example.org/more')$$, '53400', 'too many subscriptions for queue "mine"', 'a queue has at most 100');
SELECT lives_ok($$SELECT tq_subscribe('mine', 'https://example.org/97', '{"a": 1}')$$, '... which can be replaced');

SELECT * FROM finish();
DROP OWNED BY a_manage CASCADE;
SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE rolname ~ '^a_' \gexec
