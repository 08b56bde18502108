-- The size of every argument: a value at its limit is accepted; one byte more is refused or cut. An argument that is
-- missing from the list below fails the test.
SET client_min_messages = warning;

SELECT * FROM no_plan();

SET tq.testing = on;
SET tq.max_payload = '4kB';
SET tq.max_headers = '2kB';
SET tq.max_options = '1kB';
SET tq.max_result = '3kB';
SET tq.max_error = '1kB';
SET tq.max_array_size = '64kB';
SET tq.max_array_elements = 1000;

-- ---- the arguments

SELECT tq_create_queue('q');
CREATE FUNCTION handle(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE TABLE jobs AS SELECT 'idle' AS what, tq_enqueue('q') AS id, NULL::bigint AS lease;
INSERT INTO jobs SELECT 'held', tq_enqueue('q', priority => 1);
UPDATE jobs SET lease = c.lease FROM tq_claim('q', lease_for => '1 d') c WHERE c.id = jobs.id;
CREATE FUNCTION held(OUT id bigint, OUT lease bigint) LANGUAGE sql STABLE AS $$SELECT id, lease FROM public.jobs WHERE what = 'held'$$;
CREATE FUNCTION idle() RETURNS bigint LANGUAGE sql STABLE AS $$SELECT id FROM public.jobs WHERE what = 'idle'$$;
SELECT tq_schedule('s', 'q', every => '1000 d');

-- The other arguments that each call needs.
CREATE TABLE verbs (verb text PRIMARY KEY, arguments jsonb);
INSERT INTO verbs VALUES
	('tq_enqueue', '{"queue": "''q''"}'),
	('tq_inbox', '{"queue": "''q''", "payload": "''{}''"}'),
	('tq_enqueue_many', '{"queue": "''q''", "payloads": "array_fill(''1''::jsonb, ARRAY[1000])"}'),
	('tq_enqueue_info', '{"queue": "''q''"}'),
	('tq_find', '{"queue": "''q''", "unique_key": "''k''"}'),
	('tq_free_key', '{"queue": "''q''", "unique_key": "''k''"}'),
	('tq_cancel_jobs', '{"ids": "''{}''"}'),
	('tq_enqueue_many_info', '{"queue": "''q''", "payloads": "array_fill(''1''::jsonb, ARRAY[1000])"}'),
	('tq_batch_open', '{"queue": "''q''"}'),
	('tq_claim', '{"queue": "''q''"}'),
	('tq_claim_any', '{"queues": "''{q}''"}'),
	('tq_claim_for', '{"queues": "''{q}''", "workers": "''{w}''"}'),
	('tq_claim_next', '{"queue": "''q''", "ids": "array_fill(1::bigint, ARRAY[1000])", "leases": "array_fill(1::bigint, ARRAY[1000])"}'),
	('tq_wait', '{"queues": "array_fill(''q''::text, ARRAY[1000])", "timeout": "''0''"}'),
	('tq_ready', '{"queues": "array_fill(''q''::text, ARRAY[1000])"}'),
	('tq_ended', '{"ids": "''{1}''"}'),
	('tq_outcomes', '{"ids": "''{1}''"}'),
	('tq_wait_jobs', '{"ids": "''{1}''", "timeout": "''0''"}'),
	('tq_heartbeat', '{"id": "(held()).id", "lease": "(held()).lease"}'),
	('tq_heartbeat_many', '{"ids": "array_fill(1::bigint, ARRAY[1000])", "leases": "array_fill(1::bigint, ARRAY[1000])"}'),
	('tq_complete', '{"id": "(held()).id", "lease": "(held()).lease"}'),
	('tq_complete_many', '{"ids": "array_fill(1::bigint, ARRAY[1000])", "leases": "array_fill(1::bigint, ARRAY[1000])"}'),
	('tq_fail', '{"id": "(held()).id", "lease": "(held()).lease", "error": "''broken''"}'),
	('tq_fail_many', '{"ids": "array_fill(1::bigint, ARRAY[1000])", "leases": "array_fill(1::bigint, ARRAY[1000])", "errors": "array_fill(''e''::text, ARRAY[1000])"}'),
	('tq_bury', '{"id": "(held()).id", "lease": "(held()).lease", "reason": "''odd''"}'),
	('tq_cancel', '{"id": "idle()"}'),
	('tq_retry_many', '{"queue": "''q''"}'),
	('tq_list', '{}'),
	('tq_changes', '{}'),
	('tq_cancel_many', '{"queue": "NULL", "dry_run": "true"}'),
	('tq_reschedule_many', '{"queue": "NULL", "priority": "1", "dry_run": "true"}'),
	('tq_retry_where', '{"queue": "NULL", "dry_run": "true"}'),
	('tq_purge_many', '{"queue": "NULL", "state": "''dead''", "dry_run": "true"}'),
	('tq_dead_groups', '{"queue": "''q''"}'),
	('tq_purge', '{"queue": "''q''", "state": "''dead''"}'),
	('tq_drain', '{"worker": "''w''"}'),
	('tq_undrain', '{"worker": "''w''"}'),
	('tq_heartbeat_worker', '{"worker": "''w''"}'),
	('tq_release_worker', '{"worker": "''w''"}'),
	('tq_grant', '{"queue": "''q''", "role": "current_user::regrole", "privilege": "''consume''"}'),
	('tq_revoke', '{"queue": "''q''", "role": "current_user::regrole", "privilege": "''consume''"}'),
	('tq_handle', '{"queue": "''q''", "kind": "''k''", "handler": "''handle(tq_job)''"}'),
	('tq_unhandle', '{"queue": "''q''", "kind": "''k''"}'),
	('tq_create_queue', '{"name": "''new''"}'),
	('tq_alter_queue', '{"name": "''q''", "settings": "''{}''"}'),
	('tq_drop_queue', '{"name": "''q''"}'),
	('tq_pause', '{"queue": "''q''"}'),
	('tq_series', '{"queue": "''q''"}'),
	('tq_resume', '{"queue": "''q''"}'),
	('tq_limit_group', '{"queue": "''q''", "group_key": "''g''"}'),
	('tq_schedule', '{"name": "''new''", "queue": "''q''", "every": "''1 h''"}'),
	('tq_unschedule', '{"name": "''s''"}'),
	('tq_schedule_pause', '{"name": "''s''"}'),
	('tq_schedule_resume', '{"name": "''s''"}'),
	('tq_schedule_run', '{"name": "''s''"}'),
	('tq_enqueued', '{"queue": "''q''"}'),
	('tq_subscribe', '{"queue": "''q''", "url": "''https://example.org''"}'),
	('tq_unsubscribe', '{"queue": "''q''", "url": "''https://example.org''"}'),
	('tq_reset', '{}'),
	('tq_schedule_next', '{"cron": "''@daily''"}'),
	('tq_help', '{}');

-- The type of limit of each argument.
CREATE TABLE arguments (verb text, argument text, sort text, PRIMARY KEY (verb, argument, sort));
INSERT INTO arguments VALUES
	('tq_enqueue', 'queue', 'name'), ('tq_enqueue', 'payload', 'payload'), ('tq_enqueue', 'kind', 'name'), ('tq_enqueue', 'retry', 'options'),
	('tq_enqueue', 'group_key', 'group'), ('tq_enqueue', 'unique_key', 'key'), ('tq_enqueue', 'unique_mode', 'word'),
	('tq_enqueue', 'headers', 'headers'), ('tq_enqueue', 'depends_on', 'bigint[]'), ('tq_enqueue', 'options', 'options'),
	('tq_enqueue_many', 'queue', 'name'), ('tq_enqueue_many', 'payloads', 'jsonb[]'), ('tq_enqueue_many', 'payloads', 'payloads'),
	('tq_enqueue_many', 'kind', 'name'), ('tq_enqueue_many', 'retry', 'options'), ('tq_enqueue_many', 'group_key', 'group'),
	('tq_enqueue_many', 'unique_mode', 'word'), ('tq_enqueue_many', 'headers', 'headers'), ('tq_enqueue_many', 'depends_on', 'bigint[]'),
	('tq_enqueue_many', 'options', 'options'), ('tq_enqueue_many', 'kinds', 'text[]'), ('tq_enqueue_many', 'kinds', 'kinds'),
	('tq_enqueue_many', 'priorities', 'int[]'), ('tq_enqueue_many', 'run_ats', 'timestamptz[]'), ('tq_enqueue_many', 'unique_keys', 'text[]'),
	('tq_enqueue_many', 'unique_keys', 'keys'), ('tq_enqueue_many', 'group_keys', 'text[]'), ('tq_enqueue_many', 'group_keys', 'groups'),
	('tq_batch_open', 'queue', 'name'), ('tq_batch_open', 'payload', 'payload'), ('tq_batch_open', 'kind', 'name'),
	('tq_batch_open', 'on_failure', 'word'), ('tq_batch_open', 'options', 'options'),
	('tq_claim', 'queue', 'name'), ('tq_claim', 'worker', 'name'), ('tq_claim', 'kinds', 'names 64'), ('tq_claim', 'kinds', 'name of names'),
	('tq_claim_any', 'queues', 'names 8'), ('tq_claim_any', 'queues', 'name of names'), ('tq_claim_any', 'worker', 'name'),
	('tq_claim_any', 'kinds', 'names 64'), ('tq_claim_any', 'kinds', 'name of names'),
	('tq_claim_for', 'queues', 'names 8'), ('tq_claim_for', 'queues', 'name of names'), ('tq_claim_for', 'workers', 'text[]'),
	('tq_claim_for', 'workers', 'kinds'), ('tq_claim_for', 'kinds', 'names 64'), ('tq_claim_for', 'kinds', 'name of names'),
	('tq_claim_next', 'queue', 'name'), ('tq_claim_next', 'ids', 'bigint[]'), ('tq_claim_next', 'leases', 'bigint[]'),
	('tq_claim_next', 'results', 'jsonb[]'), ('tq_claim_next', 'results', 'results'), ('tq_claim_next', 'worker', 'name'),
	('tq_claim_next', 'kinds', 'names 64'), ('tq_claim_next', 'kinds', 'name of names'),
	('tq_wait', 'queues', 'text[]'), ('tq_wait', 'queues', 'kinds'), ('tq_wait', 'kinds', 'text[]'), ('tq_wait', 'kinds', 'kinds'),
	('tq_ready', 'queues', 'text[]'), ('tq_ready', 'queues', 'kinds'), ('tq_ready', 'kinds', 'text[]'), ('tq_ready', 'kinds', 'kinds'),
	('tq_wait_jobs', 'ids', 'bigint[]'), ('tq_ended', 'ids', 'bigint[]'), ('tq_outcomes', 'ids', 'bigint[]'),
	('tq_heartbeat', 'progress', 'progress'), ('tq_heartbeat', 'checkpoint', 'payload'), ('tq_heartbeat', 'worker', 'name'),
	('tq_heartbeat_many', 'ids', 'bigint[]'), ('tq_heartbeat_many', 'leases', 'bigint[]'),
	('tq_complete', 'result', 'result'),
	('tq_complete_many', 'ids', 'bigint[]'), ('tq_complete_many', 'leases', 'bigint[]'), ('tq_complete_many', 'results', 'jsonb[]'),
	('tq_complete_many', 'results', 'results'),
	('tq_fail', 'error', 'cut'), ('tq_fail', 'detail', 'cut'),
	('tq_fail_many', 'ids', 'bigint[]'), ('tq_fail_many', 'leases', 'bigint[]'), ('tq_fail_many', 'errors', 'text[]'),
	('tq_fail_many', 'errors', 'cut'),
	('tq_bury', 'reason', 'cut'),
	('tq_cancel', 'reason', 'reason'),
	('tq_changes', 'after', 'cursor'), ('tq_changes', 'queue', 'name'),
	('tq_list', 'queue', 'name'), ('tq_list', 'state', 'word'), ('tq_list', 'kind', 'name'), ('tq_list', 'worker', 'name'), ('tq_list', 'tag', 'group'), ('tq_list', 'group_key', 'group'), ('tq_list', 'unique_key', 'key'), ('tq_list', 'search', 'options'), ('tq_list', 'error', 'error'),
	('tq_cancel_many', 'queue', 'name'), ('tq_cancel_many', 'state', 'word'), ('tq_cancel_many', 'kind', 'name'), ('tq_cancel_many', 'worker', 'name'), ('tq_cancel_many', 'tag', 'group'), ('tq_cancel_many', 'group_key', 'group'), ('tq_cancel_many', 'unique_key', 'key'), ('tq_cancel_many', 'search', 'options'), ('tq_cancel_many', 'reason', 'reason'),
	('tq_reschedule_many', 'queue', 'name'), ('tq_reschedule_many', 'state', 'word'), ('tq_reschedule_many', 'kind', 'name'), ('tq_reschedule_many', 'worker', 'name'), ('tq_reschedule_many', 'tag', 'group'), ('tq_reschedule_many', 'group_key', 'group'), ('tq_reschedule_many', 'unique_key', 'key'), ('tq_reschedule_many', 'search', 'options'),
	('tq_retry_where', 'queue', 'name'), ('tq_retry_where', 'state', 'word'), ('tq_retry_where', 'kind', 'name'), ('tq_retry_where', 'worker', 'name'), ('tq_retry_where', 'tag', 'group'), ('tq_retry_where', 'group_key', 'group'), ('tq_retry_where', 'unique_key', 'key'), ('tq_retry_where', 'search', 'options'), ('tq_retry_where', 'error', 'error'),
	('tq_purge_many', 'queue', 'name'), ('tq_purge_many', 'state', 'word'), ('tq_purge_many', 'kind', 'name'), ('tq_purge_many', 'worker', 'name'), ('tq_purge_many', 'tag', 'group'), ('tq_purge_many', 'group_key', 'group'), ('tq_purge_many', 'unique_key', 'key'), ('tq_purge_many', 'search', 'options'), ('tq_purge_many', 'error', 'error'),
	('tq_dead_groups', 'queue', 'name'),
	('tq_find', 'queue', 'name'), ('tq_find', 'unique_key', 'key'), ('tq_free_key', 'queue', 'name'), ('tq_free_key', 'unique_key', 'key'),
	('tq_cancel_jobs', 'ids', 'bigint[]'), ('tq_cancel_jobs', 'reason', 'reason'),
	('tq_retry_many', 'queue', 'name'), ('tq_retry_many', 'state', 'word'), ('tq_retry_many', 'kind', 'name'), ('tq_retry_many', 'to_queue', 'name'),
	('tq_purge', 'queue', 'name'), ('tq_purge', 'state', 'word'),
	('tq_drain', 'worker', 'name'), ('tq_undrain', 'worker', 'name'), ('tq_heartbeat_worker', 'worker', 'name'), ('tq_release_worker', 'worker', 'name'),
	('tq_enqueued', 'queue', 'name'), ('tq_enqueued', 'kind', 'name'), ('tq_enqueued', 'payload', 'payload'), ('tq_reset', 'queue', 'name'),
	('tq_subscribe', 'queue', 'name'), ('tq_subscribe', 'url', 'url'), ('tq_subscribe', 'options', 'options'),
	('tq_unsubscribe', 'queue', 'name'), ('tq_unsubscribe', 'url', 'url'),
	('tq_grant', 'queue', 'name'), ('tq_grant', 'privilege', 'word'), ('tq_revoke', 'queue', 'name'), ('tq_revoke', 'privilege', 'word'),
	('tq_grant', 'privilege2', 'word'), ('tq_grant', 'privilege3', 'word'), ('tq_grant', 'privilege4', 'word'), ('tq_grant', 'privilege5', 'word'), ('tq_grant', 'privilege6', 'word'), ('tq_grant', 'privilege7', 'word'), ('tq_grant', 'privilege8', 'word'),
	('tq_revoke', 'privilege2', 'word'), ('tq_revoke', 'privilege3', 'word'), ('tq_revoke', 'privilege4', 'word'), ('tq_revoke', 'privilege5', 'word'), ('tq_revoke', 'privilege6', 'word'), ('tq_revoke', 'privilege7', 'word'), ('tq_revoke', 'privilege8', 'word'),
	('tq_handle', 'queue', 'name'), ('tq_handle', 'kind', 'name'), ('tq_handle', 'options', 'options'),
	('tq_unhandle', 'queue', 'name'), ('tq_unhandle', 'kind', 'name'),
	('tq_create_queue', 'name', 'name'), ('tq_create_queue', 'settings', 'options'),
	('tq_alter_queue', 'name', 'name'), ('tq_alter_queue', 'settings', 'options'), ('tq_drop_queue', 'name', 'name'),
	('tq_series', 'queue', 'name'), ('tq_pause', 'queue', 'name'), ('tq_pause', 'kind', 'name'), ('tq_resume', 'queue', 'name'), ('tq_resume', 'kind', 'name'),
	('tq_pause', 'group_key', 'group'), ('tq_resume', 'group_key', 'group'),
	('tq_limit_group', 'queue', 'name'), ('tq_limit_group', 'group_key', 'group'), ('tq_limit_group', 'rate', 'word'),
	('tq_schedule', 'name', 'name'), ('tq_schedule', 'queue', 'name'), ('tq_schedule', 'payload', 'payload'), ('tq_schedule', 'kind', 'name'),
	('tq_schedule', 'cron', 'cron'), ('tq_schedule', 'timezone', 'zone'), ('tq_schedule', 'catch_up', 'word'), ('tq_schedule', 'overlap', 'word'),
	('tq_schedule', 'options', 'schedule options'),
	('tq_unschedule', 'name', 'name'), ('tq_schedule_pause', 'name', 'name'), ('tq_schedule_resume', 'name', 'name'), ('tq_schedule_run', 'name', 'name'),
	('tq_schedule_next', 'cron', 'cron'), ('tq_schedule_next', 'timezone', 'zone'),
	('tq_help', 'name', 'name');
-- a row of tq_inbox is a call of tq_enqueue
INSERT INTO arguments SELECT 'tq_inbox', argument, sort FROM arguments WHERE verb = 'tq_enqueue';
INSERT INTO arguments SELECT verb || '_info', argument, sort FROM arguments WHERE verb IN ('tq_enqueue', 'tq_enqueue_many');

-- A value of n bytes.
CREATE FUNCTION string(n int) RETURNS text LANGUAGE sql AS $$SELECT format('repeat(''x'', %s)', n)$$;
CREATE FUNCTION json_of(n int) RETURNS text LANGUAGE sql AS $$SELECT format('to_jsonb(repeat(''x'', %s - 8))', n)$$;
CREATE FUNCTION filled(value text, n int) RETURNS text LANGUAGE sql AS $$SELECT format('array_fill(%s, ARRAY[%s])', value, n)$$;

CREATE TABLE sorts (sort text, good text, bad text, code text);
INSERT INTO sorts VALUES
	('name', string(63), string(64), '22023'), ('word', string(63), string(64), '22023'), ('url', string(2048), string(2049), '22023'), ('zone', string(127), string(128), '22023'),
	('cursor', string(1048576), string(1048577), '22023'), ('cron', string(1024), string(1025), '22023'), ('group', string(127), string(128), '22023'), ('key', string(255), string(256), '22023'), ('error', string(2000), string(2001), '22023'),
	('payload', json_of(4096), json_of(4097), '54000'), ('headers', json_of(2048), json_of(2049), '54000'), ('options', json_of(1024), json_of(1025), '54000'),
	('schedule options', json_of(3072), json_of(3073), '54000'), ('result', json_of(3072), json_of(3073), '54000'),
	('reason', string(1024), string(1025), '54000'),
	('progress', 'to_jsonb(repeat(''x'', 900))', 'to_jsonb(repeat(''x'', 1000))', '22023'),
	('progress', 'to_jsonb(repeat(''x'', 900))', 'to_jsonb(repeat(''x'', 100000))', '22023'),
	-- arrays: by the number of elements, and as a whole
	('bigint[]', filled('1::bigint', 1000), filled('1::bigint', 1001), '54000'),
	('bigint[]', filled('1::bigint', 1000), filled('1::bigint', 8191), '54000'),
	('bigint[]', filled('1::bigint', 1000), filled('NULL::bigint', 1001), '54000'),
	('int[]', filled('1', 1000), filled('1', 1001), '54000'), ('int[]', filled('1', 1000), filled('1', 16384), '54000'),
	('timestamptz[]', filled('now()', 1000), filled('now()', 1001), '54000'), ('timestamptz[]', filled('now()', 1000), filled('now()', 8191), '54000'),
	('jsonb[]', filled('''1''::jsonb', 1000), filled('''1''::jsonb', 1001), '54000'),
	('jsonb[]', filled('''1''::jsonb', 1000), filled(json_of(64), 1000), '54000'),
	('text[]', filled('''x''::text', 1000), filled('''x''::text', 1001), '54000'),
	('text[]', filled('''x''::text', 1000), filled(string(64), 1000), '54000'),
	('names 8', format('ARRAY(SELECT repeat(''x'', 62) || g FROM generate_series(1, 8) g)'), filled('''x''::text', 9), '22023'),
	('names 8', format('ARRAY(SELECT repeat(''x'', 62) || g FROM generate_series(1, 8) g)'), filled(string(1000), 8), '22023'),
	('names 64', format('ARRAY(SELECT repeat(''x'', 61) || g FROM generate_series(10, 73) g)'), filled('''x''::text', 65), '22023'),
	('names 64', format('ARRAY(SELECT repeat(''x'', 61) || g FROM generate_series(10, 73) g)'), filled(string(1000), 64), '22023'),
	-- elements
	('name of names', format('ARRAY[%s]', string(63)), format('ARRAY[%s]', string(64)), '22023'),
	('payloads', format('ARRAY[%s]', json_of(4096)), format('ARRAY[''1'', %s]', json_of(4097)), '54000'),
	('kinds', NULL, format('%s || %s', filled('''x''::text', 999), string(64)), '22023'),
	('keys', NULL, format('%s || %s', filled('''x''::text', 999), string(256)), '22023'),
	('groups', NULL, format('%s || %s', filled('''x''::text', 999), string(128)), '22023'),
	('results', NULL, format('%s || %s', filled('''1''::jsonb', 999), json_of(3073)), '54000');

CREATE FUNCTION call_of(verb text, arguments jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT CASE verb
		WHEN 'tq_inbox' THEN format('INSERT INTO tq_inbox (%s) VALUES (%s)', string_agg(quote_ident(key), ', '), string_agg(value, ', '))
		WHEN 'tq_wait' THEN format('CALL tq_wait(%s)', string_agg(format('%I => %s', key, value), ', '))
		WHEN 'tq_wait_jobs' THEN format('CALL tq_wait_jobs(%s)', string_agg(format('%I => %s', key, value), ', '))
		ELSE format('SELECT * FROM %s(%s)', verb, string_agg(format('%I => %s', key, value), ', ')) END
	FROM jsonb_each_text(arguments)
$$;
-- The answer of a call, which is then rolled back.
CREATE FUNCTION outcome(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE call;
	RAISE EXCEPTION 'taken';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' / ', sqlstate || ' ' || sqlerrm, nullif(detail, ''), nullif(hint, ''));
END
$$;

-- ---- every argument is in the list

SELECT is_empty($$
	SELECT p.proname, a.name, a.type::regtype FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
		CROSS JOIN LATERAL unnest(p.proargtypes::oid[], p.proargnames[1:p.pronargs]) a (type, name) JOIN pg_type t ON t.oid = a.type
	WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'tq')
		AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND t.typlen = -1
		AND p.oid <> 'tq.inbox_guard(text)'::regprocedure -- it does not read the argument
		AND t.oid <> 'tq.role'::regtype -- its input has a limit
		AND NOT EXISTS (SELECT FROM arguments l WHERE l.verb = p.proname AND l.argument = a.name)
$$, 'each text, jsonb and array argument has a size that is tried here');
SELECT is_empty($$
	SELECT c.attname FROM pg_attribute c JOIN pg_type t ON t.oid = c.atttypid WHERE c.attrelid = 'tq_inbox'::regclass AND t.typlen = -1
		AND NOT EXISTS (SELECT FROM arguments l WHERE l.verb = 'tq_inbox' AND l.argument = c.attname)
$$, 'so has each column of tq_inbox');
SELECT is_empty($$SELECT sort FROM arguments WHERE sort <> 'cut' EXCEPT SELECT sort FROM sorts$$, 'for each sort there are values');

-- ---- at the limit, and above it

CREATE VIEW tried AS
	SELECT verb, argument, sort, code, call_of(verb, arguments || jsonb_build_object(argument, good)) AS good,
		call_of(verb, arguments || jsonb_build_object(argument, bad)) AS bad
	FROM arguments JOIN sorts USING (sort) JOIN verbs USING (verb)
	ORDER BY verb, argument, sort, sorts.bad;
SELECT ok(o !~ 'too (long|large|many)|at most|more than|elements', format('%s, %s as %s: at the limit: %s', verb, argument, sort, left(o, 200)))
	FROM tried CROSS JOIN LATERAL outcome(good) o WHERE good IS NOT NULL;
SELECT ok(o ~ ('^' || code || ' [a-z0-9_ ]+ (is too long|is too large|has too many elements|has more than|must have 1 to)'),
		format('%s, %s as %s: above it: %s', verb, argument, sort, left(o, 200)))
	FROM tried CROSS JOIN LATERAL outcome(bad) o;
SELECT is(outcome(call_of('tq_enqueue', jsonb_build_object('queue', '''q''', 'headers', json_of(2049)))),
	'54000 headers is too large / It has 2049 bytes; the limit is 2048 (tq.max_headers).'
	' / Keep large data in a table of its own and pass its key, or raise tq.max_headers.', 'size, limit and setting are named');

-- ---- stored out of line and compressed: the size is that of the whole value

CREATE TABLE large (name text, value text, json jsonb);
ALTER TABLE large ALTER COLUMN value SET STORAGE EXTENDED;
INSERT INTO large VALUES ('compressed', repeat('1,', 50000000), to_jsonb(repeat('x', 50000000)));
SELECT is(outcome('SELECT tq_schedule(''new'', ''q'', cron => (SELECT value FROM large))'), '22023 cron is too long / It has 100000000 bytes; the limit is 1024.',
	'a compressed text');
SELECT is(outcome('SELECT tq_enqueue(''q'', headers => (SELECT json FROM large))'),
	'54000 headers is too large / It has 50000008 bytes; the limit is 2048 (tq.max_headers).'
	' / Keep large data in a table of its own and pass its key, or raise tq.max_headers.', 'a compressed jsonb');

-- ---- numbers: jsonb keeps 1e131071 in 12 bytes, but a worker receives 131072

SELECT lives_ok($$SELECT tq_enqueue('numbers', jsonb_build_object('p', repeat('x', 2000), 'n', 1e4091::numeric))$$, 'as many digits as a payload may have bytes');
SELECT is(outcome($$SELECT tq_enqueue('numbers', jsonb_build_object('p', repeat('x', 2000), 'n', 1e4091::numeric, 'm', 1e-100))$$),
	'54000 payload is too large / Its numbers have 4196 digits; the limit is 4096.', 'more are refused');
SELECT is(outcome($$SELECT tq_enqueue('numbers', ('[' || repeat('1e131071,', 199) || '1]')::jsonb)$$),
	'54000 payload is too large / Its numbers have 26083328 digits; the limit is 4096.', 'also in an array');
SELECT is(outcome($$SELECT tq_enqueue_many('numbers', ARRAY[('[' || repeat('1e131071,', 199) || '1]')::jsonb])$$),
	'54000 payload is too large / Its numbers have 26083328 digits; the limit is 4096.', 'and of many');

-- ---- values that are cut

SELECT tq_enqueue('cut', max_attempts => 1) FROM generate_series(1, 20);
CREATE FUNCTION after(verb text, VARIADIC said anyarray) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	SELECT * INTO STRICT job FROM tq_claim('cut');
	EXECUTE format('SELECT %s', verb) USING job.id, job.lease, said[1];
	RETURN job.id;
END
$$;
SELECT is((tq_get(after('tq_fail($1, $2, $3)', repeat('x', 1024)))).error, repeat('x', 1024), 'an error at the limit is kept whole');
SELECT is((tq_get(after('tq_fail($1, $2, $3)', repeat('x', 1025)))).error, repeat('x', 964) || '... [cut: it had 1025 bytes]', 'a longer one is cut');
SELECT is((tq_get(after('tq_fail($1, $2, $3)', 'a' || repeat('é', 600)))).error, 'a' || repeat('é', 481) || '... [cut: it had 1201 bytes]',
	'at the end of a character');
SELECT is((tq_get(after('tq_fail_many(ARRAY[$1], ARRAY[$2], ARRAY[$3])', repeat('x', 1025)))).error, repeat('x', 964) || '... [cut: it had 1025 bytes]',
	'so it is by tq_fail_many');
SELECT is((tq_get(after('tq_bury($1, $2, $3)', repeat('x', 1025)))).error, repeat('x', 964) || '... [cut: it had 1025 bytes]', 'and by tq_bury');
SELECT is((SELECT detail FROM tq_history(after('tq_fail($1, $2, ''e'', $3)', to_jsonb(repeat('x', 1016)))) WHERE event = 'dead'),
	to_jsonb(repeat('x', 1016)), 'a detail at the limit is kept whole');
SELECT is((SELECT detail FROM tq_history(after('tq_fail($1, $2, ''e'', $3)', to_jsonb(repeat('x', 1017)))) WHERE event = 'dead'),
	'{"cut": true, "bytes": 1025}', 'instead of a larger one there is its size');
SELECT is((SELECT detail FROM tq_history(after('tq_fail($1, $2, ''e'', $3)', ('[' || repeat('1e131071,', 83) || '"' || repeat('x', 20) || '"]')::jsonb)) WHERE event = 'dead')
	-> 'cut', 'true', 'nor is one kept that would be larger as text');
SELECT is((SELECT error FROM tq_get(after('tq_fail($1, $2, $3)', (SELECT value FROM large)))), repeat('1,', 482) || '... [cut: it had 100000000 bytes]',
	'of a compressed one the beginning is left');

-- ---- rows by hand: for any value, functions and views show a mark

RESET tq.max_payload;
SELECT tq_create_queue('hand');
SELECT tq_deactivate();
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload, headers, retry, options, unique_key, tags, depends_on)
	SELECT 21, now(), id, 0, to_jsonb(repeat('x', 40000000)), to_jsonb(repeat('y', 40000000)), to_jsonb(repeat('z', 2000000)),
		jsonb_build_object('unique_for', repeat('1', 2000000)), repeat('u', 2000000), array_fill('tag'::text, ARRAY[100000]),
		array_fill(1::bigint, ARRAY[100000]) FROM tq.queue WHERE name = 'hand';
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) SELECT g, now(), id, 0, '{}' FROM tq.queue, generate_series(22, 24) g WHERE name = 'hand';
INSERT INTO tq.event_0 (job_id, at, step, type, lease, worker, reason, detail)
	VALUES (21, now(), 1, 'd', 5, repeat('w', 2000000), repeat('r', 2000000), to_jsonb(repeat('d', 40000000))),
		(22, now(), 1, 's', 6, NULL, NULL, to_jsonb(repeat('d', 40000000))), (23, now(), 1, 'k', NULL, NULL, NULL, to_jsonb(repeat('d', 40000000))),
		(24, now(), 1, 'b', NULL, NULL, repeat('r', 2000000), NULL);
INSERT INTO tq.schedule (name, queue, payload, kind, cron, timezone, catch_up, overlap, options, owner, anchor, fired_until, defined_at, revision, paused, last_error)
	VALUES (repeat('n', 1000), repeat('q', 100000), to_jsonb(repeat('x', 40000000)), repeat('k', 100000), repeat('1,', 1000000) || '1 * * * *', repeat('z', 100000),
			'latest', 'allow', '{}', current_user::regrole, now(), now(), now(), 1, false, repeat('e', 3000000)),
		('by hand', 'hand', '{}', NULL, repeat('1,', 1000000) || '1 * * * *', 'UTC', 'latest', 'allow', '{}', current_user::regrole, now(), now(), now(), 1, false, NULL),
		('options', 'hand', '{}', NULL, '* * * * *', 'UTC', 'latest', 'allow', jsonb_build_object('unique_key', repeat('x', 40000000)), current_user::regrole, now(), now(), now(), 1, false, NULL);
UPDATE tq.queue SET settings = jsonb_build_object('priority', repeat('1', 2000000)) WHERE name = 'hand';
SELECT lives_ok('SELECT FROM tq_activate()', 'they are loaded');
SELECT results_eq('SELECT payload, headers, length(unique_key), tags FROM tq_get(21)',
	$$SELECT '{"cut": true, "bytes": 40000008}'::jsonb, '{"cut": true, "bytes": 40000008}'::jsonb, 1024 - 60 + length('... [cut: it had 2000000 bytes]'), '{}'::text[]$$,
	'tq_get says how large they are');
SELECT is((SELECT result FROM tq_get(22)), '{"cut": true, "bytes": 40000008}', 'also of a result');
SELECT is((SELECT checkpoint FROM tq_get(23)), '{"cut": true, "bytes": 40000008}', 'and of a checkpoint');
SELECT results_eq('SELECT id, left(reason, 2), right(reason, 30), detail, length(worker) < 1100 FROM tq_dead WHERE id IN (21, 24) ORDER BY id',
	$$SELECT 21::bigint, 'rr', '.. [cut: it had 2000000 bytes]', '{"cut": true, "bytes": 40000008}'::jsonb, true
		UNION ALL SELECT 24, 'rr', '.. [cut: it had 2000000 bytes]', NULL, NULL$$, 'so does tq_dead');
SELECT is((SELECT count(*) FROM tq_history(21)), 2::bigint, 'tq_history shows all events');
SELECT ok(length(tq_explain(id)) BETWEEN 1 AND 3000000, format('tq_explain answers for %s', id)) FROM generate_series(21, 24) id;
SELECT is((SELECT count(*) FROM tq_jobs WHERE queue = 'hand'), 4::bigint, 'tq_jobs shows all');
SELECT is((SELECT count(*) FROM tq_queues WHERE queue = 'hand'), 1::bigint, 'tq_queues shows the queue');
SELECT results_eq($$SELECT left(name, 2), state, length(queue) < 2100 AND length(cron) < 2100 AND length(timezone) < 2100 AND length(last_error) < 2100
		FROM tq_schedules WHERE state = 'invalid' ORDER BY 1$$,
	$$VALUES ('by', 'invalid', true), ('nn', 'invalid', true), ('op', 'invalid', true)$$, 'tq_schedules shows what cannot be read');
SELECT is((SELECT payload FROM tq_schedules WHERE name LIKE 'nnn%'), '{"cut": true, "bytes": 40000008}', 'and how large it is');
SELECT ok(outcome(call) ~ '^(P0001|22023|TQ|42)', format('%s answers: %s', call, left(outcome(call), 100)))
	FROM unnest('{SELECT tq_stats(),SELECT tq_metrics(),SELECT tq_health(),SELECT tq_check(),SELECT * FROM tq_running,SELECT * FROM tq_workers,SELECT * FROM tq_handlers,'
		'"SELECT tq_schedule_run(''by hand'')","SELECT tq_schedule_pause(''by hand'')","SELECT tq_unschedule(''options'')","SELECT tq_retry(21)","SELECT tq_cancel(23)",'
		'"SELECT tq_retry_many(''hand'')","SELECT tq_purge(''hand'', ''dead'')"}'::text[]) call;

-- a history that is large as a whole: the newest events are shown
SELECT tq_deactivate();
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) SELECT 25, now(), id, 0, '{}' FROM tq.queue WHERE name = 'hand';
INSERT INTO tq.event_0 (job_id, at, step, type, lease, attempt, reason) SELECT 25, now(), g, 'f', g, g, repeat('f', 1000000) FROM generate_series(1, 99) g;
INSERT INTO tq.event_0 (job_id, at, step, type, lease, attempt, reason) VALUES (25, now(), 100, 'd', 100, 100, 'the last');
SELECT FROM tq_activate();
SELECT results_eq('SELECT reason, length(last_error) FROM tq_dead WHERE id = 25', $$VALUES ('the last', 8)$$, 'tq_dead shows the last error');
SELECT results_eq($$SELECT count(*) FILTER (WHERE reason = '... [cut: the history is too large]'), count(*) FILTER (WHERE length(reason) = 1000000),
		min(step) FILTER (WHERE length(reason) = 1000000) FROM tq_history(25)$$, $$VALUES (32::bigint, 67::bigint, 33)$$, 'tq_history those of the newest events');

-- ---- the roles that may set the limits

CREATE ROLE r_sizes;
SET ROLE r_sizes;
SELECT throws_ok(format('SET %s = 1024', name), '42501', NULL, format('%s is not for everybody to set', name))
	FROM unnest('{tq.max_array_elements,tq.max_array_size,tq.max_error,tq.max_headers,tq.max_options,tq.max_payload,tq.max_result}'::text[]) name;
RESET ROLE;
DROP ROLE r_sizes;

SELECT * FROM finish();
