-- The owner of the extension alters its types, tables and views. Then functions raise an error or continue. No server
-- process crashes, and there is no internal error (class XX). When the change is undone, everything works as before.
SET client_min_messages = error;

SELECT * FROM no_plan();
SELECT pg_backend_pid() AS backend \gset
SELECT setting AS started FROM (SELECT pg_postmaster_start_time()::text AS setting) s \gset

-- ---- one object of each kind

CREATE ROLE a_user LOGIN;
SELECT tq_create_queue('a'), tq_create_queue('b'), tq_create_queue('c', '{"follow_up": {"queue": "b"}, "notify": true}');
SELECT tq_grant(q, 'a_user', p) FROM unnest('{a,b,c}'::text[]) q, unnest('{produce,consume,manage,monitor}'::text[]) p;
SELECT tq_grant('*', 'a_user', p) FROM unnest('{manage,monitor,create}'::text[]) p;
CREATE TABLE thing (name text PRIMARY KEY, id bigint, lease bigint);
INSERT INTO thing SELECT 'ready', tq_enqueue('a', '{"n": 1}', 'ready', unique_key => 'u', headers => '{}', options => '{"tags": ["t"], "unique_for": "1 day"}');
INSERT INTO thing SELECT 'delayed', tq_enqueue('a', kind => 'delayed', delay => '1 day', expires_at => now() + interval '2 days', group_key => 'g', retry => '{"delay": "1 s"}');
INSERT INTO thing SELECT 'running', tq_enqueue('a', kind => 'running');
INSERT INTO thing SELECT 'dead', tq_enqueue('a', kind => 'dead');
INSERT INTO thing SELECT 'done', tq_enqueue('a', kind => 'done');
INSERT INTO thing SELECT 'followed', tq_enqueue('c', kind => 'followed');
INSERT INTO thing SELECT 'blocked', tq_enqueue('a', kind => 'blocked', depends_on => ARRAY[id], options => '{"follow_up": {"queue": "b"}}') FROM thing WHERE name = 'delayed';
INSERT INTO thing SELECT 'batch', tq_batch_open('a', kind => 'batch');
INSERT INTO thing SELECT 'member', tq_enqueue('a', kind => 'member', options => jsonb_build_object('batch', id)) FROM thing WHERE name = 'batch';
INSERT INTO thing SELECT 'closed', tq_batch_open('a', kind => 'batch');
SELECT tq_enqueue('a', kind => 'member', options => jsonb_build_object('batch', id)), tq_batch_close(id) FROM thing WHERE name = 'closed' \g /dev/null
UPDATE thing t SET lease = c.lease FROM unnest('{running,dead,done,followed}'::text[]) k,
	tq_claim_any('{a,c}', kinds => ARRAY[k], lease_for => '40 days') c WHERE t.id = c.id;
