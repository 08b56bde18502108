-- Rights (P8): every function and view with each privilege, and without any; grants, revocations, rights on a new
-- queue.
SET client_min_messages = warning;

SELECT * FROM no_plan();

-- r_X has X on the queue "mine", all_X on all queues.
CREATE ROLE r_none;
CREATE ROLE r_produce;
CREATE ROLE r_consume;
CREATE ROLE r_manage;
CREATE ROLE r_monitor;
CREATE ROLE r_metrics;
CREATE ROLE r_inspect;
CREATE ROLE r_operate;
CREATE ROLE all_produce;
CREATE ROLE all_consume;
CREATE ROLE all_manage;
CREATE ROLE all_monitor;
CREATE ROLE all_metrics;
CREATE ROLE all_inspect;
CREATE ROLE all_operate;
CREATE ROLE all_create;

-- The answer of a statement to a role, or its SQLSTATE.
CREATE FUNCTION attempt(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	PERFORM set_config('role', who, true);
	IF statement ~ '^CALL' THEN
		EXECUTE statement;
	ELSE
		EXECUTE statement INTO answer;
	END IF;
	PERFORM set_config('role', 'none', true);
	RETURN coalesce(answer, 'null');
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END
$$;

SELECT tq_create_queue('mine', '{"change_retention": "1 day"}');
CREATE FUNCTION handle(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT tq_handle('mine', 'handled', 'handle(tq_job)');
SELECT tq_subscribe('mine', 'https://mine/');
SELECT tq_create_queue('other');
SELECT tq_grant('mine', ('r_' || p)::regrole, p), tq_grant('*', ('all_' || p)::regrole, p)
	FROM unnest('{produce,consume,manage,monitor,metrics,inspect,operate}'::text[]) p;
SELECT tq_grant('*', 'all_create', 'create');
SELECT tq_schedule('of mine', 'mine', '{"secret": 6}', 'left', every => '1000 d');
SELECT tq_schedule('for ' || rolname, 'mine', every => '1000 d') FROM pg_roles WHERE rolname ~ '^(r|all)_';
-- a queue to which every role may enqueue
SELECT tq_create_queue('free');
SELECT tq_grant('free', ('r_' || p)::regrole, 'produce') FROM unnest('{none,produce,consume,manage,monitor,metrics,inspect,operate}'::text[]) p;

-- ---- every verb

-- {id} and {lease} are those of a job of the state `needs`, made for this attempt; {q} is the queue. Wanted: by role, r_none first.
-- TQ004: there is no such job, for this role; 42501: it may not.
CREATE TABLE verb (n int GENERATED ALWAYS AS IDENTITY, needs text, statement text, none text, produce text, consume text, manage text, monitor text, metrics text, inspect text, operate text);
INSERT INTO verb (needs, statement, none, produce, consume, manage, monitor, metrics, inspect, operate) VALUES
	(NULL, $$SELECT tq_enqueue({q}, kind => 'left') > 0$$, '42501', 'true', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT cardinality(tq_enqueue_many({q}, '{"{}","{}"}', 'left'))$$, '42501', '2', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT outcome FROM tq_enqueue_info({q}, kind => 'left')$$, '42501', 'created', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT count(*) FROM tq_enqueue_many_info({q}, '{"{}","{}"}', 'left')$$, '42501', '2', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$WITH i AS (INSERT INTO tq_inbox (queue, kind) VALUES ({q}, 'left')) SELECT 'in'$$, '42501', 'in', '42501', '42501', '42501', '42501', '42501', '42501'),
	-- every option, and every table behind it
	(NULL, $$SELECT tq_enqueue({q}, '{}', 'left', 5, delay => '1 h', expires_at => now() + interval '1 d', max_attempts => 2, retry => '{"delay": "1 s"}',
		timeout => '1 min', group_key => 'g', unique_key => 'u', unique_mode => 'replace', headers => '{}',
		options => '{"unique_for": "1 h", "weight": 2, "tags": ["t"], "lease": "1 min"}') > 0$$, '42501', 'true', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT cardinality(tq_enqueue_many({q}, '{"{}","{}"}', 'left', delay => '1 h', unique_mode => 'replace', unique_keys => '{u,v}', group_keys => '{g,g}'))$$,
		'42501', '2', '42501', '42501', '42501', '42501', '42501', '42501'),
	-- a role that may know of a job may wait for it
	('dead', $$SELECT tq_enqueue('free', depends_on => ARRAY[{id}]) > 0$$, 'TQ004', 'true', 'true', 'true', 'true', 'TQ004', 'true', 'true'),
	('batch', $$SELECT tq_enqueue('free', options => jsonb_build_object('batch', {id})) > 0$$, 'TQ004', 'true', '42501', 'true', '42501', 'TQ004', '42501', 'true'),
	(NULL, $$SELECT tq_batch_open({q}, kind => 'left') > 0$$, '42501', 'true', '42501', '42501', '42501', '42501', '42501', '42501'),
	('batch', $$SELECT tq_batch_close({id})$$, 'TQ004', '', '42501', '', '42501', 'TQ004', '42501', ''),
	('batch', $$SELECT open FROM tq_batch({id})$$, 'TQ004', 'true', 'true', 'true', 'true', 'TQ004', 'true', 'true'),
	(NULL, $$SELECT count(*) FROM tq_inbox$$, '0', '0', '0', '0', '0', '0', '0', '0'),
	('ready', $$SELECT payload FROM tq_claim({q}, kinds => ARRAY['ready'])$$, '42501', '42501', '{"secret": 1}', '42501', '42501', '42501', '42501', '42501'),
	('ready', $$SELECT payload FROM tq_claim_any(ARRAY[{q}], kinds => ARRAY['ready'])$$, '42501', '42501', '{"secret": 1}', '42501', '42501', '42501', '42501', '42501'),
	('ready', $$SELECT (job).payload FROM tq_claim_for(ARRAY[{q}], '{w}', kinds => ARRAY['ready'])$$, '42501', '42501', '{"secret": 1}', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT count(*) FROM tq_claim_next({q}, '{}', '{}', kinds => ARRAY['none'])$$, '42501', '42501', '0', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$CALL tq_wait(ARRAY[{q}], '1 ms')$$, '42501', '42501', 'null', '42501', '42501', '42501', '42501', '42501'), -- limit: nothing comes
	(NULL, $$SELECT count(*) FROM tq_ready(ARRAY[{q}], ARRAY['none'])$$, '42501', '42501', '0', '42501', '42501', '42501', '42501', '42501'),
	-- without a right it does not wait, as if the job did not exist
	('running', $$CALL tq_wait_jobs(ARRAY[{id}], '1 ms')$$, 'null', 'null', 'null', 'null', 'null', 'null', 'null', 'null'), -- limit: nothing comes
	('running', $$SELECT tq_ended(ARRAY[{id}]) = '{}'$$, 'false', 'true', 'true', 'true', 'true', 'false', 'true', 'true'),
	('running', $$SELECT state FROM tq_outcomes(ARRAY[{id}])$$, 'null', 'running', 'running', 'running', 'running', 'null', 'running', 'running'),
	('running', $$SELECT action FROM tq_heartbeat({id}, {lease})$$, 'lost', '42501', 'run', '42501', '42501', 'lost', '42501', '42501'),
	('running', $$SELECT action FROM tq_heartbeat_many(ARRAY[{id}], ARRAY[{lease}])$$, 'lost', '42501', 'run', '42501', '42501', 'lost', '42501', '42501'),
	('running', $$SELECT action FROM tq_heartbeat({id}, {lease}, progress => '{"p": 1}', checkpoint => '{"c": 1}')$$, 'lost', '42501', 'run', '42501', '42501', 'lost', '42501', '42501'),
	('reported', $$SELECT progress FROM tq_running WHERE id = {id}$$, 'null', 'null', '{"secret": 4}', 'null', '{"secret": 4}', 'null', '{"secret": 4}', 'null'),
	('reported', $$SELECT checkpoint FROM tq_get({id})$$, 'TQ004', 'null', '{"secret": 5}', 'null', '{"secret": 5}', 'TQ004', '{"secret": 5}', 'null'),
	('running', $$SELECT tq_complete({id}, {lease})$$, 'TQ004', '42501', 'succeeded', '42501', '42501', 'TQ004', '42501', '42501'),
	('running', $$SELECT status FROM tq_complete_many(ARRAY[{id}], ARRAY[{lease}])$$, 'not_found', '42501', 'ok', '42501', '42501', 'not_found', '42501', '42501'),
	('running', $$SELECT tq_fail({id}, {lease}, 'x', fatal => true)$$, 'TQ004', '42501', 'dead', '42501', '42501', 'TQ004', '42501', '42501'),
	('running', $$SELECT status FROM tq_fail_many(ARRAY[{id}], ARRAY[{lease}], ARRAY['x'])$$, 'not_found', '42501', 'ok', '42501', '42501', 'not_found', '42501', '42501'),
	('running', $$SELECT tq_release({id}, {lease}, '1 h')$$, 'TQ004', '42501', 'delayed', '42501', '42501', 'TQ004', '42501', '42501'),
	('running', $$SELECT tq_bury({id}, {lease}, 'x')$$, 'TQ004', '42501', 'buried', '42501', '42501', 'TQ004', '42501', '42501'),
	-- for a job that is no longer in memory
	('dead', $$SELECT tq_complete({id}, {lease})$$, 'TQ004', '42501', 'TQ001', '42501', '42501', 'TQ004', '42501', '42501'),
	('dead', $$SELECT status FROM tq_complete_many(ARRAY[{id}], ARRAY[{lease}])$$, 'not_found', '42501', 'lost', '42501', '42501', 'not_found', '42501', '42501'),
	('delayed', $$SELECT tq_cancel({id})$$, 'TQ004', '42501', '42501', 'cancelled', '42501', 'TQ004', '42501', 'cancelled'),
	('delayed', $$SELECT status FROM tq_cancel_jobs(ARRAY[{id}::bigint])$$, 'not_found', '42501', '42501', 'cancelled', '42501', 'not_found', '42501', 'cancelled'),
	(NULL, $$SELECT tq_find({q}, 'none') IS NULL$$, '42501', 'true', 'true', '42501', 'true', '42501', 'true', '42501'),
	(NULL, $$SELECT tq_free_key({q}, 'none')$$, '42501', '42501', '42501', '42501', '42501', '42501', '42501', '42501'),
	('running', $$SELECT tq_cancel({id})$$, 'TQ004', '42501', '42501', 'asked', '42501', 'TQ004', '42501', 'asked'),
	('dead', $$SELECT tq_retry({id})$$, 'TQ004', '42501', '42501', 'ready', '42501', 'TQ004', '42501', 'ready'),
	('delayed', $$SELECT tq_reschedule({id}, priority => 7)$$, 'TQ004', '42501', '42501', 'delayed', '42501', 'TQ004', '42501', 'delayed'),
	('dead', $$SELECT tq_retry_many({q}, kind => 'none')$$, '42501', '42501', '42501', '0', '42501', '42501', '42501', '0'),
	(NULL, $$SELECT tq_purge({q}, 'expired')$$, '42501', '42501', '42501', '0', '42501', '42501', '42501', '0'),
	(NULL, $$SELECT count(*) > 0 FROM tq_changes() WHERE queue = 'mine'$$, 'false', 'false', 'true', 'true', 'true', 'false', 'true', 'true'),
	(NULL, $$SELECT count(*) > 0 FROM tq_changes('now', {q})$$, '42501', '42501', 'true', 'true', 'true', '42501', 'true', 'true'),
	(NULL, $$SELECT count(*) > 0 FROM tq_list({q}, max => 1)$$, '42501', '42501', 'true', 'true', 'true', '42501', 'true', 'true'),
	(NULL, $$SELECT changed FROM tq_cancel_many({q}, kind => 'none')$$, '42501', '42501', '42501', '0', '42501', '42501', '42501', '0'),
	(NULL, $$SELECT changed FROM tq_reschedule_many({q}, kind => 'none', priority => 1)$$, '42501', '42501', '42501', '0', '42501', '42501', '42501', '0'),
	(NULL, $$SELECT changed FROM tq_retry_where({q}, kind => 'none')$$, '42501', '42501', '42501', '0', '42501', '42501', '42501', '0'),
	(NULL, $$SELECT changed FROM tq_purge_many({q}, 'all', 'none')$$, '42501', '42501', '42501', '0', '42501', '42501', '42501', '0'),
	('dead', $$SELECT level || state FROM tq_graph({id})$$, 'TQ004', '0dead', '0dead', '0dead', '0dead', 'TQ004', '0dead', '0dead'),
	('dead', $$SELECT count(*) > 0 FROM tq_dead_groups({q})$$, '42501', '42501', 'true', 'true', 'true', '42501', 'true', 'true'),
	('dead', $$SELECT tq_explain({id}) <> ''$$, 'TQ004', 'true', 'true', 'true', 'true', 'TQ004', 'true', 'true'),
	('dead', $$SELECT (payload, headers, result, error, checkpoint)::text || state FROM tq_get({id})$$,
		'TQ004', '(,,,,)dead', '("{""secret"": 1}","{""h"": 1}",,x,)dead', '(,,,,)dead', '("{""secret"": 1}","{""h"": 1}",,x,)dead', 'TQ004', '("{""secret"": 1}","{""h"": 1}",,x,)dead', '(,,,,)dead'),
	('succeeded', $$SELECT result FROM tq_get({id})$$, 'TQ004', 'null', '{"secret": 2}', 'null', '{"secret": 2}', 'TQ004', '{"secret": 2}', 'null'),
	('succeeded', $$SELECT result FROM tq_outcomes(ARRAY[{id}])$$, 'null', 'null', '{"secret": 2}', 'null', '{"secret": 2}', 'null', '{"secret": 2}', 'null'),
	('dead', $$SELECT (state, error)::text FROM tq_outcomes(ARRAY[{id}])$$, '(,)', '(dead,)', '(dead,x)', '(dead,)', '(dead,x)', '(,)', '(dead,x)', '(dead,)'),
	('dead', $$SELECT string_agg(concat(event, reason, detail), ' ' ORDER BY step) FROM tq_history({id})$$,
		'TQ004', 'enqueued dead', 'enqueued deadx{"secret": 3}', 'enqueued dead', 'enqueued deadx{"secret": 3}', 'TQ004', 'enqueued deadx{"secret": 3}', 'enqueued dead'),
	('dead', $$SELECT (reason, detail)::text FROM tq_dead WHERE id = {id}$$, 'null', 'null', '(x,"{""secret"": 3}")', '(,)', '(x,"{""secret"": 3}")', 'null', '(x,"{""secret"": 3}")', '(,)'),
	('running', $$SELECT state FROM tq_jobs WHERE id = {id}$$, 'null', 'null', 'running', 'running', 'running', 'null', 'running', 'running'),
	('dead', $$SELECT state FROM tq_jobs WHERE id = {id}$$, 'null', 'null', 'dead', 'dead', 'dead', 'null', 'dead', 'dead'),
	('running', $$SELECT queue FROM tq_running WHERE id = {id}$$, 'null', 'null', 'mine', 'mine', 'mine', 'null', 'mine', 'mine'),
	(NULL, $$SELECT string_agg(queue, ' ') FROM tq_stats()$$, 'null', 'null', 'mine', 'mine', 'mine', 'mine', 'mine', 'mine'),
	(NULL, $$SELECT count(*) FROM tq_series({q})$$, '42501', '42501', '1440', '1440', '1440', '1440', '1440', '1440'),
	(NULL, $$SELECT sum(enqueued) > 0 FROM tq_series()$$, 'false', 'false', 'true', 'true', 'true', 'true', 'true', 'true'),
	(NULL, $$SELECT string_agg(DISTINCT m[1], ' ') FROM regexp_matches(tq_metrics(), 'queue="(.*?)"', 'g') m$$, 'null', 'null', 'null', 'null', 'mine', 'mine', 'null', 'null'),
	(NULL, $$SELECT string_agg(queue || settings, ' ') FROM tq_queues$$, 'null', 'null', 'mine{"change_retention": "1 day"}', 'mine{"change_retention": "1 day"}', 'mine{"change_retention": "1 day"}', 'mine{"change_retention": "1 day"}', 'mine{"change_retention": "1 day"}', 'mine{"change_retention": "1 day"}'),
	(NULL, $$SELECT string_agg(queue || role || privilege, ' ' ORDER BY role::text) FROM tq_grants WHERE queue = 'mine'$$, 'null', 'miner_produceproduce',
		'miner_consumeconsume', 'miner_consumeconsume miner_inspectinspect miner_managemanage miner_metricsmetrics miner_monitormonitor miner_operateoperate miner_produceproduce', 'miner_consumeconsume miner_inspectinspect miner_managemanage miner_metricsmetrics miner_monitormonitor miner_operateoperate miner_produceproduce',
		'miner_metricsmetrics', 'miner_consumeconsume miner_inspectinspect miner_managemanage miner_metricsmetrics miner_monitormonitor miner_operateoperate miner_produceproduce', 'miner_operateoperate'),
	(NULL, $$SELECT array_to_string(privileges, ' ') FROM tq_rights WHERE queue = 'mine'$$, 'null', 'produce', 'consume', 'operate manage', 'metrics inspect', 'metrics', 'inspect', 'operate'),
	(NULL, $$SELECT tq_schedule('by ' || current_user, {q}, every => '1000 d')$$, '42501', '', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT tq_schedule('of mine', 'mine', every => '1000 d')$$, '42501', '42501', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT tq_schedule_pause('of mine')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', ''),
	(NULL, $$SELECT tq_schedule_resume('of mine')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', ''),
	(NULL, $$SELECT tq_schedule_run('of mine') > 0$$, '42501', '42501', '42501', 'true', '42501', '42501', '42501', 'true'),
	(NULL, $$SELECT tq_unschedule('for ' || current_user)$$, '42501', '42501', '42501', '', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT (state, payload, options)::text FROM tq_schedules WHERE name = 'of mine'$$, 'null', 'null', 'null', '(active,,)', '(active,"{""secret"": 6}",{})', 'null', '(active,"{""secret"": 6}",{})', '(active,,)'),
	-- says nothing of any queue
	(NULL, $$SELECT abs(extract(epoch FROM tq_now() - clock_timestamp())) < 3600$$, 'true', 'true', 'true', 'true', 'true', 'true', 'true', 'true'),
	(NULL, $$SELECT count(*) FROM tq_schedule_next('@daily', n => 3)$$, '3', '3', '3', '3', '3', '3', '3', '3'),
	(NULL, $$SELECT count(*) > 50 FROM tq_help()$$, 'true', 'true', 'true', 'true', 'true', 'true', 'true', 'true'),
	(NULL, $$SELECT tq_enqueued({q}, 'ready') > 0$$, '42501', '42501', 'true', '42501', 'true', '42501', 'true', '42501'),
	(NULL, $$SELECT tq_alter_queue({q}, '{}')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT tq_pause({q}, 'left')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', ''),
	(NULL, $$SELECT tq_pause({q}, group_key => 'none')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', ''),
	(NULL, $$SELECT tq_resume({q}, group_key => 'none')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', ''),
	(NULL, $$SELECT tq_limit_group({q}, 'none', 1)$$, '42501', '42501', '42501', '', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT groups ->> 'none' FROM tq_queues$$, 'null', 'null', 'null', '{"max_running": 1}', '{"max_running": 1}', 'null', '{"max_running": 1}', '{"max_running": 1}'),
	(NULL, $$SELECT tq_limit_group({q}, 'none')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT tq_resume({q}, 'left')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', ''),
	(NULL, $$SELECT tq_drop_queue({q})$$, '42501', '42501', '42501', 'TQ005', '42501', '42501', '42501', '42501'),
	-- it takes consume as well, which each of these alone is not
	(NULL, $$SELECT tq_handle({q}, 'none', 'handle(tq_job)')$$, '42501', '42501', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT tq_unhandle({q}, 'none')$$, '42501', '42501', '42501', '42704', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT string_agg(queue || kind, ' ') FROM tq_handlers$$, 'null', 'null', 'null', 'minehandled', 'minehandled', 'null', 'minehandled', 'null'),
	-- it takes consume as well
	(NULL, $$SELECT tq_subscribe({q}, 'https://example.org')$$, '42501', '42501', '42501', '42501', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT tq_unsubscribe({q}, 'https://example.org')$$, '42501', '42501', '42501', '42704', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT string_agg(concat(queue, ' ', url, options), ' ') FROM tq_subscriptions$$, 'null', 'null', 'null', 'mine https://mine/{}', 'mine https://mine/', 'null',
		'mine https://mine/', 'null'),
	(NULL, $$SELECT string_agg(DISTINCT queue, ' ') FROM tq_audit$$, 'null', 'null', 'null', 'mine', 'mine', 'null', 'mine', 'null'),
	(NULL, $$SELECT tq_grant({q}, 'r_produce', 'produce')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', '42501'),
	(NULL, $$SELECT tq_revoke({q}, 'r_none', 'produce')$$, '42501', '42501', '42501', '', '42501', '42501', '42501', '42501');

-- Functions that concern all queues require a right on all of them.
CREATE TABLE global_verb (statement text, wanted text, roles text[]);
INSERT INTO global_verb VALUES
	($$SELECT count(*) > 0 FROM tq_health()$$, 'true', '{all_manage,all_monitor,all_metrics,all_operate}'),
	-- with tq.testing
	($$SELECT tq_reset('mine')$$, '', '{}'),
	($$SELECT tq_set_now()$$, '', '{}'),
	($$SELECT count(*) > 0 FROM tq_check()$$, 'true', '{all_manage}'),
	($$SELECT tq_reload()$$, '0', '{all_manage}'),
	($$SELECT count(*) FROM tq_activate()$$, '0', '{all_manage}'),
	($$SELECT tq_drain('nobody')$$, '0', '{all_manage,all_operate}'),
	($$SELECT tq_undrain('nobody') IS NOT NULL$$, 'true', '{all_manage,all_operate}'),
	($$SELECT jobs FROM tq_heartbeat_worker('bound')$$, '1', '{all_manage,all_operate}'),
	($$SELECT tq_release_worker('bound') >= 0$$, 'true', '{all_manage,all_operate}'),
	($$SELECT count(*) >= 0 FROM tq_workers$$, 'true', '{all_consume,all_manage,all_monitor,all_metrics,all_inspect,all_operate}'),
	($$SELECT count(*) FROM tq_grant('*', 'r_none', 'monitor'), tq_revoke('*', 'r_none', 'monitor')$$, '1', '{all_manage}'),
	($$SELECT tq_revoke('*', 'r_none', 'monitor')$$, '', '{all_manage}');

SELECT tq_enqueue('other', '{"secret": 1}', 'bound') \g /dev/null
SELECT id FROM tq_claim('other', kinds => '{bound}', worker => 'bound', lease_for => '1 d', bind_worker => true) \g /dev/null

-- Functions that are not public stay closed.
CREATE TABLE closed (statement text);
INSERT INTO closed VALUES
	('SELECT count(*) FROM tq.help'), ('SELECT count(*) FROM tq.handler'), ('SELECT count(*) FROM tq.requester'), ($$INSERT INTO tq.requester VALUES ('x', 'postgres')$$), ('SELECT count(*) FROM tq.acl'), ('SELECT count(*) FROM tq.audit'), ('DELETE FROM tq.audit'), ($$SELECT nextval('tq.audit_id_seq')$$),
	('SELECT count(*) FROM tq.subscription'), ('SELECT count(*) FROM tq.group_setting'), ('SELECT count(*) FROM tq.creator'), ('DELETE FROM tq.creator'), ('SELECT count(*) FROM tq.subscriptions()'), ('SELECT count(*) FROM tq.queue'), ('SELECT count(*) FROM tq.job'), ('SELECT count(*) FROM tq.job_0'),
	('SELECT count(*) FROM tq.event'), ('SELECT count(*) FROM tq.event_0'), ('SELECT count(*) FROM tq.segment'), ('SELECT count(*) FROM tq.meta'),
	($$INSERT INTO tq.acl VALUES (0, 'r_none'::regrole, 'manage')$$), ('DELETE FROM tq.event_0'), ('TRUNCATE tq.job_0'),
	($$SELECT nextval('tq.job_id_seq')$$), ($$SELECT setval('tq.lease_seq', 1)$$), ($$SELECT nextval('tq.queue_id_seq')$$),
	('SELECT count(*) FROM tq.running()'), ('SELECT count(*) FROM tq.workers()'), ('SELECT count(*) FROM tq.dead()'), ('SELECT count(*) FROM tq.schedules()'), ('SELECT count(*) FROM tq.schedule'),
	('SELECT count(*) FROM tq.schedule_fire'), ('DELETE FROM tq.schedule'), ('SELECT tq.jobs()'),
	('CREATE TABLE tq.t ()'), ('CREATE TABLE t () INHERITS (tq.job)');

CREATE FUNCTION made(state text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	IF state = 'batch' THEN
		RETURN tq_batch_open('mine', '{"secret": 1}', 'batch');
	END IF;
	RETURN tq_enqueue('mine', '{"secret": 1}', kind => state, headers => '{"h": 1}', delay => CASE WHEN state = 'delayed' THEN interval '1 h' END);
END
$$;
CREATE TABLE attempted AS
	SELECT v.n, v.needs, r.role, to_jsonb(v) ->> r.role AS wanted, v.statement, CASE WHEN v.needs IS NOT NULL THEN made(v.needs) END AS id,
		1::bigint AS lease, NULL::text AS answer
	FROM verb v, unnest('{none,produce,consume,manage,monitor,metrics,inspect,operate}'::text[]) r (role);
UPDATE attempted a SET lease = c.lease FROM unnest('{running,reported,dead,succeeded}'::text[]) s, tq_claim('mine', 1000, kinds => ARRAY[s], lease_for => '1 d') c WHERE c.id = a.id;
SELECT count(*) FROM attempted a, LATERAL (SELECT CASE a.needs WHEN 'dead' THEN tq_fail(a.id, a.lease, 'x', '{"secret": 3}', fatal => true)
	WHEN 'succeeded' THEN tq_complete(a.id, a.lease, '{"secret": 2}') END) f WHERE a.needs IN ('dead', 'succeeded') \g /dev/null
SELECT count(*) FROM attempted a, tq_heartbeat(a.id, a.lease, progress => '{"secret": 4}', checkpoint => '{"secret": 5}') WHERE a.needs = 'reported' \g /dev/null
UPDATE attempted SET statement = replace(replace(replace(statement, '{q}', quote_literal('mine')), '{id}', id::text), '{lease}', lease::text)
	WHERE id IS NOT NULL;
UPDATE attempted SET statement = replace(statement, '{q}', quote_literal('mine'));
-- each in a transaction of its own
SELECT format('UPDATE attempted SET answer = attempt(%L, statement) WHERE n = %s AND role = %L', 'r_' || role, n, role)
	FROM attempted ORDER BY n, role \gexec
SELECT is(answer, wanted, role || ': ' || statement) FROM attempted ORDER BY n, role;

SELECT tq_revoke('free', ('r_' || p)::regrole, 'produce') FROM unnest('{none,produce,consume,manage,monitor,metrics,inspect,operate}'::text[]) p;

-- another queue is closed to all of them
SELECT is(attempt('r_' || role, replace(v.statement, '{q}', quote_literal('other'))), '42501', 'r_' || role || ' at another queue: ' || v.statement)
	FROM verb v, unnest('{none,produce,consume,manage,monitor,metrics,inspect,operate}'::text[]) role WHERE statement ~ '\{q\}' ORDER BY n, role;
SELECT tq_enqueue('other', '{"secret": 1}') AS other \gset
SELECT is(attempt('r_' || role, format(statement, :other)), wanted, 'r_' || role || ' at a job of another queue: ' || statement)
	FROM unnest('{none,produce,consume,manage,monitor,metrics,inspect,operate}'::text[]) role, (VALUES ('SELECT tq_cancel(%s)', 'TQ004'), ('SELECT tq_retry(%s)', 'TQ004'),
		('SELECT tq_reschedule(%s, priority => 1)', 'TQ004'), ('SELECT id FROM tq_get(%s)', 'TQ004'), ('SELECT count(*) FROM tq_history(%s)', 'TQ004'),
		('SELECT tq_complete(%s, 1)', 'TQ004'), ('SELECT action FROM tq_heartbeat(%s, 1)', 'lost')) s (statement, wanted);
-- and they cannot tell an existing queue from a missing one
SELECT is(attempt('r_' || role, replace(v.statement, '{q}', quote_literal('no such queue'))), '42501', 'r_' || role || ' at no queue: ' || v.statement)
	FROM verb v, unnest('{none,produce,consume,manage,monitor,metrics,inspect,operate}'::text[]) role WHERE statement ~ '\{q\}' ORDER BY n, role;
CREATE FUNCTION complaint(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	PERFORM set_config('role', who, true);
	EXECUTE statement;
	PERFORM set_config('role', 'none', true);
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN sqlerrm || ': ' || detail;
END
$$;
SELECT is(complaint('r_none', format(statement, 'nowhere')), replace(complaint('r_none', format(statement, 'other')), 'other', 'nowhere'), statement || ': one complaint')
	FROM (VALUES ('SELECT tq_enqueue(%L)'), ('SELECT * FROM tq_claim(%L)'), ('SELECT tq_alter_queue(%L, ''{}'')'), ('SELECT tq_drop_queue(%L)'),
		('SELECT tq_pause(%L)'), ('SELECT tq_retry_many(%L)'), ('SELECT tq_grant(%L, ''r_none'', ''produce'')')) s (statement);
SELECT is(complaint('r_none', 'SELECT tq_cancel(' || :other || ')'), replace(complaint('r_none', 'SELECT tq_cancel(9000000000)'), '9000000000', :'other'),
	'nor a job');

-- ---- all queues

SELECT is(attempt(role, statement), CASE WHEN role = ANY (roles) THEN wanted ELSE '42501' END, role || ': ' || statement)
	FROM global_verb, (SELECT rolname::text AS role FROM pg_roles WHERE rolname ~ '^(r|all)_') r ORDER BY statement, role;
SELECT is(attempt('all_produce', $$SELECT tq_enqueue('other', kind => 'left') > 0$$), 'true', 'produce on all queues');
SELECT is(attempt('all_produce', $$SELECT tq_enqueue('new') > 0$$), '42501', '... is not create');
SELECT is(attempt('all_consume', $$SELECT payload FROM tq_claim('other')$$), '{"secret": 1}', 'consume on all queues');
SELECT is(attempt('all_consume', $$SELECT count(*) FROM tq_claim('new')$$), '0', '... waits for a queue');
SELECT is(attempt('all_manage', $$SELECT tq_alter_queue('other', '{}')$$), '', 'manage on all queues');
SELECT is(attempt('all_manage', $$SELECT tq_alter_queue('nowhere', '{}')$$), 'TQ002', '... may know that there is none of a name');
SELECT is(attempt('all_manage', $$SELECT tq_create_queue('new')$$), '42501', '... is not create');
SELECT is(attempt('all_monitor', $$SELECT string_agg(queue, ' ' ORDER BY queue) FROM tq_queues WHERE queue <> 'free'$$), 'mine other', 'monitor on all queues');
SELECT is(attempt('all_monitor', $$SELECT string_agg(DISTINCT m[1], ' ') FROM regexp_matches(tq_metrics(), 'queue="(.*?)"', 'g') m WHERE m[1] <> 'free'$$), 'mine other', '... its metrics');
SELECT is(attempt('all_metrics', $$SELECT string_agg(queue, ' ' ORDER BY queue) FROM tq_queues WHERE queue <> 'free'$$), 'mine other', 'metrics on all queues');
SELECT is(attempt(role, $$SELECT tq_metrics() ~ '\mtq_scheduler_up 1\M'$$), (role IN ('all_monitor', 'all_metrics'))::text, role || ': metrics of the database')
	FROM (SELECT rolname::text AS role FROM pg_roles WHERE rolname ~ '^(r|all)_') r ORDER BY role;
SELECT is(attempt(role, statement), '42501', role || ': ' || statement)
	FROM closed, (SELECT rolname::text AS role FROM pg_roles WHERE rolname ~ '^(r|all)_') r ORDER BY statement, role;
-- a retry to another queue shows the content of a job
SELECT tq_grant('other', 'r_manage', 'produce');
SELECT is(attempt('r_manage', $$SELECT tq_retry_many('mine', kind => 'none', to_queue => 'other')$$), '42501', 'copies take the right to read');
SELECT tq_grant('mine', 'r_manage', 'monitor');
SELECT is(attempt('r_manage', $$SELECT tq_retry_many('mine', kind => 'none', to_queue => 'other')$$), '0', '... and with it they are made');
SELECT tq_revoke('mine', 'r_manage', 'monitor'), tq_revoke('other', 'r_manage', 'produce');
SELECT is(attempt('r_manage', $$SELECT tq_retry_many('mine', kind => 'none', to_queue => 'other')$$), '42501', '... until it is revoked');

-- ---- completeness: everything that the extension has for users is in one of the tables above

CREATE TABLE open_to_all (name text);
INSERT INTO open_to_all VALUES ('tq_create_queue'), ('inbox_guard'), ('may_list'), ('may_list_groups'), ('rights_on'), ('require_library'), ('role_in'), ('role_out'), ('role_oid'),
	('tq_deactivate'); -- tested below or in test/t/activation.pl, or nothing to protect
SELECT is(string_agg(p.proname, ' ' ORDER BY 1), NULL, 'functions without a test of their rights')
	FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'tq' JOIN pg_proc p ON p.oid = d.objid
	WHERE d.deptype = 'e' AND d.classid = 'pg_proc'::regclass AND p.prorettype <> 'trigger'::regtype
		AND NOT EXISTS (SELECT FROM (SELECT statement FROM verb UNION ALL SELECT statement FROM global_verb UNION ALL SELECT statement FROM closed) s
			WHERE s.statement ~ ('\m' || p.proname || '\M'))
		AND p.proname NOT IN (SELECT name FROM open_to_all);
SELECT is(string_agg(c.relname, ' ' ORDER BY 1), NULL, 'views without a test of their rights')
	FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'tq' JOIN pg_class c ON c.oid = d.objid
	WHERE d.deptype = 'e' AND d.classid = 'pg_class'::regclass AND c.relkind = 'v'
		AND NOT EXISTS (SELECT FROM (SELECT statement FROM verb UNION ALL SELECT statement FROM global_verb) s
			WHERE s.statement ~ ('\m' || c.relname || '\M'));
SELECT is(string_agg(c.oid::regclass::text, ' '), NULL, 'tables and sequences open to somebody')
	FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'tq' JOIN pg_class c ON c.oid = d.objid,
		aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
	WHERE d.deptype = 'e' AND d.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'S') AND a.grantee <> c.relowner;

-- ---- grants

SELECT is(attempt('r_none', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), '42501', 'before the grant');
BEGIN;
SELECT tq_grant('mine', 'r_none', 'produce');
SELECT is(attempt('r_none', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), 'true', 'a grant counts in its own transaction');
SAVEPOINT s;
SELECT tq_revoke('mine', 'r_none', 'produce');
SELECT is(attempt('r_none', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), '42501', '... and so does a revocation');
ROLLBACK TO s;
SELECT is(attempt('r_none', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), 'true', '... until it is rolled back');
ROLLBACK;
SELECT is(attempt('r_none', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), '42501', 'what was rolled back was never granted');
SELECT tq_grant('mine', 'r_none', 'produce'), tq_grant('mine', 'r_none', 'produce');
SELECT is(attempt('r_none', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), 'true', 'twice is once');
SELECT tq_revoke('mine', 'r_none', 'produce'), tq_revoke('mine', 'r_none', 'produce');
SELECT is(attempt('r_none', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), '42501', '... for revocations too');
ALTER TABLE tq.acl DISABLE TRIGGER tq_reload;	-- only tq may write
DELETE FROM tq.acl WHERE role = 'r_produce'::regrole;
SELECT is(attempt('r_produce', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), '42501', 'rows deleted by hand count');
INSERT INTO tq.acl SELECT id, 'r_produce'::regrole, 'produce' FROM tq.queue WHERE name = 'mine';
SELECT is(attempt('r_produce', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), 'true', '... and inserted ones');
ALTER TABLE tq.acl DISABLE TRIGGER tq_reload_row;
SET session_replication_role = replica;
DELETE FROM tq.acl WHERE role = 'r_produce'::regrole;
RESET session_replication_role;
SELECT is(attempt('r_produce', $$SELECT tq_enqueue('mine', kind => 'left') > 0$$), '42501', '... without triggers as well');
SELECT tq_grant('mine', 'r_produce', 'produce');

-- several in one call
SELECT tq_grant('mine', 'r_none', 'produce', 'operate', 'produce');
SELECT is((SELECT string_agg(privilege, ' ' ORDER BY privilege) FROM tq_grants WHERE role = 'r_none'::regrole), 'operate produce', 'a call grants several privileges');
SELECT tq_grant('mine', role => 'r_none', privilege => 'consume', privilege8 => 'metrics');
SELECT tq_revoke('mine', 'r_none', 'operate', NULL, 'produce', 'inspect');
SELECT is((SELECT string_agg(privilege, ' ' ORDER BY privilege) FROM tq_grants WHERE role = 'r_none'::regrole), 'consume metrics', '... and revokes several, and those by name work');
SELECT tq_revoke('mine', 'r_none', 'produce', 'consume', 'operate', 'manage', 'metrics', 'inspect', 'monitor');
SELECT is((SELECT count(*)::int FROM tq_grants WHERE role = 'r_none'::regrole), 0, '... or all of a queue');
SELECT throws_ok($$SELECT tq_grant('mine', 'r_none', 'produce', 'all')$$, '22023', 'unknown privilege "all"', 'each privilege is checked');
SELECT throws_ok($$SELECT tq_grant('mine', 'r_none', 'produce', 'create')$$, '22023', 'privilege "create" can only be granted or revoked on all queues', '... also whether it is for a queue');
SELECT throws_ok($$SELECT tq_revoke('mine', 'r_none', 'produce', privilege3 => repeat('x', 64))$$, '22023', 'privilege3 is too long', '... and its size');
-- monitor is metrics and inspect, manage includes operate
SELECT tq_grant('mine', 'r_none', 'metrics', 'inspect');
SELECT is(attempt('r_none', statement), attempt('r_monitor', statement), 'metrics and inspect: ' || statement)
	FROM verb WHERE needs IS NULL AND statement !~ 'tq_grants|tq_schedule|current_user' AND statement !~ '\{';
SELECT tq_revoke('mine', 'r_none', 'metrics', 'inspect');

SELECT throws_ok($$SELECT tq_grant('mine', 'r_none', 'all')$$, '22023', 'unknown privilege "all"');
SELECT throws_ok($$SELECT tq_grant('mine', 'r_none', '')$$, '22023', 'unknown privilege ""');
SELECT throws_ok($$SELECT tq_grant('mine', 'r_none', 'create')$$, '22023', 'privilege "create" can only be granted or revoked on all queues');
SELECT throws_ok($$SELECT tq_grant('mine', 'r_nobody', 'produce')$$, '42704', 'role "r_nobody" does not exist');
SELECT throws_ok($$SELECT tq_grant('mine', '12345678', 'produce')$$, '42704', 'role 12345678 does not exist');
SELECT throws_ok($$SELECT tq_grant('mine', '-', 'produce')$$, '42704', 'role 0 does not exist');
SELECT throws_ok($$SELECT tq_grant(NULL, 'r_none', 'produce')$$, '22004', 'queue must not be null');
SELECT throws_ok($$SELECT tq_grant('mine', NULL, 'produce')$$, '22004', 'role must not be null');
SELECT throws_ok($$SELECT tq_grant('mine', 'r_none', NULL)$$, '22004', 'privilege must not be null');
SELECT throws_ok($$SELECT tq_grant('', 'r_none', 'produce')$$, '22023', 'queue must not be empty');
SELECT throws_ok($$SELECT tq_grant(repeat('x', 64), 'r_none', 'produce')$$, '22023', 'queue is too long');
SELECT throws_ok($$SELECT tq_grant('nowhere', 'r_none', 'produce')$$, 'TQ002', 'queue "nowhere" does not exist');
SELECT throws_ok($$SELECT tq_revoke('nowhere', 'r_none', 'produce')$$, 'TQ002', 'queue "nowhere" does not exist');
SELECT throws_ok($$SELECT tq_enqueue('*')$$, '22023', 'a queue cannot be called "*"');
SELECT throws_ok($$SELECT tq_create_queue('*')$$, '22023', 'a queue cannot be called "*"');
BEGIN TRANSACTION READ ONLY;
SELECT throws_ok($$SELECT tq_grant('mine', 'r_none', 'produce')$$, '25006', NULL, 'tq_grant is refused in a read-only transaction');
SELECT throws_ok($$SELECT tq_revoke('mine', 'r_none', 'produce')$$, '25006', NULL, 'tq_revoke is refused in a read-only transaction');
COMMIT;
SELECT is((SELECT count(*)::int FROM tq.acl), 15, 'nothing wrong has left a trace');

-- ---- roles

CREATE ROLE r_member IN ROLE r_consume;
CREATE ROLE r_noinherit NOINHERIT IN ROLE r_consume;
SELECT is(attempt('r_member', $$SELECT count(*) FROM tq_claim('mine', kinds => ARRAY['none'])$$), '0', 'a member may what its role may');
SELECT is(attempt('r_noinherit', $$SELECT count(*) FROM tq_claim('mine', kinds => ARRAY['none'])$$), '42501', 'not one that does not inherit');
REVOKE r_consume FROM r_member;
SELECT is(attempt('r_member', $$SELECT count(*) FROM tq_claim('mine', kinds => ARRAY['none'])$$), '42501', 'nor one that was');
GRANT r_consume TO r_member;
SELECT is(attempt('r_member', $$SELECT count(*) FROM tq_claim('mine', kinds => ARRAY['none'])$$), '0', '... and is again');
ALTER ROLE r_none SUPERUSER;
SELECT is(attempt('r_none', $$SELECT count(*) FROM tq_claim('other', kinds => ARRAY['none'])$$), '0', 'a superuser may everything');
ALTER ROLE r_none NOSUPERUSER;
SELECT is(attempt('r_none', $$SELECT count(*) FROM tq_claim('other', kinds => ARRAY['none'])$$), '42501', '... as long as it is one');
-- the function's owner counts, as everywhere
CREATE FUNCTION through(q text) RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = public AS $$SELECT tq_enqueue(q, kind => 'left') > 0$$;
ALTER FUNCTION through(text) OWNER TO r_produce;
SELECT is(attempt('r_none', $$SELECT through('mine')$$), 'true', 'through a SECURITY DEFINER function');
SELECT is(attempt('r_none', $$SELECT through('other')$$), '42501', '... as far as its owner goes');
-- a condition of the query sees no rows that the view excludes
CREATE TABLE peeked (what text);
GRANT INSERT ON peeked TO PUBLIC;
CREATE FUNCTION peek(what text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$BEGIN INSERT INTO peeked VALUES (what); RETURN true; END$$;
SELECT attempt('r_monitor', $$SELECT count(*) FROM tq_queues WHERE peek(settings::text || created_at)$$),
	attempt('r_monitor', $$SELECT count(*) FROM tq_grants WHERE peek(queue)$$) \g /dev/null
SELECT is((SELECT array_agg(DISTINCT what) FROM peeked), (SELECT ARRAY['mine', settings::text || created_at] FROM tq_queues WHERE queue = 'mine'), 'views leak nothing');

CREATE ROLE r_gone;
SELECT tq_grant('mine', 'r_gone', 'produce');
SELECT is((SELECT count(*)::int FROM tq_grants WHERE role = 'r_gone'::regrole), 1, 'a role with a right');
DROP ROLE r_gone;
SELECT is((SELECT count(*)::int FROM tq_grants), 15, '... can be dropped, and its rights with it');

-- ---- new queues

SELECT is(attempt('all_create', $$SELECT tq_create_queue('made')$$), '', 'create makes queues');
SELECT is(attempt('all_create', $$SELECT tq_create_queue('mine')$$), '42710', 'not twice');
SELECT is(attempt('all_create', $$SELECT tq_enqueue('mine')$$), '42501', '... and is no right on others');
SELECT is((SELECT string_agg(privilege, ' ' ORDER BY privilege) FROM tq_grants WHERE queue = 'made' AND role = 'all_create'::regrole),
	'consume manage monitor produce', 'the creator has all rights on it');
SELECT is(attempt('all_create', $$SELECT tq_grant('made', 'r_none', 'produce')$$), '', '... and can give them');
SELECT is(attempt('r_none', $$SELECT tq_enqueue('made') > 0$$), 'true', '... to somebody');
SELECT is(attempt('r_consume', $$SELECT count(*) FROM tq_claim('made')$$), '42501', '... and nobody else has any');
SELECT is(attempt('all_create', $$SELECT tq_enqueue('made by use') > 0$$), 'true', 'a queue is made by enqueueing');
SELECT is(attempt('all_create', $$SELECT tq_enqueue('made by use') > 0$$), 'true', '... and is its maker''s');
SELECT is(attempt('r_none', $$SELECT tq_enqueue('made by use') > 0$$), '42501', '... alone');
SELECT is(attempt('all_create', $$SELECT count(*) FROM tq_claim('made by claim')$$), '0', '... and not by claiming');
SELECT is(attempt('all_create', $$SELECT tq_enqueue('made by claim') > 0$$), 'true', '... but afterwards');
SELECT is(attempt('all_create', $$SELECT count(tq_enqueue('made in one', kind => i::text)) FROM generate_series(1, 3) i$$), '3', 'several in one statement');
SELECT is((SELECT count(*)::int FROM tq_grants WHERE role = 'all_create'::regrole), 17, 'four rights for each of four queues, and create');
BEGIN;
SELECT is(attempt('all_create', $$SELECT tq_create_queue('rolled back')$$), '', 'made');
SELECT is(attempt('all_create', $$SELECT tq_enqueue('rolled back') > 0$$), 'true', '... and used at once');
ROLLBACK;
SELECT is((SELECT count(*)::int FROM tq.acl a WHERE queue_id <> 0 AND NOT EXISTS (SELECT FROM tq.queue q WHERE q.id = a.queue_id)), 0, '... and undone with its rights');
BEGIN;
SELECT is(attempt('all_create', $$SELECT tq_enqueue('half done') > 0$$), 'true', 'made by use');
ROLLBACK;
SELECT is(attempt('all_create', $$SELECT tq_enqueue('half done') > 0$$), 'true', '... stays, and is its maker''s even if the use was rolled back');
SET tq.auto_create_queues = off;
SELECT is(attempt('all_create', $$SELECT tq_enqueue('not made')$$), 'TQ002', 'unless queues are not made by use');
SELECT is(attempt('all_produce', $$SELECT tq_enqueue('not made')$$), '42501', '... which others are not told');
RESET tq.auto_create_queues;
SELECT is(attempt('postgres', $$SELECT tq_create_queue('the owner''s')$$), '', 'what the owner makes');
SELECT is((SELECT count(*)::int FROM tq_grants WHERE queue = 'the owner''s'), 0, '... needs no grants');

-- a retention longer than the server's keeps the jobs of all queues
SELECT is(attempt('all_create', $$SELECT tq_create_queue('kept', '{"retention": "361 min"}')$$), '42501', 'the maker of a queue does not keep the jobs of all others');
SELECT is(attempt('all_create', $$SELECT tq_create_queue('kept', '{"dead_retention": "8 days"}')$$), '42501', '... nor the dead ones');
SELECT is(attempt('all_create', $$SELECT tq_create_queue('kept', '{"retention": "6 h", "dead_retention": "7 days"}')$$), '', '... but as long as the server says');
SELECT is(attempt('all_create', $$SELECT tq_alter_queue('kept', '{"retention": "3652 days"}')$$), '42501', '... nor later');
SELECT is(attempt('all_create', $$SELECT tq_alter_queue('kept', '{"dead_retention": "169 h"}')$$), '42501', '... nor the dead ones');
SELECT is(attempt('all_manage', $$SELECT tq_alter_queue('kept', '{"retention": "9 h", "dead_retention": "9 days"}')$$), '', 'a role that manages all queues may do so');
SELECT is(attempt('all_create', $$SELECT tq_alter_queue('kept', '{"priority": 5, "retention": "9 h"}')$$), '', '... and the queue may keep that');
SELECT is(attempt('all_create', $$SELECT tq_alter_queue('kept', '{"retention": "541 min"}')$$), '42501', '... not more');
SELECT is(attempt('all_create', $$SELECT tq_alter_queue('kept', '{"retention": "10 days"}')$$), '42501', '... not more than its dead ones either');
SELECT is(attempt('all_create', $$SELECT tq_alter_queue('kept', '{"retention": null}')$$), '', '... or less');
SELECT is(attempt('all_create', $$SELECT tq_alter_queue('kept', '{"retention": "8 h"}')$$), '42501', '... which it cannot take back');
SELECT is((SELECT settings - 'priority' FROM tq.queue WHERE name = 'kept'), '{"dead_retention": "9 days"}', 'what was refused changes nothing');
SELECT is(attempt('postgres', $$SELECT tq_drop_queue('kept')$$), '', 'the queue goes');

-- a dropped queue loses its grants
SELECT tq_grant('the owner''s', 'r_none', 'produce');
SELECT id AS old FROM tq.queue WHERE name = 'the owner''s' \gset
SELECT tq_drop_queue('the owner''s');
SELECT tq_create_queue('the owner''s');
SELECT is((SELECT count(*)::int FROM tq.acl WHERE queue_id = :old), 0, 'the rights went with the queue');
SELECT is(attempt('r_none', $$SELECT tq_enqueue('the owner''s')$$), '42501', '... and did not come back with its name');

-- after a change of roles, a session reads only the grants that it needs
INSERT INTO tq.acl SELECT 1000000 + g, 'all_monitor', 'monitor' FROM generate_series(1, 20000) g;
ANALYZE tq.acl;
CREATE FUNCTION rows_read() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))::bigint FROM pg_class WHERE relname IN ('acl', 'acl_pkey')
$$;
CREATE FUNCTION read_of_acl(statement text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	before bigint := rows_read();
BEGIN
	PERFORM attempt('r_produce', statement);
	RETURN rows_read() - before;
END
$$;
ALTER ROLE r_none CONNECTION LIMIT 5;
SELECT cmp_ok(read_of_acl($$SELECT tq_enqueue('mine')$$), '<', 1000::bigint, 'a verb reads the grants of its queue');
SELECT cmp_ok(read_of_acl($$SELECT count(*) FROM tq_stats()$$), '>', 20000::bigint, '... a view those of all queues');
SELECT is(attempt('r_produce', $$SELECT tq_enqueue('mine') IS NOT NULL$$), 'true', '... which verbs know then');
ALTER ROLE r_none CONNECTION LIMIT 6;
SELECT is(attempt('r_produce', $$SELECT tq_pause('mine')$$), '42501', '... and a right that is missing is found to be missing');
SELECT tq_grant('mine', 'r_produce', 'manage');
SELECT isnt(attempt('r_produce', $$SELECT tq_pause('mine')$$), '42501', '... until it is granted');
SELECT tq_revoke('mine', 'r_produce', 'manage');
SELECT is(attempt('r_produce', $$SELECT tq_pause('mine')$$), '42501', '... or revoked');
DELETE FROM tq.acl WHERE queue_id > 1000000;

SELECT * FROM finish();
DROP OWNED BY r_produce CASCADE;
SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE rolname ~ '^(r|all)_' \gexec
