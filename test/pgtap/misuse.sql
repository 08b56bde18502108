-- tq's C functions in the wrong place: trigger functions on other relations and events, or called without a trigger;
-- functions of the library under other names or with other arguments; in parallel workers; in indexes on tq's own tables.
-- All raise an error, and no server process crashes.
SET client_min_messages = error;

SELECT * FROM no_plan();
SELECT pg_postmaster_start_time()::text AS started \gset
SELECT tq_create_queue('a');

CREATE FUNCTION says(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(' ', sqlstate, nullif(detail, ''));
END
$$;

-- ---- another view with the trigger of tq_inbox

-- Its columns, and the result of an insert. The types are those of tq_inbox, with a few exceptions.
CREATE FUNCTION like_inbox(except_for jsonb, values_of jsonb DEFAULT '{}') RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(format('%s::%s AS %I', coalesce(quote_literal(values_of ->> a.attname), 'NULL'), coalesce(except_for ->> a.attname, a.atttypid::regtype::text), a.attname),
		', ' ORDER BY CASE WHEN values_of = '{}' THEN attnum ELSE -attnum END)
	FROM pg_attribute a WHERE attrelid = 'tq_inbox'::regclass AND attnum > 0
$$;
CREATE TABLE inbox (n int GENERATED ALWAYS AS IDENTITY, columns text, wanted text);
INSERT INTO inbox (columns, wanted) VALUES
	((SELECT string_agg(format('NULL::int AS c%s', i), ', ') FROM generate_series(1, 16) i), '42804 It has a column "c1" that tq does not know.'),
	((SELECT string_agg(format('%s AS c%s', i, i), ', ') FROM generate_series(1, 16) i), '42804 It has a column "c1" that tq does not know.'),
	((SELECT string_agg(format('%s::text AS c%s', i, i), ', ') FROM generate_series(1, 1000) i), '42804 It has a column "c1" that tq does not know.'),
	('1 AS queue', '42804 Its column "queue" has type integer instead of text.'),
	('''a''::text AS queue', '42804 It has no column "payload" of type jsonb.'),
	(like_inbox('{"payload": "json"}'), '42804 Its column "payload" has type json instead of jsonb.'),
	(like_inbox('{"kind": "int"}'), '42804 Its column "kind" has type integer instead of text.'),
	(like_inbox('{"run_at": "timestamp"}'), '42804 Its column "run_at" has type timestamp without time zone instead of timestamp with time zone.'),
	(like_inbox('{"depends_on": "int[]"}'), '42804 Its column "depends_on" has type integer[] instead of bigint[].'),
	(like_inbox('{}') || ', 1 AS x', '42804 It has a column "x" that tq does not know.'),
	-- the other way round, with the domain's base type, all are accepted
	(like_inbox('{"queue": "text"}', '{"queue": "a", "payload": {"other": "order"}, "kind": "sorted", "unique_mode": "skip"}'), 'ok');
DO $$
DECLARE
	i record;
BEGIN
	FOR i IN SELECT * FROM inbox LOOP
		EXECUTE format('CREATE VIEW inbox_%s AS SELECT %s', i.n, i.columns);
		EXECUTE format('CREATE TRIGGER t INSTEAD OF INSERT ON inbox_%s FOR EACH ROW EXECUTE FUNCTION tq.inbox_insert(''x'')', i.n);
	END LOOP;
END
$$;
SELECT is(says(format('INSERT INTO inbox_%s SELECT * FROM inbox_%s', n, n)), wanted, 'inbox_insert() on a view with ' || left(columns, 60)) FROM inbox ORDER BY n;
SELECT is((SELECT payload FROM tq.job WHERE kind = 'sorted'), '{"other": "order"}', 'columns in another order');

-- ---- every trigger function, on a table and a view that do not belong to tq, at every event

CREATE TABLE stranger (x int);
CREATE VIEW strange AS SELECT * FROM stranger;
CREATE TABLE fired AS
	SELECT format('CREATE %s TRIGGER t %s %s ON %s %s FOR EACH %s EXECUTE FUNCTION %s(''x'', ''1'')', CASE WHEN d <> '' THEN 'CONSTRAINT' END, timing, event,
			CASE WHEN timing = 'INSTEAD OF' THEN 'strange' ELSE 'stranger' END, d, each, f.oid::regproc) AS made,
		CASE event WHEN 'INSERT' THEN 'INSERT INTO {t} VALUES (2)' WHEN 'UPDATE' THEN 'UPDATE {t} SET x = 3' WHEN 'DELETE' THEN 'DELETE FROM {t}' ELSE 'TRUNCATE {t}' END AS statement,
		timing, f.proname, event, NULL::text AS answer
	FROM pg_proc f, unnest('{BEFORE,AFTER,INSTEAD OF}'::text[]) timing, unnest('{INSERT,UPDATE,DELETE,TRUNCATE}'::text[]) event, unnest('{ROW,STATEMENT}'::text[]) each,
		unnest('{"",DEFERRABLE INITIALLY DEFERRED}'::text[]) d
	WHERE f.pronamespace = 'tq'::regnamespace AND f.prorettype = 'trigger'::regtype
		AND NOT (event = 'TRUNCATE' AND (each = 'ROW' OR timing = 'INSTEAD OF')) AND NOT (timing = 'INSTEAD OF' AND each = 'STATEMENT')
		AND NOT (d <> '' AND (timing <> 'AFTER' OR each = 'STATEMENT' OR event = 'TRUNCATE'));
CREATE FUNCTION fire(made text, statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO stranger VALUES (1);
	EXECUTE made;
	EXECUTE replace(statement, '{t}', CASE WHEN made ~ 'INSTEAD' THEN 'strange' ELSE 'stranger' END);
	SET CONSTRAINTS ALL IMMEDIATE;
	RAISE EXCEPTION 'undo' USING ERRCODE = 'UNDO1';
EXCEPTION
	WHEN SQLSTATE 'UNDO1' THEN RETURN 'ok';
	WHEN OTHERS THEN RETURN sqlstate;
END
$$;
UPDATE fired SET answer = fire(made, statement);
SELECT is(string_agg(concat(made, ': ', answer), E'\n'), NULL, 'they fire AFTER, whatever the relation, or say no')
	FROM fired WHERE answer IS DISTINCT FROM CASE WHEN timing = 'AFTER' AND proname <> 'inbox_insert' THEN 'ok'
		WHEN proname = 'inbox_insert' AND timing = 'INSTEAD OF' AND event = 'INSERT' THEN '42804' ELSE '39P01' END;
SELECT cmp_ok(count(*)::int, '>', 100, 'in all places') FROM fired;
SELECT is(says(format('SELECT %s()', oid::regproc)), '39P01', 'without a trigger: ' || proname)
	FROM pg_proc WHERE pronamespace = 'tq'::regnamespace AND prorettype = 'trigger'::regtype ORDER BY proname;

-- ---- the library's functions under other names

-- Declared by a superuser, for other arguments and results: they are not members of the extension.
CREATE TABLE declared AS
	SELECT p.prosrc, d.declared, d.called, NULL::text AS answer
	FROM pg_depend e JOIN pg_extension x ON x.oid = e.refobjid AND x.extname = 'tq' JOIN pg_proc p ON p.oid = e.objid, (VALUES
		('FUNCTION strange_function() RETURNS int', 'SELECT strange_function()'),
		('FUNCTION strange_function(int) RETURNS text', 'SELECT strange_function(1)'),
		('FUNCTION strange_function(int[], text) RETURNS SETOF record', 'SELECT * FROM strange_function(''{1}'', ''x'') AS (y int)'),
		('FUNCTION strange_function(int) RETURNS TABLE (y text, z int)', 'SELECT * FROM strange_function(1)'),
		('PROCEDURE strange_function(int)', 'CALL strange_function(1)')) d (declared, called)
	WHERE e.deptype = 'e' AND e.classid = 'pg_proc'::regclass AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'c');
UPDATE declared SET answer = says(format('CREATE %s LANGUAGE c AS ''$libdir/tq'', %L; %s', declared, prosrc, called));
SELECT is(string_agg(concat(prosrc, ' as ', declared, ': ', answer), E'\n'), NULL, (SELECT count(DISTINCT prosrc) FROM declared) || ' functions of the library refuse to be called by others')
	FROM declared WHERE answer <> '42883 The library of tq serves the functions that CREATE EXTENSION makes, and no others.';

-- ---- functions of the extension, altered as their owner may alter them

BEGIN;
SELECT set_config(name, 'on', true) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query') \g /dev/null
ALTER FUNCTION tq_now() PARALLEL SAFE;
ALTER FUNCTION tq_get(bigint) PARALLEL SAFE STRICT;
SELECT is(says('SELECT tq_now()'), '25000', 'not in a parallel worker');
SELECT is(says('SELECT id FROM tq_get(1)'), '25000', '... none of them');
SELECT is(says('SELECT id FROM tq_get(NULL)'), 'ok', 'strict');
ROLLBACK;
SELECT is(says('SELECT tq_now()'), 'ok', 'as it was');

-- ---- in indexes on tq's own tables

-- tq would be called again while it writes events. The call would replace what tq knows of the table.
SELECT tq_enqueue('a', unique_key => 'u') \g /dev/null
SELECT tq_enqueue_many('a', array_fill('{}'::jsonb, ARRAY[300]), 'ending') \g /dev/null
CREATE TABLE ending AS SELECT array_agg(id) AS ids, array_agg(lease) AS leases FROM tq_claim('a', 300, lease_for => '1 d', kinds => '{ending}');
SELECT is(cardinality(ids), 300, 'more jobs than tq writes at once') FROM ending;
CREATE FUNCTION call_tq() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	name text;
BEGIN
	IF current_setting('misuse.call', true) = 'yes' THEN
		FOREACH name IN ARRAY (SELECT array_agg(inhrelid::regclass) || 'tq.unique_key'::regclass FROM pg_inherits WHERE inhparent = 'tq.event'::regclass) LOOP
			EXECUTE format('GRANT SELECT ON %s TO PUBLIC', name);
		END LOOP;
		PERFORM public.tq_find('a', 'u');
	END IF;
END
$$;
CREATE FUNCTION calling(x bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.call_tq(); RETURN x; END';
CREATE FUNCTION compare(x bigint, y bigint) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.call_tq(); RETURN btint8cmp(x, y); END';
CREATE DOMAIN checked AS bigint CHECK (public.calling(VALUE) > 0);
CREATE OPERATOR CLASS calling_ops FOR TYPE bigint USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 compare(bigint, bigint);
CREATE FUNCTION ends(called text) RETURNS text LANGUAGE sql AS $$
	SELECT set_config('misuse.call', called, false);
	SELECT says('SELECT count(*) FROM ending, tq_complete_many(ids, leases)');
$$;
CREATE FUNCTION ends_with(index text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	name text;
BEGIN
	PERFORM set_config('misuse.call', 'no', false);
	FOR name IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'tq.event'::regclass LOOP
		EXECUTE format('CREATE INDEX ON %s %s', name, index);
	END LOOP;
	answer := ends('yes');
	RAISE EXCEPTION 'undo' USING ERRCODE = 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
	RETURN answer;
END
$$;
SELECT is(ends_with(index), '55000 A trigger, constraint or index of the table has called one.', 'an index ' || index)
	FROM unnest('{(calling(job_id)),(job_id) WHERE calling(job_id) > 0,(job_id) WHERE job_id::checked > 0,(job_id calling_ops)}'::text[]) index;
SELECT is(ends('yes'), 'ok', 'without such an index');

SELECT is(pg_postmaster_start_time()::text, :'started', 'the server is the same');
SELECT * FROM finish();
