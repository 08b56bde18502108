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

-- With an operator that only the server has.
CREATE OR REPLACE VIEW tq_grants WITH (security_barrier) AS
	SELECT CASE a.queue_id WHEN 0 THEN '*' ELSE q.name END AS queue, a.role, a.privilege
	FROM tq.acl a LEFT JOIN tq.queue q ON q.id = a.queue_id
	WHERE (a.queue_id = 0 OR q.id IS NOT NULL) AND tq.may_list(a.queue_id, a.role)
		AND EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = a.role::pg_catalog.oid);

-- Rights of what is new, as sql/install/90_rights.sql has them: whatever default privileges have opened is closed first. What was there
-- keeps the rights that administrators gave it. To the end of the script nothing is looked up in the extension's schema.
SET LOCAL search_path = pg_catalog, pg_temp;
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
