-- Queues are closed by default (P8). First, this script revokes all rights that default privileges of this database
-- have granted. Then it lets every role call the functions, query the views and insert into tq_inbox, since these check
-- what the caller may do with the queue (docs/adr/0006-rights-in-a-table.md). The tables and sequences of schema tq
-- stay closed: tq's functions read and write them for the caller.

-- From here to the end of the script, no name is looked up in the extension's schema. If other roles may create objects
-- there, an operator of theirs could match better than the server's own. It would then run as the role that creates the
-- extension.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		WITH member AS (
			SELECT 'ROUTINE' AS kind, p.oid::regprocedure::text AS name, p.proowner AS owner, p.proacl AS acl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_proc p ON p.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			UNION ALL
			SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, c.relowner, c.relacl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_class c ON c.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
				AND c.relkind IN ('r', 'v', 'S')
			UNION ALL
			SELECT 'TYPE', t.oid::regtype::text, t.typowner, t.typacl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_type t ON t.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_type'::regclass
				-- since 17 the types of arrays and of tables' rows are members as well; they have no rights of their own
				AND t.typcategory <> 'A'
				AND NOT EXISTS (SELECT FROM pg_class r WHERE r.oid = t.typrelid AND r.relkind <> 'c')
			UNION ALL
			SELECT 'SCHEMA', n.oid::regnamespace::text, n.nspowner, n.nspacl
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_namespace n ON n.oid = d.objid
			WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_namespace'::regclass
		)
		SELECT format('REVOKE ALL ON %s %s FROM %s', m.kind, m.name, g.grantee)
		FROM member m CROSS JOIN LATERAL (
			SELECT 'PUBLIC' AS grantee
			UNION
			SELECT a.grantee::regrole::text FROM aclexplode(m.acl) a WHERE a.grantee NOT IN (0, m.owner)
		) g
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;

DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		-- trigger functions are called by their triggers only
		SELECT format('GRANT EXECUTE ON ROUTINE %s TO PUBLIC', p.oid::regprocedure)
		FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_proc p ON p.oid = d.objid
		WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			AND p.prorettype <> 'trigger'::regtype
		UNION ALL
		SELECT format('GRANT %s ON %s TO PUBLIC', CASE c.relname WHEN 'tq_inbox' THEN 'SELECT, INSERT' ELSE 'SELECT' END, c.oid::regclass)
		FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_class c ON c.oid = d.objid
		WHERE e.extname = 'tq' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
			AND c.relkind = 'v'
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
GRANT USAGE ON TYPE @extschema@.tq_job TO PUBLIC;
