-- From 0.1.0 to 0.2.0. docs/releasing.md says what such a script has to see to; test/t/061_update.pl compares what it makes with
-- what sql/install makes.
\echo Use "ALTER EXTENSION tq UPDATE" to load this file. \quit

-- A server that was not restarted since tq's files were replaced runs the library that it loaded at its start.
DO $$
BEGIN
	CREATE FUNCTION tq.require_library() RETURNS void
		LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_require_library';
EXCEPTION
	WHEN undefined_function THEN
		RAISE EXCEPTION 'the library that the server has loaded is of an older version of tq than this'
			USING ERRCODE = 'TQ007', DETAIL = SQLERRM, HINT = 'Restart the server, and try again.';
END
$$;
SELECT tq.require_library();

-- Rights of what is new, as sql/install/90_rights.sql has them: whatever default privileges have opened is closed first. What was there
-- keeps the rights that administrators gave it.
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format('REVOKE ALL ON ROUTINE %s FROM %s', p.oid::regprocedure, g.who)
		FROM pg_proc p CROSS JOIN LATERAL (
			SELECT 'PUBLIC' AS who
			UNION
			SELECT a.grantee::regrole::text FROM aclexplode(p.proacl) a WHERE a.grantee NOT IN (0, p.proowner)
		) g
		WHERE p.oid = 'tq.require_library()'::regprocedure
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
GRANT EXECUTE ON ROUTINE tq.require_library() TO PUBLIC;
