-- Rows in tq's tables that tq would not write: they affect no other job.
SET client_min_messages = error;

SELECT * FROM no_plan();

SELECT tq_create_queue(name) FROM unnest('{q,other}'::text[]) name;
CREATE FUNCTION queue_id(wanted text) RETURNS int LANGUAGE sql AS 'SELECT id FROM tq.queue WHERE name = wanted';
SELECT tq_schedule('s', 'q', every => '1 day');
SELECT tq_schedule_pause('s');

-- ---- while the database is active, only tq writes its tables

CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'done';
EXCEPTION WHEN others THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN sqlstate || ': ' || sqlerrm || coalesce('. ' || hint, '');
END
$$;
CREATE VIEW written AS SELECT c.oid, relname FROM pg_class c WHERE relnamespace = 'tq'::regnamespace AND relkind = 'r' AND relname <> 'help';
CREATE VIEW writes AS
	SELECT relname, format(statement, relname, attname) AS statement
	FROM written JOIN pg_attribute ON attrelid = oid AND attnum = 1,
		unnest(ARRAY['INSERT INTO tq.%1$I SELECT * FROM tq.%1$I LIMIT 0', 'UPDATE tq.%1$I SET %2$I = %2$I', 'DELETE FROM tq.%1$I', 'TRUNCATE tq.%1$I',
			'COPY tq.%1$I FROM ''/dev/null''']) statement
	WHERE relname NOT IN ('job', 'event') OR statement !~ '^(INSERT|COPY)';	-- the parents have no rows
SELECT cmp_ok(count(*), '>', 100::bigint, 'there are tables and ways of writing them') FROM writes;
SELECT is_empty($$SELECT * FROM (SELECT statement, outcome(statement) AS outcome FROM writes OFFSET 0) w WHERE outcome <> '55000: tq is active in this database. '
	'Call SELECT tq_deactivate() first, and SELECT tq_activate() afterwards.'$$, 'each of them is refused');
SELECT is_empty($$SELECT relname FROM written w WHERE relname NOT IN ('job', 'event') AND (SELECT string_agg(tgname || tgenabled::text, ' ' ORDER BY tgname)
	FROM pg_trigger WHERE tgrelid = w.oid AND tgname ~ '^tq_reload') IS DISTINCT FROM 'tq_reloadA tq_reload_rowR'$$, 'rows that replication applies as well');