SELECT tq_heartbeat(id, lease, progress => '{"p": 1}', checkpoint => '{"c": 1}') FROM thing WHERE name = 'running' \g /dev/null
SELECT tq_fail(id, lease, 'x', '{"d": 1}', fatal => true) FROM thing WHERE name = 'dead' \g /dev/null
SELECT tq_complete(id, lease, '{"r": 1}') FROM thing WHERE name = 'done' \g /dev/null
CREATE FUNCTION handle(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT tq_handle('c', 'handled', 'handle(tq_job)');
SET ROLE a_user;
SELECT tq_schedule('s', 'a', kind => 'scheduled', every => '1000 d');
RESET ROLE;
SELECT tq_schedule_run('s') \g /dev/null

-- Every function and view that reads or writes a table, or returns rows. {x} is the id of the thing x, {x lease} its lease.
CREATE TABLE call (n int GENERATED ALWAYS AS IDENTITY, statement text, before text);
INSERT INTO call (statement) VALUES
	($$SELECT tq_enqueue('a', '{"n": 2}', kind => 'more', headers => '{}', retry => '{"delay": "1 s"}') > 0$$),
	($$SELECT tq_enqueue('a', kind => 'more', unique_key => 'u', unique_mode => 'ignore') IS NULL$$),
	($$SELECT tq_enqueue('a', kind => 'more', unique_key => 'u', unique_mode => 'replace') > 0$$),
	($$SELECT cardinality(tq_enqueue_many('a', '{"{}","{}"}', 'more', unique_keys => '{v,w}', group_keys => '{g,h}'))$$),
	($$SELECT tq_enqueue('a', kind => 'more', depends_on => ARRAY[{delayed}, {dead}]) > 0$$),
	($$SELECT tq_enqueue('a', kind => 'more', options => '{"batch": {batch}}') > 0$$),
	($$INSERT INTO tq_inbox (queue, kind) VALUES ('a', 'more')$$),
	($$SELECT tq_batch_open('a', kind => 'batch') > 0$$),
	($$SELECT tq_batch_close({batch})$$),
	($$SELECT to_jsonb(b) FROM tq_batch({batch}) b$$),
	($$SELECT to_jsonb(b) FROM tq_batch({closed}) b$$),
	($$SELECT count(c.payload) >= 0 FROM tq_claim('b') c$$),
	($$SELECT count(*) >= 0 FROM (SELECT (tq_claim('b')).queue) c$$),
	($$SELECT count(*) >= 0 FROM (SELECT tq_claim_any('{b,c}', 5)) c$$),
	($$SELECT count(c::text) >= 0 FROM tq_claim_any('{b,c}', 5) c$$),
	($$CALL tq_wait('{b}', '0')$$),
	($$SELECT count(*) >= 0 FROM tq_ready()$$),
	($$SELECT count(*) >= 0 FROM tq_changes()$$),
	($$SELECT count((c.job).payload) >= 0 FROM tq_claim_for('{b,c}', '{v,w}') c$$),
	($$SELECT count(c.payload) >= 0 FROM tq_claim_next('b', '{}', '{}') c$$),
	($$CALL tq_wait_jobs(ARRAY[{running}], '0')$$),
	($$SELECT tq_ended(ARRAY[{running}, {dead}])$$),
	($$SELECT (tq_outcomes(ARRAY[{running}, {dead}])).state$$),
	($$SELECT action FROM tq_heartbeat({running}, {running lease}, progress => '{"p": 2}')$$),
	($$SELECT action FROM tq_heartbeat({running}, {running lease}, checkpoint => '{"c": 2}')$$),
	($$SELECT (tq_heartbeat_many(ARRAY[{running}], ARRAY[{running lease}])).action$$),
	($$SELECT tq_complete({running}, {running lease}, '{"r": 2}')$$),
	($$SELECT status FROM tq_complete_many(ARRAY[{running}, {dead}], ARRAY[{running lease}, 1]) ORDER BY 1$$),
	($$SELECT tq_fail({running}, {running lease}, 'y', '{"d": 2}')$$),
	($$SELECT status FROM tq_fail_many(ARRAY[{running}], ARRAY[{running lease}], '{y}')$$),
	($$SELECT tq_release({running}, {running lease})$$),
	($$SELECT tq_bury({running}, {running lease}, 'y')$$),
	($$SELECT tq_complete({followed}, {followed lease}, '{"r": 2}')$$),
	($$SELECT tq_cancel({delayed})$$),
	($$SELECT tq_cancel({blocked})$$),
	($$SELECT tq_retry({dead})$$),
	($$SELECT tq_reschedule({delayed}, priority => 7)$$),
	($$SELECT tq_retry_many('a', kind => 'dead')$$),
	($$SELECT tq_retry_many('a', kind => 'dead', to_queue => 'b')$$),
	($$SELECT tq_purge('a', 'dead')$$),
	($$SELECT to_jsonb(g) - 'lease_expires_at' FROM tq_get({ready}) g$$),
	($$SELECT (tq_get({running})).checkpoint$$),
	($$SELECT to_jsonb(g) FROM tq_get({dead}) g$$),
	($$SELECT jsonb_agg(h) FROM tq_history({dead}) h$$),
	($$SELECT tq_explain({blocked})$$),
	($$SELECT tq_explain({closed})$$),
	($$SELECT tq_explain({dead})$$),
	($$SELECT count(*) > 0 FROM tq_jobs$$),
	($$SELECT jsonb_agg(j ORDER BY id) FROM tq_jobs j WHERE id = {dead}$$),
	($$SELECT jsonb_agg(to_jsonb(r) - 'lease_expires_at' ORDER BY id) FROM tq_running r WHERE id = {running}$$),
	($$SELECT jsonb_agg(d) FROM tq_dead d$$),
	($$SELECT count(*) >= 0 FROM tq_workers$$),
	($$SELECT count(*) FROM tq_queues$$),
	($$SELECT count(*) FROM tq_stats()$$),
	($$SELECT count(*) > 0 FROM tq_health()$$),
	($$SELECT count(*) FROM tq_check() WHERE item ~ 'drift' AND found <> 0$$),
	($$SELECT tq_metrics() <> ''$$),
	($$SELECT count(*) FROM tq_grants$$), ($$SELECT count(*) FROM tq_rights$$),
	($$SELECT jsonb_agg(s) FROM tq_schedules s$$),
	($$SELECT count(*) FROM tq_handlers$$),
	($$SELECT tq_create_queue('new', '{"follow_up": {"queue": "a"}}')$$),
	($$SELECT tq_alter_queue('a', '{"priority": 5, "follow_up": {"queue": "b"}}')$$),
	($$SELECT tq_pause('a')$$),
	($$SELECT tq_pause('a', 'more')$$),
	($$SELECT tq_resume('a', 'more')$$),
	($$SELECT tq_grant('a', 'a_user', 'produce')$$),
	($$SELECT tq_revoke('a', 'a_user', 'monitor')$$),
	($$SELECT tq_schedule('t', 'a', every => '1000 d')$$),
	($$SELECT tq_schedule_pause('s')$$),
	($$SELECT tq_schedule_resume('s')$$),
	($$SELECT tq_schedule_run('s') > 0$$),
	($$SELECT tq_unschedule('s')$$),
	($$SELECT tq_handle('a', NULL, 'handle(tq_job)')$$),
	($$SELECT tq_unhandle('c', 'handled')$$),
	($$SELECT tq_drain('nobody')$$),
	($$SELECT jobs FROM tq_heartbeat_worker('nobody')$$),
	($$SELECT tq_release_worker('nobody')$$),
	($$SELECT tq_activate()$$);
UPDATE call c SET statement = s.statement FROM (SELECT c.n, string_agg(CASE WHEN p.i = 1 THEN p.part
		ELSE coalesce((SELECT CASE WHEN p.part ~ '^\w+ lease}' THEN lease ELSE t.id END::text FROM thing t WHERE t.name = substring(p.part FROM '^(\w+)(?: lease)?}'))
			|| substring(p.part FROM '}(.*)'), '{' || p.part) END, '' ORDER BY p.i) AS statement
	FROM call c, regexp_split_to_table(c.statement, '{') WITH ORDINALITY p (part, i) GROUP BY c.n) s WHERE s.n = c.n;
GRANT SELECT ON call, thing TO PUBLIC;

-- Makes the change, then each call alone, as an ordinary role, then undoes everything. Returns the violation, or null.
CREATE FUNCTION altered(change text, OUT wrong text, OUT failed int) LANGUAGE plpgsql AS $$
DECLARE
	c record;
BEGIN
	failed := 0;
	BEGIN
		EXECUTE change;
		FOR c IN SELECT n, statement FROM public.call ORDER BY n LOOP
			BEGIN
				PERFORM set_config('role', 'a_user', true);
				EXECUTE c.statement;
				RAISE EXCEPTION 'undo' USING ERRCODE = 'UNDO1';
			EXCEPTION
				WHEN SQLSTATE 'UNDO1' THEN NULL;
				WHEN OTHERS THEN
					failed := failed + 1;
					IF sqlstate ~ '^XX' THEN
						wrong := concat_ws(E'\n', wrong, c.statement || ': ' || sqlstate || ' ' || sqlerrm);
					END IF;
			END;
		END LOOP;
		RAISE EXCEPTION 'undo' USING ERRCODE = 'UNDO1';
	EXCEPTION
		WHEN SQLSTATE 'UNDO1' THEN NULL;
	END;
EXCEPTION WHEN OTHERS THEN
	wrong := 'refused: ' || sqlstate || ' ' || sqlerrm;
END
$$;

-- The answers of an ordinary role.
CREATE FUNCTION answer(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a text;
BEGIN
	PERFORM set_config('role', 'a_user', true);
	IF statement ~ '^SELECT' THEN
		EXECUTE statement INTO a;
	ELSE
		EXECUTE statement;
	END IF;
	RAISE EXCEPTION '%', coalesce(a, 'null') USING ERRCODE = 'UNDO1';
EXCEPTION
	WHEN SQLSTATE 'UNDO1' THEN RETURN sqlerrm;
	WHEN OTHERS THEN RETURN sqlstate || ' ' || sqlerrm;
END
$$;
SELECT tq_enqueue('b', '{"n": 3}');
UPDATE call SET before = answer(statement);
SELECT is(before, NULL, 'as it is: ' || statement) FROM call WHERE before ~ '^[0-9A-Z]{5} ';
SELECT is((altered('SELECT')).failed, 0, 'with nothing changed every call works');

-- ---- changes

CREATE TABLE change (n int GENERATED ALWAYS AS IDENTITY, what text, statement text, wrong text, failed int);
-- types of rows; a function that names an attribute would prevent the change
INSERT INTO change (what, statement)
	SELECT what, replace(statement, '{t}', t) FROM unnest('{tq_job,tq.job_line}'::text[]) t, (VALUES
		('an attribute more', 'ALTER TYPE {t} ADD ATTRIBUTE x text'),
		('an attribute of a known name more', 'ALTER TYPE {t} ADD ATTRIBUTE timeout int'),
		('thirty more', 'DO $x$ BEGIN FOR i IN 1 .. 30 LOOP EXECUTE format(''ALTER TYPE {t} ADD ATTRIBUTE x%s text'', i); END LOOP; END $x$')) v (what, statement);
INSERT INTO change (what, statement)
	SELECT what, replace(replace(replace(statement, '{t}', c.oid::regclass::text), '{a}', quote_ident(a.attname)), '{type}',
			CASE WHEN a.attlen > 0 THEN 'text' ELSE 'int' END)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0, (VALUES
		('dropped', 'DROP VIEW tq_jobs CASCADE; ALTER TYPE {t} DROP ATTRIBUTE {a} CASCADE'),
		('renamed', 'ALTER TYPE {t} RENAME ATTRIBUTE {a} TO x CASCADE'),
		('of another type', 'DROP VIEW tq_jobs CASCADE; ALTER TYPE {t} ALTER ATTRIBUTE {a} TYPE {type} CASCADE')) v (what, statement)
	WHERE c.oid IN ('tq_job'::regclass, 'tq.job_line'::regclass) ORDER BY c.relname, what, a.attnum;
-- Drops everything that depends on the columns of a table: views, constraints, defaults, an index with a predicate, the
-- link to the parent.
CREATE FUNCTION freed(t regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	command text;
BEGIN
	DROP VIEW tq_jobs, tq_grants, tq_rights, tq_queues, tq_handlers, tq_audit CASCADE;
	FOR command IN
		WITH f AS (SELECT c.oid FROM pg_class c WHERE c.oid = t OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = t))
		SELECT format('DROP INDEX %s', indexrelid::regclass) FROM pg_index WHERE indrelid IN (TABLE f) AND indpred IS NOT NULL AND indexrelid::regclass::text ~ 'override'
		UNION ALL
		SELECT format('ALTER TABLE %s NO INHERIT %s', inhrelid::regclass, inhparent::regclass) FROM pg_inherits WHERE inhrelid = t
		UNION ALL
		SELECT format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I CASCADE', conrelid::regclass, conname) FROM pg_constraint
			WHERE conrelid IN (TABLE f) AND contype <> 'n' AND (coninhcount = 0 OR conrelid = t)
		UNION ALL
		SELECT format('ALTER TABLE ONLY %s ALTER %I DROP DEFAULT', attrelid::regclass, attname) FROM pg_attribute WHERE attrelid IN (TABLE f) AND atthasdef
		UNION ALL
		SELECT format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', oid::regclass) FROM f
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
-- Gives columns with values in memory's own format a type that is a pointer, and the reverse.
INSERT INTO change (what, statement)
	SELECT what, CASE WHEN what ~ '^(of|null|as)' THEN format('SELECT freed(%L); ', c.oid::regclass) ELSE '' END || replace(replace(replace(replace(statement, '{t}', c.oid::regclass::text), '{a}', quote_ident(a.attname)),
		'{type}', CASE WHEN a.attlen > 0 THEN 'text' ELSE 'int' END),
		'{value}', CASE WHEN a.attlen > 0 THEN 'random()::text' ELSE '(random() * 2e9)::int' END)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped, (VALUES
		('dropped', 'DROP VIEW IF EXISTS tq_jobs, tq_grants, tq_rights, tq_queues, tq_handlers, tq_audit CASCADE; ALTER TABLE {t} DROP COLUMN {a} CASCADE'),
		('of another type', 'ALTER TABLE {t} ALTER {a} DROP NOT NULL; ALTER TABLE {t} ALTER {a} TYPE {type} USING CASE WHEN random() < 0.5 THEN {value} END'),
		('as name', 'ALTER TABLE {t} ALTER {a} TYPE name USING ''x''::name'),
		('null', 'ALTER TABLE {t} DISABLE TRIGGER USER; ALTER TABLE {t} ALTER {a} DROP NOT NULL; UPDATE {t} SET {a} = NULL')) v (what, statement)
	WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' AND c.relname !~ '_[1-9][0-9]*$'
		-- a child table keeps the columns that it has inherited
		AND NOT (what = 'dropped' AND (a.attinhcount > 0 OR c.relname NOT IN ('job', 'event', 'unique_key')))
		AND NOT (a.atttypid <> 'text'::regtype AND what = 'as name')
	ORDER BY c.relname, what, a.attnum;
INSERT INTO change (what, statement)
	SELECT what, replace(statement, '{t}', c.oid::regclass::text) FROM pg_class c, (VALUES
		('a column more', 'ALTER TABLE {t} ADD x text DEFAULT ''x'''),
		('a column more that is never null', 'ALTER TABLE {t} ADD x text NOT NULL DEFAULT ''x''; ALTER TABLE {t} ALTER x DROP DEFAULT'),
		('a generated column', 'ALTER TABLE {t} ADD x int GENERATED ALWAYS AS (1) STORED NOT NULL'),
		('fifty columns more', 'DO $x$ BEGIN FOR i IN 1 .. 50 LOOP EXECUTE format(''ALTER TABLE {t} ADD x%s text'', i); END LOOP; END $x$'),
		('without its indexes', 'DO $x$ DECLARE i regclass; BEGIN FOR i IN SELECT indexrelid FROM pg_index LEFT JOIN pg_constraint ON conindid = indexrelid
			WHERE indrelid = ''{t}''::regclass AND conindid IS NULL LOOP EXECUTE ''DROP INDEX '' || i; END LOOP; END $x$'),
		('with a rule', 'CREATE RULE r AS ON INSERT TO {t} DO INSTEAD NOTHING'),
		('with one that answers', 'CREATE RULE r AS ON UPDATE TO {t} DO INSTEAD SELECT ''x''::text AS x'),
		('gone', 'ALTER TABLE {t} RENAME TO away'),
		('a view instead', 'ALTER TABLE {t} RENAME TO away; CREATE VIEW {t} AS SELECT * FROM tq.away'),
		('a partitioned table instead', 'ALTER TABLE {t} RENAME TO away; CREATE TABLE {t} (LIKE tq.away INCLUDING DEFAULTS) PARTITION BY RANGE ({key})'),
		('columns in another order', 'ALTER TABLE {t} RENAME TO away; DO $x$ BEGIN EXECUTE (SELECT ''CREATE TABLE {t} AS SELECT '' || string_agg(quote_ident(attname), '', '' ORDER BY attnum DESC)
			|| '' FROM tq.away'' FROM pg_attribute WHERE attrelid = ''tq.away''::regclass AND attnum > 0); END $x$')) v (what, statement)
	WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' ORDER BY c.relname, what;
UPDATE change c SET statement = replace(statement, '{key}', (SELECT quote_ident(attname) FROM pg_attribute
		WHERE attrelid = substring(c.statement FROM 'ALTER TABLE (\S+)')::regclass AND attnum = 1))
	WHERE statement ~ '{key}';
INSERT INTO change (what, statement) VALUES
	('one with the index instead', 'ALTER TABLE tq.unique_key RENAME TO away; CREATE TABLE tq.unique_key (LIKE tq.away, PRIMARY KEY (queue_id, key)) PARTITION BY RANGE (queue_id)');
-- columns that tq never leaves null, although the test does
INSERT INTO change (what, statement)
	SELECT 'not null', format('ALTER TABLE %1$s DISABLE TRIGGER USER; DELETE FROM %1$s; ALTER TABLE %1$s ALTER %2$I SET NOT NULL', c.oid::regclass, a.attname)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attnotnull
	WHERE c.oid IN ('tq.job'::regclass, 'tq.event'::regclass) ORDER BY c.relname, a.attnum;
-- the view of tq_inbox
INSERT INTO change (what, statement) VALUES
	('a column more', $o$DO $x$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW tq_inbox AS ' || replace(pg_get_viewdef('tq_inbox'), 'WHERE', ', 1 AS x WHERE'); END $x$$o$),
	('a renamed column', 'ALTER VIEW tq_inbox RENAME COLUMN payload TO x'),
	('exchanged columns', 'ALTER VIEW tq_inbox RENAME COLUMN payload TO x; ALTER VIEW tq_inbox RENAME COLUMN kind TO payload; ALTER VIEW tq_inbox RENAME COLUMN x TO kind'),
	('a domain without its check', 'ALTER DOMAIN tq.inbox_queue DROP CONSTRAINT inbox_trigger_fires');

-- Objects can be dropped when they are no longer members of the extension.
SELECT format('ALTER EXTENSION tq DROP VIEW %s', v) FROM unnest('{tq_jobs,tq_grants,tq_rights,tq_queues,tq_handlers,tq_audit}'::text[]) v \gexec
-- each in a transaction of its own, with a new job
DO $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT n, statement FROM change ORDER BY n LOOP
		PERFORM tq_enqueue('b', '{"n": 3}');
		UPDATE change SET (wrong, failed) = (SELECT a.wrong, a.failed FROM altered(c.statement) a) WHERE n = c.n;
		COMMIT;
	END LOOP;
END
$$;
SELECT is(wrong, NULL, what || ': ' || statement) FROM change WHERE wrong IS NOT NULL ORDER BY n;
SELECT is(count(*) FILTER (WHERE wrong IS NOT NULL)::int, 0, 'nothing is wrong inside, whatever of ' || count(*) || ' changes was made') FROM change;
SELECT isnt(max(failed), 0, 'some call fails after: ' || what) FROM change WHERE what ~ '^(an attribute|thirty|dropped|renamed|of another|null|not null|gone|a renamed|a column more that)'
	GROUP BY what ORDER BY what;

SELECT is(pg_backend_pid(), :backend, 'the session is the same');
SELECT is(pg_postmaster_start_time()::text, :'started', '... and the server');
SELECT is(answer(statement), before, 'as before: ' || statement) FROM call ORDER BY n;

SELECT * FROM finish();
DROP OWNED BY a_user CASCADE;
DROP ROLE a_user;
