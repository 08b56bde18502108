-- Every member of the extension has a comment, and tq_help describes every function, view and type with its arguments
-- or columns. Whoever adds one writes its section of docs/reference.md, or its line in sql/comments/internal.sql.
SET client_min_messages = warning;

SELECT * FROM no_plan();

CREATE VIEW member AS
	SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
	WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e';

-- ---- comments

CREATE VIEW object AS
	SELECT format('function %s', p.oid::regprocedure) AS object, obj_description(p.oid, 'pg_proc') AS comment
	FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
	UNION ALL
	SELECT format('relation %s', c.oid::regclass), obj_description(c.oid, 'pg_class')
	FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind IN ('r', 'v', 'S')
	UNION ALL
	SELECT format('column %s of view %s', a.attname, c.oid::regclass), col_description(c.oid, a.attnum)
	FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind = 'v'
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
	UNION ALL
	SELECT format('type %s', t.oid::regtype), obj_description(t.oid, 'pg_type')
	FROM member m JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
		LEFT JOIN pg_class c ON c.oid = t.typrelid
	WHERE t.typtype = 'd' OR c.relkind = 'c'
	UNION ALL
	SELECT format('column %s of type %s', a.attname, c.oid::regclass), col_description(c.oid, a.attnum)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 WHERE c.oid = 'tq_job'::regclass;
SELECT cmp_ok((SELECT count(*) FROM object), '>', 200::bigint, 'there are objects');
SELECT is_empty($$SELECT object FROM object WHERE comment IS NULL OR comment = '' ORDER BY 1$$, 'each has a comment');
SELECT is_empty($$SELECT object, comment FROM object WHERE comment ~ E'\n' OR length(comment) > 250
	OR comment !~ '^[[:alpha:]].*[.]$' AND object !~ '^column' OR comment ~ '[`\[]'$$, '... of one line, without markup');

-- ---- tq_help

CREATE VIEW documented AS
	SELECT p.proname::text AS name, p.oid AS function, NULL::oid AS relation
	FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid WHERE p.pronamespace <> 'tq'::regnamespace
	UNION ALL
	SELECT c.relname, NULL, c.oid FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind = 'v'
	UNION ALL
	SELECT 'tq_job', NULL, 'tq_job'::regclass;
SELECT set_eq('SELECT name FROM tq.help', 'SELECT name FROM documented', 'tq_help knows every function, view and type, and no others');
CREATE VIEW line AS
	SELECT d.name, l.line FROM documented d, tq_help(d.name) l (line);
SELECT is_empty($$SELECT d.name, a.name FROM documented d JOIN pg_proc p ON p.oid = d.function,
		unnest(p.proargnames[1:p.pronargs]) WITH ORDINALITY a (name, i)
	WHERE NOT EXISTS (SELECT FROM line l WHERE l.name = d.name
		AND l.line ~ ('^    ' || a.name || ' [a-z\[\]]+' || CASE WHEN a.i > p.pronargs - p.pronargdefaults THEN ' = .+' ELSE '' END || ' +\S.'))$$,
	'each argument has a line with its type, its default if it has one, and its meaning');
SELECT is_empty($$SELECT d.name, a.attname FROM documented d JOIN pg_attribute a ON a.attrelid = d.relation AND a.attnum > 0
	WHERE NOT EXISTS (SELECT FROM line l WHERE l.name = d.name AND l.line ~ ('^    ' || a.attname || ' +[A-Za-z0-9].'))$$, 'so has each column');
SELECT is_empty($$SELECT name FROM documented d WHERE name <> 'tq_job' AND NOT EXISTS (SELECT FROM line l
	WHERE l.name = d.name AND l.line ~ ('^    .*' || d.name || '\M'))$$, 'and each function and view has an example');
SELECT is_empty($$SELECT name, line FROM line WHERE length(line) > 110 AND line !~ ';'$$, 'lines are of a width that can be read');
SELECT is_empty($$SELECT d.name FROM documented d WHERE NOT EXISTS (SELECT FROM tq_help() l (line)
	WHERE l.line ~ ('^  ' || d.name || ' +[A-Z].*[.]$'))$$, 'tq_help() lists all, with a line each');
SELECT results_eq($$SELECT line FROM tq_help() l (line) WHERE line ~ '^[A-Z]' LIMIT 3$$, $$VALUES ('Enqueueing'), ('Working'), ('Changing jobs')$$, '... by topic');
SELECT results_eq($$SELECT tq_help('tq_resume')$$, $$VALUES ('tq_resume('), ('    queue text             The name of the queue.'),
	('    kind text = null       The kind, or the group. Null: the queue as a whole.'),
	('    group_key text = null  The kind, or the group. Null: the queue as a whole.'), (') -> void'), (''),
	('Ends a pause of the queue, of one kind, or of one group.'), (''), ('Example:'), ('    SELECT tq_resume(''mail'', kind => ''digest'');')$$, 'what it prints');
SELECT results_eq($$SELECT name::text COLLATE "default" FROM line WHERE line ~ '^    replace_waiting ' ORDER BY 1$$,
	$$VALUES ('tq_enqueue'), ('tq_enqueue_info'), ('tq_enqueue_many'), ('tq_enqueue_many_info')$$, 'the values of an argument, also of one that another section describes');
SELECT results_eq($$SELECT line FROM tq_help('tq_wait') l (line) WHERE line ~ 'tq_wait'$$, $$VALUES ('CALL tq_wait('), ('    CALL tq_wait(''{images}'', ''1 min'');')$$, 'a procedure'); -- limit: an example

CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' / ', sqlstate, sqlerrm, nullif(hint, ''));
END
$$;
SELECT is(attempt($$SELECT tq_help('tq_enqeue')$$), '42704 / tq has no function, view or type "tq_enqeue" / Perhaps you meant "tq_enqueue". tq_help() lists them.', 'a near name');
SELECT is(attempt($$SELECT tq_help('nothing like it')$$), '42704 / tq has no function, view or type "nothing like it" / tq_help() lists them.', 'no near name');
SELECT is(attempt($$SELECT tq_help('')$$), '42704 / tq has no function, view or type "" / tq_help() lists them.', 'an empty one');
SELECT is(attempt($$SELECT tq_help(repeat('x', 64))$$), '22023 / name is too long', 'a long one');
CREATE ROLE h_nobody;
SET ROLE h_nobody;
SELECT cmp_ok((SELECT count(*) FROM tq_help('tq_claim')), '>', 10::bigint, 'it needs no right');
BEGIN READ ONLY;
SELECT cmp_ok((SELECT count(*) FROM tq_help()), '>', 50::bigint, '... and writes nothing');
COMMIT;
RESET ROLE;

SELECT * FROM finish();