-- what tq itself writes passes, also where the triggers on rows fire, and within triggers of others
CREATE ROLE by_hand;
CREATE FUNCTION handled(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE TABLE call (statement text);
CREATE FUNCTION run() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN EXECUTE new.statement; RETURN NULL; END$$;
CREATE TRIGGER run AFTER INSERT ON call FOR EACH ROW EXECUTE FUNCTION run();
ALTER TABLE call ENABLE ALWAYS TRIGGER run;
SET session_replication_role = replica;
SELECT format('SELECT lives_ok(%1$L, %1$L)', statement) FROM unnest(ARRAY[
	$$SELECT tq_create_queue('calls', '{"follow_up": {"queue": "other"}, "change_retention": "1 h"}')$$, $$SELECT tq_alter_queue('calls', '{"priority": 7}')$$,
	$$SELECT tq_enqueue('calls', kind => 'k')$$, $$SELECT tq_pause('calls', 'k'), tq_resume('calls', 'k')$$, $$SELECT tq_pause('calls', group_key => 'g'), tq_resume('calls', group_key => 'g')$$,
	$$SELECT tq_limit_group('calls', 'g', 2)$$, $$SELECT tq_grant('calls', 'by_hand', 'produce'), tq_revoke('calls', 'by_hand', 'produce')$$,
	$$SELECT tq_schedule('calls', 'calls', every => '1 day')$$, $$SELECT tq_schedule_run('calls')$$, $$SELECT tq_schedule_pause('calls'), tq_schedule_resume('calls')$$,
	$$SELECT tq_unschedule('calls')$$, $$SELECT tq_handle('calls', 'k', 'handled(tq_job)'), tq_unhandle('calls', 'k')$$,
	$$SELECT tq_subscribe('calls', 'https://example.org'), tq_unsubscribe('calls', 'https://example.org')$$,
	$$SELECT tq_enqueue('calls', unique_key => 'u')$$, $$SELECT tq_enqueue('calls', unique_key => 'u', unique_mode => 'replace')$$,
	$$SELECT tq_enqueue('calls', depends_on => ARRAY[tq_enqueue('calls')])$$, $$SELECT tq_batch_close(tq_batch_open('calls'))$$,
	$$SELECT tq_complete(id, lease) FROM tq_claim('calls', 10)$$, $$SELECT tq_free_key('calls', 'u')$$, $$SELECT tq_create_queue('empty')$$, $$SELECT tq_drop_queue('empty')$$,
	$$INSERT INTO call VALUES ('SELECT tq_grant(''q'', ''by_hand'', ''produce''), tq_enqueue(''other'', unique_key => ''u'')')$$]) statement \gexec
SELECT tq_revoke('q', 'by_hand', 'produce');
RESET session_replication_role;
SELECT tq_purge('other', 'ready');

-- ... but not what a trigger on its tables writes
BEGIN;
CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN DELETE FROM tq.acl; RETURN NULL; END$$;
CREATE TRIGGER more AFTER UPDATE ON tq.queue FOR EACH ROW EXECUTE FUNCTION more();
SELECT throws_like($$SELECT tq_alter_queue('q', '{"priority": 7}')$$, 'tq is active%', 'a trigger on a table of tq may write none');
ROLLBACK;

SELECT tq_deactivate();
BEGIN;
SELECT is_empty($$SELECT * FROM (SELECT statement, outcome(statement) AS outcome FROM writes OFFSET 0) w WHERE outcome <> 'done'$$,
	'in an inactive database all of them can be written');
ROLLBACK;
SELECT is(outcome($$INSERT INTO tq.meta SELECT system_identifier, d.oid, now(), e.oid FROM pg_control_system(), pg_database d, pg_extension e
	WHERE datname = current_database() AND extname = 'tq'$$), '55000: a row of tq.meta names this database. '
	'Leave the row out. When all rows are restored, call SELECT tq_activate().', 'except that no row makes it active');

-- triggers that were disabled are not missing
CREATE FUNCTION modes() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(concat_ws(' ', tgrelid::regclass, tgname, tgenabled), ', ' ORDER BY tgrelid::regclass::text, tgname) FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM written)
$$;
SELECT modes() AS modes \gset
DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT relname FROM written LOOP
		EXECUTE format('ALTER TABLE tq.%I DISABLE TRIGGER ALL', name);
	END LOOP;
END
$$;
ALTER TABLE tq.acl ENABLE REPLICA TRIGGER tq_changed;
ALTER TABLE tq.event_0 ENABLE ALWAYS TRIGGER tq_reload_row;
SELECT is_empty('SELECT * FROM tq_activate()', 'a database with disabled triggers is activated');
SELECT is(modes(), :'modes', 'they are enabled as they were');
SELECT tq_deactivate();

-- a job that cannot be made whole, after the greatest step
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) VALUES (9001, now(), -1, 0, '{}');
INSERT INTO tq.event_0 (job_id, at, step, type) VALUES (9001, now(), 2147483647, 'f');
SELECT results_eq('SELECT * FROM tq_activate(discard => true)', $$VALUES ('job_0', 9001::bigint, 'its queue is missing')$$, 'discard returns it');
SELECT results_eq('SELECT type::text, reason FROM tq.event WHERE job_id = 9001', $$VALUES ('x', 'its queue is missing')$$, '... and ends it');
SELECT tq_deactivate();

-- ---- nonsense


-- a time outside the calendar, a worker's name longer than allowed, a lease number out of range
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload, weight)
	VALUES (9011, 'infinity', queue_id('q'), 0, '{}', 1), (9012, now(), queue_id('q'), 0, '{}', 1), (9013, now(), queue_id('q'), 0, '{}', 'NaN');
INSERT INTO tq.event_0 (job_id, at, step, type, worker, lease, lease_until) VALUES (9011, 'infinity', 1, 'd', NULL, NULL, NULL),
	(9012, now(), 1, 'd', 'a' || repeat('é', 40), NULL, NULL), (9013, now(), 1, 'c', NULL, 9223372036854775807, 'infinity');
-- names and settings
INSERT INTO tq.queue (id, name) VALUES (901, repeat('x', 64)), (902, ''), (903, E'a\nb');
INSERT INTO tq.queue (id, name, paused_kinds) VALUES (904, 'times', '{"k": "never", "l": null}'), (905, 'kinds', '{"": null, "l": null, "m": {}}'),
	(906, 'array', '[1]');
