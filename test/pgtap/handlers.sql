-- The function of a handler: what tq_handle refuses, and which changes hold a handler at once, in the transaction that
-- changes the function. test/t/handlers_function_changes.pl tests how executors check it.
SET client_min_messages = warning;

SELECT * FROM no_plan();

CREATE ROLE app LOGIN;
CREATE ROLE member LOGIN;
CREATE ROLE outsider LOGIN;
CREATE ROLE noinherit LOGIN NOINHERIT;
CREATE ROLE chief LOGIN SUPERUSER;
GRANT app TO member, noinherit;
CREATE SCHEMA shared;
GRANT ALL ON SCHEMA shared TO app, member, outsider, noinherit;
SELECT tq_create_queue('q');
SELECT tq_grant('q', r::regrole, p) FROM unnest('{app,member,outsider}'::text[]) r, unnest('{manage,consume}'::text[]) p;

CREATE FUNCTION complaint(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	PERFORM set_config('role', who, true);
	EXECUTE statement;
	PERFORM set_config('role', 'none', true);
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', sqlstate || ': ' || sqlerrm, nullif(detail, ''), nullif(hint, ''));
END
$$;

-- A function shared.<name> of a role.
CREATE FUNCTION make(name text, owner text, body text DEFAULT 'SELECT') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE FUNCTION shared.%I(job tq_job) RETURNS void LANGUAGE sql AS %L', name, body);
	EXECUTE format('ALTER FUNCTION shared.%I(tq_job) OWNER TO %I', name, owner);
END
$$;

-- ---- whose functions a role may register

SELECT make('of_' || r, r) FROM unnest('{app,member,outsider,noinherit,chief}'::text[]) r;
CREATE TABLE wanted (who text, owner text, may boolean);
INSERT INTO wanted VALUES
	('app', 'app', true), ('app', 'member', true), ('app', 'outsider', false), ('app', 'noinherit', false), ('app', 'chief', true),
	('member', 'app', false), ('member', 'member', true), ('member', 'outsider', false), ('member', 'chief', true),
	('outsider', 'app', false), ('outsider', 'outsider', true), ('outsider', 'chief', true),
	('chief', 'app', false), ('chief', 'outsider', false), ('chief', 'chief', true);
SELECT is(complaint(who, format('SELECT tq_handle(%L, %L, %L)', 'q', 'who', 'shared.of_' || owner || '(tq_job)')) !~ '^42501: function .* cannot be a handler of role',
	may, format('%s %s a function of %s', who, CASE WHEN may THEN 'registers' ELSE 'does not register' END, owner)) FROM wanted;
SELECT is(complaint('chief', $$SELECT tq_handle('q', 'who', 'shared.of_outsider(tq_job)')$$),
	'42501: function shared.of_outsider(tq_job) cannot be a handler of role "chief"
It would run as that role, but its owner, role "outsider", can change its code and does not have the rights of that role.
Call tq_handle as the owner of the function, or make the function belong to a role that has these rights.', 'the error says who, and what to do');
-- the function that calls tq_handle determines the caller
CREATE FUNCTION register(handler regprocedure) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
	AS $$SELECT tq_handle('q', 'definer', handler)$$;
SELECT ok(complaint('outsider', $$SELECT register('shared.of_outsider(tq_job)')$$) ~ '^42501: function .* of role "postgres"',
	'a definer registers no function of its caller');
-- a function that runs as its owner can be changed to one that does not
ALTER FUNCTION shared.of_outsider(tq_job) SECURITY DEFINER;
SELECT ok(complaint('chief', $$SELECT tq_handle('q', 'who', 'shared.of_outsider(tq_job)')$$) ~ '^42501: function', 'nor is a SECURITY DEFINER function registered');

-- ---- how many handlers a role may register

SELECT is((SELECT setting || ' ' || context FROM pg_settings WHERE name = 'tq.max_handlers_per_role'), '1000 superuser', 'default and context');
SELECT tq_create_queue('many');
SELECT tq_grant('many', r::regrole, p) FROM unnest('{app,member}'::text[]) r, unnest('{manage,consume}'::text[]) p;
SELECT complaint('app', $$SELECT tq_handle('many', 'k' || g, 'shared.of_app(tq_job)') FROM generate_series(1, 3) g$$) \g /dev/null
SELECT count(*) AS registered FROM tq_handlers WHERE role = 'app'::regrole \gset
SET tq.max_handlers_per_role = :registered;
SELECT is(complaint('app', $$SELECT tq_handle('q', 'one more', 'shared.of_app(tq_job)')$$), format('53400: too many handlers of role "app"
It has at least %1$s; tq.max_handlers_per_role allows %1$s.
Remove some with tq_unhandle, handle several kinds with one function and kind null, or have a superuser raise tq.max_handlers_per_role.', :registered),
	'one more handler of a role is refused, also for another queue');
SELECT is(complaint('app', $$SELECT tq_handle('many', 'k1', 'shared.of_member(tq_job)')$$), 'none', 'a handler is replaced when there is room for no other');
SELECT is(complaint('member', $$SELECT tq_handle('many', 'k4', 'shared.of_member(tq_job)')$$), 'none', 'another role registers its own');
SELECT is(complaint('app', $$SELECT tq_handle('many', 'k4', 'shared.of_app(tq_job)')$$) ~ '^53400', true, '... which the full role cannot take over');
SET tq.max_handlers_per_role = 1;
SELECT is((SELECT count(*)::int FROM tq_handlers WHERE role = 'app'::regrole), :registered, 'handlers stay when the limit is lowered');
SET tq.max_handlers_per_role = 0;
SELECT is(complaint('app', $$SELECT tq_handle('many', 'k5', 'shared.of_app(tq_job)')$$), 'none', '0: no limit');
RESET tq.max_handlers_per_role;
SELECT is(complaint('app', 'SET tq.max_handlers_per_role = 0'), '42501: permission denied to set parameter "tq.max_handlers_per_role"', 'the limit is a superuser''s');
SELECT tq_unhandle('many', kind) FROM tq_handlers WHERE queue = 'many';
SELECT tq_drop_queue('many');

-- ---- changes that hold a handler

-- The problem that tq_handlers shows for the handler of a kind, without the rest of the hint.
CREATE FUNCTION problem(of text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(problem, '; call tq_handle again$', CASE WHEN retry_at = 'infinity' THEN ' HELD' ELSE '' END)
	FROM tq_handlers WHERE queue = 'q' AND kind = of $$;
-- Handlers of their names for functions shared.<name>, of app.
CREATE FUNCTION handlers(VARIADIC names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	n text;
BEGIN
	FOREACH n IN ARRAY names
	LOOP
		PERFORM make(n, 'app') WHERE to_regprocedure(format('shared.%I(tq_job)', n)) IS NULL;
		PERFORM set_config('role', 'app', true);
		PERFORM tq_handle('q', n, format('shared.%I(tq_job)', n)::regprocedure);
		PERFORM set_config('role', 'none', true);
	END LOOP;
END
$$;
SELECT handlers('dropped', 'anew', 'same', 'kept', 'savepoint', 'owner', 'renamed', 'swapped', 'moved', 'replaced', 'cascade', 'quoted "Name"');

DROP FUNCTION shared.dropped(tq_job);
SELECT is(problem('dropped'), 'the registered function shared.dropped(tq_job) does not exist any more HELD', 'a drop holds it, at once');
SELECT make('dropped', 'outsider');
SELECT is(problem('dropped'), 'the registered function shared.dropped(tq_job) does not exist any more HELD', 'also when there is one of its name again');
SELECT ok(complaint('app', $$SELECT tq_handle('q', 'dropped', 'shared.dropped(tq_job)')$$) ~ '^42501', 'which cannot be registered, since it is of another role');
SELECT ok(value ~ '^1 of \d+ cannot be called: q/dropped: the registered function .* does not exist any more; call tq_handle again$' AND status = 'warn', 'tq_health')
	FROM tq_health() WHERE item = 'handlers';
SELECT tq_enqueue('q', kind => 'dropped') AS job \gset
SELECT ok(tq_explain(:job) ~ 'its handler shared.dropped is not called: the registered function .* call tq_handle again\.$', 'tq_explain');
DROP FUNCTION shared.dropped(tq_job);
SELECT handlers('dropped');
SELECT is(problem('dropped'), NULL, 'tq_handle ends that');

BEGIN;
DROP FUNCTION shared.same(tq_job);
SELECT make('same', 'app');
COMMIT;
SELECT ok(problem('same') ~ 'HELD$', 'a drop and another one of the same owner, in one transaction');
SELECT handlers('same');
SELECT is(problem('same'), NULL, 'tq_handle ends that, too');

BEGIN;
DROP FUNCTION shared.anew(tq_job);
SELECT ok(problem('anew') ~ 'HELD$', 'a drop that is not committed holds it for its own transaction');
ROLLBACK;
SELECT is(problem('anew'), NULL, 'and for nobody, when it is rolled back');
BEGIN;
SAVEPOINT s;
DROP FUNCTION shared.savepoint(tq_job);
ROLLBACK TO s;
DO $$
BEGIN
	DROP FUNCTION shared.savepoint(tq_job);
	RAISE EXCEPTION 'no';
EXCEPTION WHEN OTHERS THEN
	NULL;
END $$;
COMMENT ON SCHEMA shared IS 'another statement';
COMMIT;
SELECT is(problem('savepoint'), NULL, '... to a savepoint as well');

ALTER FUNCTION shared.owner(tq_job) OWNER TO outsider;
SELECT is(problem('owner'), 'function shared.owner(tq_job) belongs to role "outsider" now, not to role "app" HELD', 'another owner');
ALTER FUNCTION shared.owner(tq_job) OWNER TO app;
SELECT ok(problem('owner') ~ 'HELD$', 'and back: what the other one did to it is not known');
SELECT handlers('owner');
ALTER FUNCTION shared.owner(tq_job) OWNER TO member;
SELECT ok(problem('owner') ~ 'HELD$', 'also one with the same rights');
ALTER FUNCTION shared.owner(tq_job) OWNER TO app;
SELECT handlers('owner');
BEGIN;
REASSIGN OWNED BY app TO chief;
SELECT is(problem('owner'), 'function shared.owner(tq_job) belongs to role "chief" now, not to role "app" HELD', 'REASSIGN OWNED');
ROLLBACK;
BEGIN;
DROP OWNED BY app;
SELECT ok(problem('owner') ~ 'does not exist any more HELD$', 'DROP OWNED');
ROLLBACK;
BEGIN;
DROP SCHEMA shared CASCADE;
SELECT ok(problem('owner') ~ 'does not exist any more HELD$', 'DROP SCHEMA CASCADE');
ROLLBACK;
BEGIN;
DO $$ BEGIN EXECUTE 'DROP FUNCTION shared.owner(tq_job)'; END $$;
SELECT ok(problem('owner') ~ 'does not exist any more HELD$', 'a drop by a function');
ROLLBACK;
SELECT is(problem('owner'), NULL, 'nothing of that is left');

-- names
ALTER FUNCTION shared.renamed(tq_job) RENAME TO away;
SELECT is(problem('renamed'), NULL, 'a function that has another name is another matter:');
ALTER FUNCTION shared.away(tq_job) RENAME TO renamed;
SELECT is(problem('renamed'), NULL, 'it comes back');
SELECT make('stranger', 'outsider');
BEGIN;
ALTER FUNCTION shared.swapped(tq_job) RENAME TO old;
ALTER FUNCTION shared.stranger(tq_job) RENAME TO swapped;
COMMIT;
SELECT is(problem('swapped'), 'function shared.swapped(tq_job) is not the one that was registered HELD', 'another one has its name');
SELECT is(problem('quoted "Name"'), NULL, 'names may be odd');
ALTER FUNCTION shared."quoted ""Name"""(tq_job) OWNER TO outsider;
SELECT is(problem('quoted "Name"'), 'function shared."quoted ""Name"""(tq_job) belongs to role "outsider" now, not to role "app" HELD', '... also here');
CREATE SCHEMA elsewhere AUTHORIZATION outsider;
SET ROLE outsider;
CREATE FUNCTION elsewhere.moved(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
RESET ROLE;
BEGIN;
ALTER SCHEMA shared RENAME TO before;
SELECT is(problem('moved'), NULL, 'a schema with another name');
ALTER SCHEMA elsewhere RENAME TO shared;
SELECT is(problem('moved'), 'function shared.moved(tq_job) is not the one that was registered HELD', 'a schema that has the name of another');
ROLLBACK;
BEGIN;
ALTER FUNCTION shared.moved(tq_job) RENAME TO moving;
ALTER FUNCTION elsewhere.moved(tq_job) SET SCHEMA shared;
SELECT is(problem('moved'), 'function shared.moved(tq_job) is not the one that was registered HELD', 'a function that comes from another schema');
ROLLBACK;

-- changes that hold nothing
SET ROLE app;
CREATE OR REPLACE FUNCTION shared.replaced(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT /* new */';
RESET ROLE;
CREATE OR REPLACE FUNCTION shared.replaced(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT /* newer */';
ALTER FUNCTION shared.replaced(tq_job) SECURITY DEFINER SET search_path = shared, pg_temp COST 7;
GRANT EXECUTE ON FUNCTION shared.replaced(tq_job) TO outsider;
COMMENT ON FUNCTION shared.replaced(tq_job) IS 'commented';
SELECT is(problem('replaced'), NULL, 'CREATE OR REPLACE, settings, rights and comments change nothing');
SELECT make('other', 'outsider');
DROP FUNCTION shared.other(tq_job);
SELECT is(string_agg(kind, ' ' ORDER BY kind), 'quoted "Name" swapped', 'only those are held whose function it was') FROM tq_handlers WHERE problem IS NOT NULL;

-- nonsense by hand
BEGIN;
ALTER TABLE tq.handler DISABLE TRIGGER tq_reload;
UPDATE tq.handler SET function = x.f FROM (VALUES ('kept', ''), ('anew', 'a.b.c'), ('same', 'x"y'), ('cascade', repeat('x', 3000))) x (kind, f)
	WHERE handler.kind = x.kind;
UPDATE tq.handler SET function_oid = NULL, owner = NULL WHERE kind = 'renamed';
UPDATE tq.handler SET role = '999999' WHERE kind = 'savepoint';
DROP FUNCTION shared.replaced(tq_job);
SELECT is(string_agg(kind, ' ' ORDER BY kind), 'quoted "Name" renamed replaced swapped', 'nonsense by hand keeps nobody from dropping a function') FROM tq_handlers WHERE problem IS NOT NULL;
ROLLBACK;

-- a drop gives a trigger on tq's table no more rights than its owner has
BEGIN;
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'as %', current_user; END$$;
CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON tq.handler DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
SELECT is(complaint('chief', 'DROP FUNCTION shared.kept(tq_job)'), '42501: cannot fire deferred trigger within security-restricted operation',
	'a trigger that waits for the commit, when the session is a superuser again');
ROLLBACK;

-- the handlers of a dropped queue are deleted
SELECT handlers('kept');
SELECT is(count(*)::int, 0, 'no handler has lost its queue') FROM tq.handler WHERE queue_id NOT IN (SELECT id FROM tq.queue);

SELECT * FROM finish();