INSERT INTO tq.queue (id, name, settings) VALUES (907, 'scalar', '7'), (908, 'list', '["follow_up"]'), (909, 'null', 'null'),
	(910, 'follow', '{"follow_up": "by"}'), (911, 'follow list', '{"follow_up": ["by"]}'), (912, 'follow by', '{"follow_up": {"by": 7, "queue": "q"}}');
-- numbers that overflow
INSERT INTO tq.schedule_fire (schedule, fire_at, at, missed, outcome)
	VALUES ('s', '2001-01-01', now(), 9223372036854775807, 'missed'), ('s', '2001-01-02', now(), 9223372036854775807, 'missed');

SELECT is_empty('SELECT * FROM tq_activate()', 'nonsense is no obstacle');
SELECT results_eq('SELECT id, enqueued_at, died_at, kept_until FROM tq_dead WHERE id = 9011',
	'SELECT 9011::bigint, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz', 'tq_dead shows no time that there is not');
SELECT is((SELECT finished_at FROM tq_get(9011)), NULL, 'nor does tq_get');
SELECT matches(tq_explain(9012), 'worker "aé{31}"', 'a name that is too long is cut between two characters');
SELECT bag_eq('SELECT queue FROM tq_stats() WHERE queue !~ ''^(q|other|calls|empty|scalar|list|null|follow.*)$''', $$VALUES ('times'), ('kinds'), ('array')$$,
	'what cannot be a name is none');
SELECT tq_enqueue(q, kind => 'l') FROM unnest('{times,kinds}'::text[]) q;
SELECT is((SELECT kind FROM tq_claim('kinds')), NULL, 'the rest of what pauses kinds counts');
SELECT is((SELECT kind FROM tq_claim('times')), 'l', 'where a time is none, nothing does');
SELECT results_eq($$SELECT queue::text, settings FROM tq_queues WHERE queue IN ('scalar', 'list', 'null', 'follow', 'follow list', 'follow by') ORDER BY 1$$,
	$$VALUES ('follow', '{"follow_up": "by"}'::jsonb), ('follow by', '{"follow_up": {"queue": "q"}}'), ('follow list', '{"follow_up": ["by"]}'),
		('list', '["follow_up"]'), ('null', 'null'), ('scalar', '7')$$, 'tq_queues shows settings of any shape');
SELECT cmp_ok((SELECT missed FROM tq_schedules), '>', 0::bigint, 'a sum of what was missed that is no bigint');
SELECT is((SELECT lease FROM tq_running WHERE id = 9013), 9223372036854775807, 'a lease number out of range is the lease of its job');
SELECT tq_enqueue('other');
SELECT is((SELECT lease BETWEEN 1 AND 9007199254740991 FROM tq_claim('other')), true, 'and those of others go on as they were');

-- roles: each text is kept, and only the name of a role is one
CREATE ROLE "7"; CREATE ROLE "a "".b"; CREATE ROLE "ABC";
SELECT results_eq($$SELECT t, t::tq.role::text, coalesce(r.rolname, '') FROM unnest(ARRAY['7', '"7"', 'abc', '"ABC"', 'ABC', '"a "".b"', 'a.b', '"', '', '-', '10'])
		WITH ORDINALITY u (t, i) LEFT JOIN pg_roles r ON r.oid = t::tq.role::oid ORDER BY i$$,
	$$VALUES ('7', '7', ''::name), ('"7"', '"7"', '7'), ('abc', 'abc', ''), ('"ABC"', '"ABC"', 'ABC'), ('ABC', 'ABC', ''), ('"a "".b"', '"a "".b"', 'a ".b'),
		('a.b', 'a.b', ''), ('"', '"', ''), ('', '', ''), ('-', '-', ''), ('10', '10', '')$$, 'texts of roles');
DROP ROLE "7", "a "".b", "ABC";
SELECT throws_ok($$SELECT repeat('x', 129)::tq.role$$, '42622', NULL, 'a text that is too long for a role');
SELECT throws_ok($$SELECT count(*) FROM tq.acl WHERE role = 'nobody'$$, NULL, NULL, 'a role is not compared with a text');

-- the greatest id
SELECT tq_enqueue('other');
SELECT tq_deactivate();
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) VALUES (9007199254740991, now(), queue_id('q'), 0, '{}');
SELECT FROM tq_activate();
SELECT throws_ok($$SELECT tq_enqueue('q')$$, '2200H', 'no job ids are left', 'there is none above the last id');
SELECT isnt((SELECT id FROM tq_claim('other')), NULL, 'jobs that are there are claimed');

SELECT * FROM finish();
