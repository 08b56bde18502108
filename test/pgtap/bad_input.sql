-- Bad input for every argument of every verb: the SQLSTATE, a message that names the argument, and no effect.
SET client_min_messages = warning;

SELECT * FROM no_plan();
SET tq.testing = on;

-- ---- the inputs

-- Jobs that must be the same afterwards.
SELECT tq_create_queue('good');
CREATE FUNCTION handle(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT tq_handle('good', 'handled', 'handle(tq_job)');
CREATE TABLE good AS SELECT 'ready' AS what, tq_enqueue('good') AS id, NULL::bigint AS lease;
INSERT INTO good SELECT 'held', tq_enqueue('good', priority => 1);
UPDATE good SET lease = c.lease FROM tq_claim('good', lease_for => '1 d') c WHERE c.id = good.id;
CREATE FUNCTION held(OUT id bigint, OUT lease bigint) LANGUAGE sql STABLE AS $$SELECT id, lease FROM public.good WHERE what = 'held'$$;
INSERT INTO good SELECT 'batch', tq_batch_open('good', kind => 'batch');
CREATE FUNCTION batch() RETURNS bigint LANGUAGE sql STABLE AS $$SELECT id FROM public.good WHERE what = 'batch'$$;
CREATE FUNCTION idle() RETURNS bigint LANGUAGE sql STABLE AS $$SELECT id FROM public.good WHERE what = 'ready'$$;

-- Each verb with valid arguments; `writes` if it is refused in a read-only transaction.
CREATE TABLE verbs (verb text PRIMARY KEY, arguments jsonb, writes boolean);
INSERT INTO verbs VALUES
	('tq_enqueue', '{"queue": "''bad''", "payload": "''{}''"}', true),
	('tq_enqueue_many', '{"queue": "''bad''", "payloads": "ARRAY[''1'', ''2'']::jsonb[]"}', true),
	('tq_enqueue_info', '{"queue": "''bad''"}', true),
	('tq_enqueue_many_info', '{"queue": "''bad''", "payloads": "ARRAY[''1'']::jsonb[]"}', true),
	('tq_inbox', '{"queue": "''bad''", "payload": "''{}''"}', true),
	('tq_batch_open', '{"queue": "''bad''"}', true),
	('tq_batch_close', '{"batch": "batch()"}', true),
	('tq_batch', '{"batch": "batch()"}', false),
	('tq_claim', '{"queue": "''bad''"}', true),
	('tq_claim_any', '{"queues": "''{bad}''"}', true),
	('tq_claim_for', '{"queues": "''{bad}''", "workers": "''{w}''"}', true),
	('tq_claim_next', '{"queue": "''bad''", "ids": "ARRAY[(held()).id, 1]", "leases": "ARRAY[(held()).lease, 1]"}', true),
	('tq_wait', '{"queues": "''{good}''", "timeout": "''0''"}', false),
	('tq_wait_jobs', '{"ids": "ARRAY[(held()).id]", "timeout": "''0''"}', false),
	('tq_ended', '{"ids": "ARRAY[(held()).id]"}', false),
	('tq_outcomes', '{"ids": "ARRAY[(held()).id]"}', false),
	('tq_ready', '{"queues": "''{good}''"}', false),
	('tq_heartbeat', '{"id": "(held()).id", "lease": "(held()).lease"}', false),
	('tq_heartbeat_many', '{"ids": "ARRAY[(held()).id, 1]", "leases": "ARRAY[(held()).lease, 1]"}', false),
	('tq_complete', '{"id": "(held()).id", "lease": "(held()).lease"}', true),
	('tq_complete_many', '{"ids": "ARRAY[(held()).id, 1]", "leases": "ARRAY[(held()).lease, 1]"}', true),
	('tq_fail', '{"id": "(held()).id", "lease": "(held()).lease", "error": "''broken''"}', true),
	('tq_fail_many', '{"ids": "ARRAY[(held()).id, 1]", "leases": "ARRAY[(held()).lease, 1]", "errors": "''{a,b}''"}', true),
	('tq_release', '{"id": "(held()).id", "lease": "(held()).lease"}', true),
	('tq_bury', '{"id": "(held()).id", "lease": "(held()).lease", "reason": "''odd''"}', true),
	('tq_cancel', '{"id": "idle()"}', true),
	('tq_cancel_jobs', '{"ids": "ARRAY[idle()]"}', true),
	('tq_find', '{"queue": "''good''", "unique_key": "''k''"}', false),
	('tq_free_key', '{"queue": "''good''", "unique_key": "''k''"}', true),
	('tq_retry', '{"id": "idle()"}', true),
	('tq_reschedule', '{"id": "idle()", "priority": "5"}', true),
	('tq_retry_many', '{"queue": "''good''"}', true),
	('tq_purge', '{"queue": "''good''", "state": "''dead''"}', true),
	('tq_list', '{}', false),
	('tq_changes', '{}', false),
	('tq_cancel_many', '{"queue": "''good''"}', true),
	('tq_reschedule_many', '{"queue": "''good''", "priority": "5"}', true),
	('tq_retry_where', '{"queue": "''good''"}', true),
	('tq_purge_many', '{"queue": "''good''", "state": "''dead''"}', true),
	('tq_drain', '{"worker": "''w''"}', true),
	('tq_undrain', '{"worker": "''w''"}', true),
	('tq_heartbeat_worker', '{"worker": "''w''"}', false),
	('tq_release_worker', '{"worker": "''w''"}', true),
	('tq_grant', '{"queue": "''good''", "role": "current_user::regrole", "privilege": "''consume''"}', true),
	('tq_revoke', '{"queue": "''good''", "role": "current_user::regrole", "privilege": "''consume''"}', true),
	('tq_enqueued', '{"queue": "''good''"}', false),
	('tq_subscribe', '{"queue": "''good''", "url": "''https://example.org''"}', true),
	('tq_unsubscribe', '{"queue": "''good''", "url": "''https://example.org''"}', true),
	('tq_reset', '{"queue": "''good''"}', true),
	('tq_set_now', '{}', true),
	('tq_explain', '{"id": "idle()"}', false),
	('tq_get', '{"id": "idle()"}', false),
	('tq_history', '{"id": "idle()"}', false),
	('tq_graph', '{"id": "idle()"}', false),
	('tq_dead_groups', '{"queue": "''good''"}', false),
	('tq_handle', '{"queue": "''good''", "kind": "''k''", "handler": "''handle(tq_job)''"}', true),
	('tq_unhandle', '{"queue": "''good''", "kind": "''handled''"}', true),
	('tq_create_queue', '{"name": "''bad''"}', true),
	('tq_alter_queue', '{"name": "''good''", "settings": "''{}''"}', true),
	('tq_drop_queue', '{"name": "''good''"}', true),
	('tq_pause', '{"queue": "''good''"}', true),
	('tq_resume', '{"queue": "''good''"}', true),
	('tq_limit_group', '{"queue": "''good''", "group_key": "''g''", "max_running": "1"}', true),
	('tq_schedule', '{"name": "''bad''", "queue": "''bad''", "every": "''1 h''"}', true),
	('tq_unschedule', '{"name": "''good''"}', true),
	('tq_schedule_pause', '{"name": "''good''"}', true),
	('tq_schedule_resume', '{"name": "''good''"}', true),
	('tq_schedule_run', '{"name": "''good''"}', true),
	('tq_schedule_next', '{"cron": "''@daily''"}', false);
SELECT tq_schedule('good', 'good', every => '1000 d');

CREATE FUNCTION call_of(verb text, arguments jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT CASE verb
		WHEN 'tq_inbox' THEN format('INSERT INTO tq_inbox (%s) VALUES (%s)', string_agg(quote_ident(key), ', '), string_agg(value, ', '))
		WHEN 'tq_wait' THEN format('CALL tq_wait(%s)', string_agg(format('%I => %s', key, value), ', '))
		WHEN 'tq_wait_jobs' THEN format('CALL tq_wait_jobs(%s)', string_agg(format('%I => %s', key, value), ', '))
		ELSE format('SELECT * FROM %s(%s)', verb, string_agg(format('%I => %s', key, value), ', ')) END
	FROM jsonb_each_text(arguments)
$$;

CREATE FUNCTION many_kinds() RETURNS text[] LANGUAGE sql AS $$SELECT array_agg('k' || n) FROM generate_series(1, 521) n$$;

CREATE FUNCTION outcome(call text, read_only boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF read_only THEN
		SET LOCAL transaction_read_only = on;
	END IF;
	EXECUTE call;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ' ' || sqlerrm;
END
$$;

-- Values that are wrong for every argument of this type.
CREATE TABLE wrong (sort text, value text, code text);
INSERT INTO wrong VALUES
	('required', 'NULL', '22004'),
	('url', '''''', '22023'), ('url', '''example.org''', '22023'), ('url', '''https://u@example.org''', '22023'), ('url', '''http://a b''', '22023'),
	('name', '''''', '22023'), ('name', 'repeat(''x'', 64)', '22023'), ('name', 'repeat(''x'', 10000)', '22023'),
	('name', 'E''a\nb''', '22023'), ('name', 'E''a\tb''', '22023'), ('name', 'E''\x7f''', '22023'),
	('kind', 'repeat(''x'', 64)', '22023'), ('kind', 'E''a\nb''', '22023'),
	('names', 'ARRAY['''']', '22023'), ('names', 'ARRAY[repeat(''x'', 64)]', '22023'), ('names', 'ARRAY[E''a\nb'']', '22023'),
	('priority', '-32769', '22023'), ('priority', '32768', '22023'), ('priority', '2147483647', '22023'),
	('attempts', '0', '22023'), ('attempts', '-1', '22023'), ('attempts', '65536', '22023'),
	('count', '0', '22023'), ('count', '-1', '22023'), ('count', '-2147483648', '22023'),
	('time', '''infinity''', '22023'), ('time', '''-infinity''', '22023'),
	('pause', '''-1 s''', '22023'), ('pause', '''-0.000001 s''', '22023'), ('pause', '''1 month''', '22023'), ('pause', '''-1 month''', '22023'),
	('pause', '''1 month -30 days''', '22023'), ('pause', '''3653 days''', '22023'), ('pause', '''100000 years''', '22023'),
	('pause', '''2562047788:00:54.775807''', '22023'),
	('length', '''0''', '22023'), ('length', '''-1 s''', '22023'), ('length', '''0.0009 s''', '22023'), ('length', '''50 days''', '22023'),
	('length', '''1 month''', '22023'),
	('timeout', '''0''', '22023'), ('timeout', '''-1 s''', '22023'), ('timeout', '''0.0009 s''', '22023'), ('timeout', '''1 month''', '22023'),
	('timeout', '''3653 days''', '22023'),
	('expiry', '''-infinity''', '22023'),
	('group', '''''', '22023'), ('group', 'repeat(''x'', 128)', '22023'), ('group', 'E''a\nb''', '22023'), ('group', 'E''\x7f''', '22023'),
	('key', '''''', '22023'), ('key', 'repeat(''x'', 256)', '22023'), ('key', 'E''a\nb''', '22023'), ('key', 'E''\x7f''', '22023'),
	('groups', 'ARRAY[''a'', '''']', '22023'), ('groups', 'ARRAY[''a'', repeat(''x'', 128)]', '22023'), ('groups', 'ARRAY[''a'', E''a\nb'']', '22023'),
	('keys', 'ARRAY[''a'', '''']', '22023'), ('keys', 'ARRAY[''a'', repeat(''x'', 256)]', '22023'), ('keys', 'ARRAY[''a'', E''a\nb'']', '22023'),
	('object', '''[]''', '22023'), ('object', '''1''', '22023'), ('object', '''"x"''', '22023'), ('object', '''null''', '22023'),
	('array', 'ARRAY[ARRAY[NULL, NULL], ARRAY[NULL, NULL]]', '2202E'),
	('full', 'ARRAY[NULL, NULL]', '22004'),
	('few', '''{}''', '22023'),
	('unequal', 'ARRAY[NULL]', '22023'), ('unequal', 'ARRAY[NULL, NULL, NULL]', '22023'), ('unequal', '''{}''', '22023'),
	('id', '0', 'TQ004'), ('id', '-1', 'TQ004'), ('id', '9223372036854775807', 'TQ004'), ('id', '-9223372036854775808', 'TQ004'),
	('id', '9007199254740993', 'TQ004'),
	('lease', '0', 'TQ001'), ('lease', '-1', 'TQ001'), ('lease', '9223372036854775807', 'TQ001'),
	('schedule', '''nowhere''', '42704'), ('schedule', '''''', '42704'), ('schedule', 'repeat(''x'', 63)', '42704'),
	('queue', '''nowhere''', 'TQ002'), ('queues', '''{nowhere}''', 'TQ002'),
	('list', '''{}''', '22023'), ('list', 'ARRAY[NULL]::text[]', '22004');
-- infinite intervals
INSERT INTO wrong SELECT sort, value, '22023' FROM (VALUES ('pause'), ('length'), ('timeout')) s (sort), (VALUES ('''infinity'''), ('''-infinity''')) v (value)
	WHERE current_setting('server_version_num')::int >= 170000;

-- Arguments by type. `cast` is the type of an array of nulls.
CREATE TABLE arguments (verb text, argument text, sort text, says text);
INSERT INTO arguments (verb, argument, sort)
	SELECT verb, argument, sort FROM (VALUES
	('tq_enqueue', 'queue', 'required name'), ('tq_enqueue', 'payload', 'required'), ('tq_enqueue', 'kind', 'name'),
	('tq_enqueue', 'priority', 'priority'), ('tq_enqueue', 'run_at', 'time'), ('tq_enqueue', 'delay', 'pause'),
	('tq_enqueue', 'max_attempts', 'attempts'), ('tq_enqueue', 'headers', 'object'), ('tq_enqueue', 'expires_at', 'expiry'), ('tq_enqueue', 'retry', 'object'),
	('tq_enqueue', 'timeout', 'timeout'), ('tq_enqueue', 'group_key', 'group'), ('tq_enqueue', 'unique_key', 'key'), ('tq_enqueue', 'options', 'object'),
	('tq_enqueue_many', 'queue', 'required name'), ('tq_enqueue_many', 'payloads', 'required array full'),
	('tq_enqueue_many', 'kind', 'name'), ('tq_enqueue_many', 'priority', 'priority'), ('tq_enqueue_many', 'run_at', 'time'),
	('tq_enqueue_many', 'delay', 'pause'), ('tq_enqueue_many', 'max_attempts', 'attempts'), ('tq_enqueue_many', 'headers', 'object'),
	('tq_enqueue_many', 'expires_at', 'expiry'), ('tq_enqueue_many', 'retry', 'object'), ('tq_enqueue_many', 'timeout', 'timeout'),
	('tq_enqueue_many', 'group_key', 'group'), ('tq_enqueue_many', 'options', 'object'),
	('tq_enqueue_many', 'unique_keys', 'array unequal keys'), ('tq_enqueue_many', 'group_keys', 'array unequal groups'),
	('tq_enqueue_many', 'kinds', 'array unequal'), ('tq_enqueue_many', 'priorities', 'array unequal'),
	('tq_enqueue_many', 'run_ats', 'array unequal'),
	('tq_inbox', 'queue', 'required name'), ('tq_inbox', 'payload', 'required'), ('tq_inbox', 'kind', 'name'),
	('tq_inbox', 'priority', 'priority'), ('tq_inbox', 'run_at', 'time'), ('tq_inbox', 'delay', 'pause'),
	('tq_inbox', 'max_attempts', 'attempts'), ('tq_inbox', 'headers', 'object'), ('tq_inbox', 'expires_at', 'expiry'), ('tq_inbox', 'retry', 'object'),
	('tq_inbox', 'timeout', 'timeout'), ('tq_inbox', 'group_key', 'group'), ('tq_inbox', 'unique_key', 'key'), ('tq_inbox', 'options', 'object'),
	('tq_claim', 'queue', 'required name'), ('tq_claim', 'max_jobs', 'count'), ('tq_claim', 'worker', 'name'),
	('tq_claim', 'lease_for', 'length'), ('tq_claim', 'wait', 'pause'), ('tq_claim', 'kinds', 'array list names'),
	('tq_claim_any', 'queues', 'required array list names'), ('tq_claim_any', 'max_jobs', 'count'), ('tq_claim_any', 'worker', 'name'),
	('tq_claim_any', 'lease_for', 'length'), ('tq_claim_any', 'wait', 'pause'), ('tq_claim_any', 'kinds', 'array list names'),
	('tq_claim_for', 'queues', 'required array list names'), ('tq_claim_for', 'workers', 'required array list names'),
	('tq_claim_for', 'max_jobs', 'count'), ('tq_claim_for', 'lease_for', 'length'), ('tq_claim_for', 'wait', 'pause'),
	('tq_claim_for', 'kinds', 'array list names'),
	('tq_claim_next', 'queue', 'required name'), ('tq_claim_next', 'ids', 'required array full few'), ('tq_claim_next', 'leases', 'required array full few'),
	('tq_claim_next', 'results', 'array unequal'), ('tq_claim_next', 'max_jobs', 'count'), ('tq_claim_next', 'worker', 'name'),
	('tq_claim_next', 'lease_for', 'length'), ('tq_claim_next', 'kinds', 'array list names'),
	('tq_wait', 'queues', 'array list names'), ('tq_wait', 'timeout', 'pause'), ('tq_wait', 'kinds', 'array names'),
	('tq_wait_jobs', 'ids', 'required array full'), ('tq_wait_jobs', 'timeout', 'pause'),
	('tq_ended', 'ids', 'required array full'), ('tq_outcomes', 'ids', 'required array full'),
	('tq_ready', 'queues', 'array list names'), ('tq_ready', 'kinds', 'array names'),
	('tq_heartbeat', 'worker', 'name'), ('tq_heartbeat', 'id', 'required'), ('tq_heartbeat', 'lease', 'required'), ('tq_heartbeat', 'extend', 'length'),
	('tq_heartbeat_many', 'ids', 'required array full'), ('tq_heartbeat_many', 'leases', 'required array full'),
	('tq_heartbeat_many', 'extend', 'length'),
	('tq_complete', 'id', 'required id'), ('tq_complete', 'lease', 'required lease'),
	('tq_complete_many', 'ids', 'required array full'), ('tq_complete_many', 'leases', 'required array full few'),
	('tq_complete_many', 'results', 'array unequal'),
	('tq_fail', 'id', 'required id'), ('tq_fail', 'lease', 'required lease'), ('tq_fail', 'error', 'required'),
	('tq_fail', 'retry_in', 'pause'),
	('tq_fail_many', 'ids', 'required array full'), ('tq_fail_many', 'leases', 'required array full few'),
	('tq_fail_many', 'errors', 'required array full few'),
	('tq_release', 'id', 'required id'), ('tq_release', 'lease', 'required lease'), ('tq_release', 'delay', 'pause'),
	('tq_bury', 'id', 'required id'), ('tq_bury', 'lease', 'required lease'), ('tq_bury', 'reason', 'required'),
	('tq_cancel', 'id', 'required id'), ('tq_retry', 'id', 'required id'),
	('tq_reschedule', 'id', 'required id'), ('tq_reschedule', 'run_at', 'time'), ('tq_reschedule', 'priority', 'priority'),
	('tq_retry_many', 'queue', 'required queue'), ('tq_retry_many', 'state', 'required'), ('tq_retry_many', 'since', 'time'),
	('tq_retry_many', 'max_jobs', 'count'), ('tq_retry_many', 'to_queue', 'name'), ('tq_retry_many', 'kind', 'name'),
	('tq_purge', 'queue', 'required queue'), ('tq_purge', 'state', 'required'),
	('tq_changes', 'queue', 'queue'), ('tq_changes', 'max', 'count'), ('tq_changes', 'wait', 'pause'),
	('tq_list', 'queue', 'queue'), ('tq_list', 'kind', 'kind'), ('tq_list', 'worker', 'name'),
	('tq_list', 'created_from', 'time'), ('tq_list', 'created_to', 'time'), ('tq_list', 'max', 'count'),
	('tq_cancel_many', 'queue', 'queue'), ('tq_cancel_many', 'kind', 'kind'), ('tq_cancel_many', 'worker', 'name'),
	('tq_cancel_many', 'created_from', 'time'), ('tq_cancel_many', 'created_to', 'time'), ('tq_cancel_many', 'max', 'count'),
	('tq_reschedule_many', 'queue', 'queue'), ('tq_reschedule_many', 'kind', 'kind'), ('tq_reschedule_many', 'worker', 'name'),
	('tq_reschedule_many', 'created_from', 'time'), ('tq_reschedule_many', 'created_to', 'time'), ('tq_reschedule_many', 'max', 'count'), ('tq_reschedule_many', 'run_at', 'time'), ('tq_reschedule_many', 'priority', 'priority'),
	('tq_retry_where', 'queue', 'queue'), ('tq_retry_where', 'state', 'required'), ('tq_retry_where', 'kind', 'kind'), ('tq_retry_where', 'worker', 'name'),
	('tq_retry_where', 'created_from', 'time'), ('tq_retry_where', 'created_to', 'time'), ('tq_retry_where', 'max', 'count'),
	('tq_purge_many', 'queue', 'queue'), ('tq_purge_many', 'state', 'required'), ('tq_purge_many', 'kind', 'kind'), ('tq_purge_many', 'worker', 'name'),
	('tq_purge_many', 'created_from', 'time'), ('tq_purge_many', 'created_to', 'time'), ('tq_purge_many', 'max', 'count'),
	('tq_drain', 'worker', 'required name'), ('tq_undrain', 'worker', 'required name'),
	('tq_heartbeat_worker', 'worker', 'required name'), ('tq_release_worker', 'worker', 'required name'),
	('tq_grant', 'queue', 'required name queue'), ('tq_grant', 'role', 'required'), ('tq_grant', 'privilege', 'required'),
	('tq_revoke', 'queue', 'required name queue'), ('tq_revoke', 'role', 'required'), ('tq_revoke', 'privilege', 'required'),
	('tq_handle', 'queue', 'required name queue'), ('tq_handle', 'kind', 'name'), ('tq_handle', 'handler', 'required'), ('tq_handle', 'options', 'object'),
	('tq_unhandle', 'queue', 'required name queue'), ('tq_unhandle', 'kind', 'name'),
	('tq_subscribe', 'queue', 'required name queue'), ('tq_subscribe', 'url', 'required url'), ('tq_subscribe', 'options', 'required object'),
	('tq_unsubscribe', 'queue', 'required name queue'), ('tq_unsubscribe', 'url', 'required url'),
	('tq_enqueued', 'queue', 'required name'), ('tq_enqueued', 'kind', 'name'), ('tq_reset', 'queue', 'queue'), ('tq_set_now', 'at', 'time'),
	('tq_explain', 'id', 'required id'),
	('tq_get', 'id', 'required id'), ('tq_history', 'id', 'required id'),
	('tq_graph', 'id', 'required id'), ('tq_graph', 'max_jobs', 'count'),
	('tq_dead_groups', 'queue', 'required queue'), ('tq_dead_groups', 'max_jobs', 'count'),
	('tq_create_queue', 'name', 'required name'), ('tq_create_queue', 'settings', 'required object'),
	('tq_alter_queue', 'name', 'required queue'), ('tq_alter_queue', 'settings', 'required object'),
	('tq_drop_queue', 'name', 'required queue'),
	('tq_pause', 'queue', 'required queue'), ('tq_pause', 'kind', 'name'), ('tq_pause', 'until', 'expiry'), ('tq_pause', 'group_key', 'group'),
	('tq_resume', 'group_key', 'group'), ('tq_limit_group', 'queue', 'required queue'), ('tq_limit_group', 'group_key', 'required group'),
	('tq_resume', 'queue', 'required queue'), ('tq_resume', 'kind', 'name'),
	('tq_schedule', 'name', 'required name'), ('tq_schedule', 'queue', 'required name'), ('tq_schedule', 'payload', 'required'),
	('tq_schedule', 'kind', 'name'), ('tq_schedule', 'every', 'pause'), ('tq_schedule', 'options', 'object'),
	('tq_unschedule', 'name', 'required schedule'), ('tq_schedule_pause', 'name', 'required schedule'),
	('tq_schedule_resume', 'name', 'required schedule'), ('tq_schedule_run', 'name', 'required schedule'),
	('tq_schedule_next', 'cron', 'required name'), ('tq_schedule_next', 'n', 'count')
	) a (verb, argument, sorts), unnest(string_to_array(sorts, ' ')) sort;

CREATE TABLE cases (n serial, verb text, arguments jsonb, code text, says text);
INSERT INTO cases (verb, arguments, code, says)
	SELECT verb, jsonb_build_object(argument, CASE
			WHEN sort NOT IN ('array', 'full', 'unequal', 'few') OR value = '''{}''' THEN value
			ELSE value || CASE
				WHEN argument IN ('payloads', 'results') THEN '::jsonb[]'
				WHEN argument IN ('ids', 'leases') THEN '::bigint[]'
				WHEN argument = 'priorities' THEN '::int[]'
				WHEN argument = 'run_ats' THEN '::timestamptz[]'
				ELSE '::text[]' END END),
		code, CASE WHEN sort IN ('id', 'lease') THEN ' of job | job ' WHEN sort IN ('queue', 'queues') THEN 'nowhere' WHEN sort = 'schedule' THEN 'schedule'
			WHEN sort = 'names' THEN rtrim(argument, 's') ELSE argument END
	FROM arguments JOIN wrong USING (sort)
	ORDER BY verb, argument, sort, value;

-- Input that is wrong only in combination, or in one place.
INSERT INTO cases (verb, arguments, code, says) VALUES
	('tq_enqueue', '{"run_at": "now()", "delay": "''1 h''"}', '22023', 'run_at and delay'),
	('tq_enqueue', '{"unique_mode": "''sometimes''"}', '22023', 'unique_mode'),
	('tq_enqueue', '{"unique_mode": "''''"}', '22023', 'unique_mode'),
	('tq_enqueue', '{"payload": "to_jsonb(repeat(''x'', 1100000))"}', '54000', 'payload'),
	('tq_enqueue', '{"depends_on": "''{999999}''"}', 'TQ004', 'job 999999'),
	('tq_enqueue', '{"depends_on": "''{0}''"}', '22023', 'depends_on'),
	('tq_enqueue', '{"depends_on": "''{-1}''"}', '22023', 'depends_on'),
	('tq_enqueue', '{"depends_on": "''{1,NULL}''"}', '22004', 'depends_on'),
	('tq_enqueue', '{"depends_on": "''{{1},{2}}''"}', '2202E', 'depends_on'),
	('tq_enqueue', '{"depends_on": "ARRAY(SELECT generate_series(1, 1001))"}', '22023', 'depends_on'),
	('tq_enqueue', '{"options": "''{\"follow_up\": true}''"}', '22023', 'follow_up'),
	('tq_enqueue', '{"options": "''{\"follow_up\": {\"kind\": \"x\"}}''"}', '22023', 'follow_up'),
	('tq_enqueue', '{"options": "''{\"follow_up\": {\"queue\": \"nowhere\"}}''"}', 'TQ002', 'nowhere'),
	('tq_enqueue', '{"run_at": "now() + interval ''2 h''", "expires_at": "now() + interval ''1 h''"}', '22023', 'expires_at'),
	('tq_enqueue', '{"delay": "''2 h''", "expires_at": "now() + interval ''1 h''"}', '22023', 'expires_at'),
	('tq_enqueue', '{"retry": "''{\"policy\": \"often\"}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"policy\": \"list\"}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"delay\": \"-1 s\"}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"max\": \"1 month\"}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"factor\": 0.5}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"jitter\": -1}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"delays\": \"1 s\"}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"on_lost\": []}''"}', '22023', 'retry'),
	('tq_enqueue', '{"retry": "''{\"delayed\": \"1 s\"}''"}', '22023', 'delayed'),
	('tq_enqueue', '{"options": "''{\"wait\": 1}''"}', '22023', 'wait'),
	('tq_enqueue', '{"options": "''{\"\": 1}''"}', '22023', 'options'),
	('tq_enqueue', '{"options": "''{\"weight\": 0}''"}', '22023', 'weight'),
	('tq_enqueue', '{"options": "''{\"weight\": 101}''"}', '22023', 'weight'),
	('tq_enqueue', '{"options": "''{\"weight\": \"1\"}''"}', '22023', 'weight'),
	('tq_enqueue', '{"options": "''{\"weight\": 1e400}''"}', '22023', 'weight'),
	('tq_enqueue', '{"options": "''{\"lease\": \"0\"}''"}', '22023', 'lease'),
	('tq_enqueue', '{"options": "''{\"lease\": \"50 days\"}''"}', '22023', 'lease'),
	('tq_enqueue', '{"options": "''{\"lease\": 5}''"}', '22023', 'lease'),
	('tq_enqueue', '{"options": "''{\"unique_for\": \"-1 s\"}''"}', '22023', 'unique_for'),
	('tq_enqueue', '{"options": "''{\"unique_for\": \"1 month\"}''"}', '22023', 'unique_for'),
	('tq_enqueue', '{"options": "''{\"tags\": \"a\"}''"}', '22023', 'tags'),
	('tq_enqueue', '{"options": "''{\"tags\": [1]}''"}', '22023', 'tags'),
	('tq_enqueue', '{"options": "''{\"tags\": [null]}''"}', '22023', 'tags'),
	('tq_enqueue', '{"options": "''{\"tags\": [\"\"]}''"}', '22023', 'tag'),
	('tq_enqueue', '{"options": "jsonb_build_object(''tags'', array_fill(''t''::text, ARRAY[33]))"}', '22023', 'tags'),
	('tq_enqueue', '{"options": "jsonb_build_object(''tags'', ARRAY[repeat(''t'', 128)])"}', '22023', 'tag'),
	('tq_enqueue', '{"options": "''{\"on_parent_failure\": \"wait\"}''"}', '22023', 'on_parent_failure'),
	('tq_enqueue', '{"options": "''{\"on_parent_failure\": true}''"}', '22023', 'on_parent_failure'),
	('tq_enqueue', '{"options": "''{\"batch\": \"1\"}''"}', '22023', 'batch'),
	('tq_enqueue', '{"options": "''{\"batch\": 0}''"}', '22023', 'batch'),
	('tq_enqueue', '{"options": "''{\"batch\": 1.5}''"}', '22023', 'batch'),
	('tq_enqueue', '{"options": "''{\"batch\": 999999}''"}', 'TQ004', 'batch 999999'),
	('tq_enqueue', '{"options": "jsonb_build_object(''batch'', idle())"}', 'TQ004', 'batch'),
	('tq_enqueue_many', '{"run_at": "now()", "delay": "''1 h''"}', '22023', 'run_at and delay'),
	('tq_enqueue_many', '{"unique_mode": "''sometimes''"}', '22023', 'unique_mode'),
	('tq_enqueue_many', '{"kinds": "ARRAY[''good'', '''']"}', '22023', 'kind'),
	('tq_enqueue_many', '{"kinds": "ARRAY[''good'', repeat(''x'', 64)]"}', '22023', 'kind'),
	('tq_enqueue_many', '{"priorities": "''{1,32768}''"}', '22023', 'priorities'),
	('tq_enqueue_many', '{"priorities": "''{1,-32769}''"}', '22023', 'priorities'),
	('tq_enqueue_many', '{"run_ats": "ARRAY[now(), ''infinity'']"}', '22023', 'run_ats'),
	('tq_enqueue_many', '{"payloads": "ARRAY[''1'', to_jsonb(repeat(''x'', 1100000))]"}', '54000', 'payload'),
	('tq_enqueue_many', '{"payloads": "ARRAY[''1'', NULL]::jsonb[]"}', '22004', 'payloads'),
	('tq_enqueue_many', '{"options": "''{\"wait\": 1}''"}', '22023', 'wait'),
	('tq_enqueue_many', '{"retry": "''{\"delayed\": \"1 s\"}''"}', '22023', 'delayed'),
	('tq_enqueue_many', '{"run_ats": "ARRAY[NULL, now() + interval ''2 h'']", "expires_at": "now() + interval ''1 h''"}', '22023', 'expires_at'),
	('tq_enqueue_many', '{"depends_on": "''{999999}''"}', 'TQ004', 'job 999999'),
	('tq_enqueue_many', '{"options": "''{\"batch\": 999999}''"}', 'TQ004', 'batch 999999'),
	('tq_batch_open', '{"on_failure": "''wait''"}', '22023', 'on_failure'),
	('tq_batch_open', '{"on_failure": "''''"}', '22023', 'on_failure'),
	('tq_batch_open', '{"options": "jsonb_build_object(''batch'', idle())"}', '22023', 'batch'),
	('tq_batch_open', '{"options": "''{\"lease\": 5}''"}', '22023', 'lease'),
	('tq_batch_open', '{"payload": "to_jsonb(repeat(''x'', 1100000))"}', '54000', 'payload'),
	('tq_batch_close', '{"batch": "0"}', '22023', 'batch'),
	('tq_batch_close', '{"batch": "idle()"}', 'TQ004', 'batch'),
	('tq_batch', '{"batch": "idle()"}', 'TQ004', 'batch'),
	('tq_inbox', '{"run_at": "now()", "delay": "''1 h''"}', '22023', 'run_at and delay'),
	('tq_inbox', '{"unique_mode": "''sometimes''"}', '22023', 'unique_mode'),
	('tq_inbox', '{"payload": "to_jsonb(repeat(''x'', 1100000))"}', '54000', 'payload'),
	('tq_inbox', '{"options": "''{\"wait\": 1}''"}', '22023', 'wait'),
	('tq_inbox', '{"retry": "''{\"delayed\": \"1 s\"}''"}', '22023', 'delayed'),
	('tq_inbox', '{"depends_on": "''{999999}''"}', 'TQ004', 'job 999999'),
	('tq_heartbeat', '{"progress": "to_jsonb(repeat(''x'', 1001))"}', '22023', 'progress'),
	('tq_heartbeat', '{"checkpoint": "to_jsonb(repeat(''x'', 1100000))"}', '54000', 'checkpoint'),
	('tq_purge', '{"state": "''running''"}', '22023', 'running'),
	('tq_purge', '{"state": "''''"}', '22023', 'state'),
	('tq_purge', '{"state": "''everything''"}', '22023', 'everything'),
	('tq_purge', '{"state": "''ALL''"}', '22023', 'ALL'),
	('tq_changes', '{"after": "''1''"}', '22023', 'after'),
	('tq_changes', '{"max": "10001"}', '22023', 'max'),
	('tq_list', '{"state": "''lost''"}', '22023', 'lost'),
	('tq_list', '{"after": "-1"}', '22023', 'after'),
	('tq_list', '{"max": "1001"}', '22023', 'max'),
	('tq_cancel_many', '{"state": "''succeeded''"}', '22023', 'succeeded'),
	('tq_cancel_many', '{"max": "10001"}', '22023', 'max'),
	('tq_reschedule_many', '{"state": "''running''"}', '22023', 'running'),
	('tq_reschedule_many', '{"priority": "NULL"}', '22023', 'run_at or priority'),
	('tq_retry_where', '{"state": "''''"}', '22023', 'state'),
	('tq_purge_many', '{"state": "''running''"}', '22023', 'running'),
	('tq_purge_many', '{"after": "9007199254740992"}', '22023', 'after'),
	('tq_handle', '{"handler": "0::oid::regprocedure"}', '42883', 'function'),
	('tq_handle', '{"handler": "''now()''"}', '42P13', 'now'),
	('tq_handle', '{"options": "''{\"max\": 0}''"}', '22023', 'max'),
	('tq_handle', '{"options": "''{\"max\": 1001}''"}', '22023', 'max'),
	('tq_handle', '{"options": "''{\"max\": \"two\"}''"}', '22023', 'max'),
	('tq_handle', '{"options": "''{\"fatal\": \"23505\"}''"}', '22023', 'fatal'),
	('tq_handle', '{"options": "''{\"fatal\": [\"2350\"]}''"}', '22023', 'fatal'),
	('tq_handle', '{"options": "''{\"fatal\": [\"2350x\"]}''"}', '22023', 'fatal'),
	('tq_handle', '{"options": "''{\"fatal\": [23505]}''"}', '22023', 'fatal'),
	('tq_handle', '{"options": "''{\"maximum\": 1}''"}', '22023', 'maximum'),
	('tq_unhandle', '{"kind": "''not handled''"}', '42704', 'not handled'),
	('tq_grant', '{"privilege": "''all''"}', '22023', 'privilege'),
	('tq_grant', '{"privilege": "''''"}', '22023', 'privilege'),
	('tq_grant', '{"privilege": "''create''"}', '22023', 'privilege'),
	('tq_grant', '{"role": "0::oid::regrole"}', '42704', 'role'),
	('tq_revoke', '{"privilege": "''all''"}', '22023', 'privilege'),
	('tq_revoke', '{"role": "4000000000::oid::regrole"}', '42704', 'role'),
	('tq_claim', '{"max_jobs": "10001"}', '22023', 'max_jobs'),
	('tq_claim', '{"kinds": "array_fill(''k''::text, ARRAY[65])"}', '22023', 'kinds'),
	('tq_claim_any', '{"queues": "array_fill(''q''::text, ARRAY[9])"}', '22023', 'queues'),
	('tq_claim_any', '{"queues": "ARRAY[''good'', NULL]"}', '22004', 'queues'),
	('tq_claim_for', '{"queues": "array_fill(''q''::text, ARRAY[9])"}', '22023', 'queues'),
	('tq_claim_for', '{"max_jobs": "5000", "workers": "''{a,b,c}''"}', '22023', 'workers'),
	('tq_claim_next', '{"ids": "''{9007199254740993,1}''"}', 'TQ004', 'job 9007199254740993'),
	('tq_claim_next', '{"leases": "''{1,1}''"}', 'TQ001', 'lease 1 '),
	('tq_wait', '{"kinds": "''{x,y}''"}', '22023', 'queues and kinds'),
	('tq_wait', '{"queues": "NULL", "kinds": "''{x}''"}', '22023', 'kinds needs queues'),
	('tq_wait', '{"queues": "array_fill(''good''::text, ARRAY[521])", "kinds": "many_kinds()"}', '54000', 'too many kinds'),
	('tq_ready', '{"kinds": "''{x,y}''"}', '22023', 'queues and kinds'),
	('tq_heartbeat_many', '{"ids": "''{1}''"}', '22023', 'ids and leases'),
	('tq_complete_many', '{"ids": "''{}''"}', '22023', 'ids and leases'),
	('tq_fail_many', '{"ids": "ARRAY[1, NULL]"}', '22004', 'ids'),
	('tq_reschedule', '{"priority": "NULL"}', '22023', 'run_at or priority'),
	('tq_retry_many', '{"state": "''succeeded''"}', '22023', 'succeeded'),
	('tq_retry_many', '{"state": "''ready''"}', '22023', 'ready'),
	('tq_retry_many', '{"state": "''''"}', '22023', 'cannot be retried'),
	('tq_retry_many', '{"state": "''delayed''", "to_queue": "''bad''"}', '22023', 'to another queue'),
	('tq_retry_many', '{"with_children": "true", "to_queue": "''bad''"}', '22023', 'with to_queue'),
	('tq_create_queue', '{"name": "''good''"}', '42710', 'good'),
	('tq_create_queue', '{"settings": "''{\"leas\": \"1 s\"}''"}', '22023', 'leas'),
	('tq_create_queue', '{"settings": "''{\"lease\": 5}''"}', '22023', 'lease'),
	('tq_create_queue', '{"settings": "''{\"lease\": \"soon\"}''"}', '22023', 'lease'),
	('tq_create_queue', '{"settings": "''{\"lease\": \"0\"}''"}', '22023', 'lease'),
	('tq_create_queue', '{"settings": "''{\"lease\": \"1 month\"}''"}', '22023', 'lease'),
	('tq_create_queue', '{"settings": "''{\"lease_grace\": \"2 h\"}''"}', '22023', 'lease_grace'),
	('tq_create_queue', '{"settings": "''{\"priority\": 40000}''"}', '22023', 'priority'),
	('tq_create_queue', '{"settings": "''{\"priority\": 1.5}''"}', '22023', 'priority'),
	('tq_create_queue', '{"settings": "''{\"priority\": \"1\"}''"}', '22023', 'priority'),
	('tq_create_queue', '{"settings": "''{\"max_attempts\": 0}''"}', '22023', 'max_attempts'),
	('tq_create_queue', '{"settings": "''{\"max_attempts\": 1e400}''"}', '22023', 'max_attempts'),
	('tq_create_queue', '{"settings": "''{\"retry\": []}''"}', '22023', 'retry'),
	('tq_create_queue', '{"settings": "''{\"retry\": \"often\"}''"}', '22023', 'retry'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"policy\": \"often\"}}''"}', '22023', 'retry.policy'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"policy\": \"list\"}}''"}', '22023', 'retry'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"delay\": \"-1 s\"}}''"}', '22023', 'retry.delay'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"delay\": 5}}''"}', '22023', 'retry.delay'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"factor\": 0}}''"}', '22023', 'retry.factor'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"jitter\": 2}}''"}', '22023', 'retry.jitter'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"delays\": []}}''"}', '22023', 'retry.delays'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"delays\": [5]}}''"}', '22023', 'retry.delays'),
	('tq_create_queue', '{"settings": "''{\"retry\": {\"delayed\": \"1 s\"}}''"}', '22023', 'delayed'),
	('tq_alter_queue', '{"settings": "''{\"leas\": \"1 s\"}''"}', '22023', 'leas'),
	('tq_alter_queue', '{"settings": "''{\"lease\": \"-1 s\"}''"}', '22023', 'lease'),
	('tq_alter_queue', '{"settings": "''{\"retry\": {\"jitter\": \"x\"}}''"}', '22023', 'retry.jitter'),
	('tq_drop_queue', '{}', 'TQ005', 'has not ended|have not ended'),
	('tq_limit_group', '{"max_running": "-1"}', '22023', 'max_running'),
	('tq_limit_group', '{"rate": "''often''"}', '22023', 'rate'), ('tq_limit_group', '{"rate": "''''"}', '22023', 'rate'),
	('tq_pause', '{"until": "now() - interval ''1 s''"}', '22023', 'until');

-- Settings of a queue, each alone.
INSERT INTO cases (verb, arguments, code, says)
	SELECT verb, jsonb_build_object('settings', quote_literal(format('{"%s": %s}', key, value))), '22023', key
	FROM (VALUES ('tq_create_queue'), ('tq_alter_queue')) v (verb), (VALUES
		('burst', '0'), ('burst', '1.5'), ('burst', '"1"'),
		('cancel_grace', '"-1 s"'), ('cancel_grace', '5'), ('change_retention', '"-1 s"'), ('dead_retention', '"-1 s"'), ('dead_retention', '"1 year"'),
		('enqueue_rate', '"often"'), ('enqueue_rate', '5'), ('enqueue_rate', '"0/s"'), ('enqueue_rate', '"1/week"'),
		('expires_in', '"-1 s"'), ('expires_in', '"soon"'), ('fair', '"yes"'), ('fair', '1'),
		('group_max_running', '-1'), ('group_max_running', '1.5'), ('group_max_running', '"1"'), ('group_max_running', '3000000000'),
		('group_order', '"some"'), ('group_order', '1'), ('group_rate', '"1000001/s"'), ('group_rate', '"-1/s"'), ('group_rate', '""'),
		('lease', '"0"'), ('lease', '"50 days"'), ('lease_grace', '"-1 s"'), ('lease_grace', '"61 min"'),
		('max_attempts', '-1'), ('max_attempts', '65536'), ('max_attempts', '[]'), ('max_depth', '-1'), ('max_depth', '0.5'), ('max_depth', '1e300'),
		('max_running', '-1'), ('max_running', 'true'), ('max_running', '2147483648'),
		('follow_up', '"x"'), ('follow_up', '{}'), ('follow_up', '{"queue": 1}'), ('follow_up', '{"queue": "x", "on": []}'),
		('follow_up', '{"queue": "x", "on": ["never"]}'), ('follow_up', '{"queue": "x", "colour": 1}'), ('follow_up', '{"queue": "x", "priority": 1e9}'),
		('notify', '""'), ('notify', '0'), ('notify', '{}'), ('notify', '"' || repeat('x', 64) || '"'), ('on_lost', '"forget"'), ('on_lost', '1'), ('order', '"id"'), ('order', 'true'), ('priority', '-32769'), ('priority', '{}'),
		('rate', '"/s"'), ('rate', '"1/"'), ('rate', '"1.5/s"'), ('rate', '"1/s/s"'), ('rate', '[1]'), ('rate', '"99999999999999999999/s"'),
		('retention', '"-1 s"'), ('retention', '"1 month"'), ('strict_timeout', '"on"'), ('strict_timeout', '0'),
		('timeout', '"-1 s"'), ('timeout', '"1 month"'), ('unique_for', '"-1 s"'), ('unique_for', '60'),
		('weight', '0'), ('weight', '-1'), ('weight', '"heavy"'), ('weight', '1e9')
	) s (key, value);
INSERT INTO cases (verb, arguments, code, says) VALUES
	('tq_create_queue', '{"name": "''*''"}', '22023', '\*'),
	('tq_enqueue', '{"queue": "''*''"}', '22023', '\*'),
	('tq_claim', '{"queue": "''*''"}', '22023', '\*'),
	('tq_schedule', '{"every": "NULL"}', '22023', 'cron or every'),
	('tq_schedule', '{"cron": "''@daily''"}', '22023', 'cron and every'),
	('tq_schedule', '{"every": "NULL", "cron": "''61 * * * *''"}', '22023', 'cron expression'),
	('tq_schedule', '{"every": "''0''"}', '22023', 'every'),
	('tq_schedule', '{"every": "''0.999999 s''"}', '22023', 'every'),
	('tq_schedule', '{"timezone": "''''"}', '22023', 'time zone'),
	('tq_schedule', '{"timezone": "''Europe/Berln''"}', '22023', 'time zone'),
	('tq_schedule', '{"catch_up": "''some''"}', '22023', 'catch_up'),
	('tq_schedule', '{"catch_up": "''''"}', '22023', 'catch_up'),
	('tq_schedule', '{"overlap": "''wait''"}', '22023', 'overlap'),
	('tq_schedule', '{"options": "''{\"run_at\": \"2030-01-01\"}''"}', '22023', 'run_at'),
	('tq_schedule', '{"options": "''{\"batch\": 1}''"}', '22023', 'batch'),
	('tq_schedule', '{"options": "''{\"on_parent_failure\": \"run\"}''"}', '22023', 'on_parent_failure'),
	('tq_schedule', '{"options": "''{\"headers\": {\"schedule\": 1}}''"}', '22023', 'schedule'),
	('tq_schedule', '{"options": "''{\"start\": \"2030-01-02\", \"end\": \"2030-01-01\"}''"}', '22023', 'end must'),
	('tq_schedule', '{"options": "''{\"end\": \"2020-01-01\"}''"}', '22023', 'never fire'),
	('tq_schedule', '{"options": "''{\"start\": \"2030-01-01\", \"end\": \"2030-01-01 00:59\"}'' ", "every": "NULL", "cron": "''30 1 * * *''"}', '22023', 'never fire'),
	('tq_schedule', '{"options": "''{\"start\": \"noon\"}''"}', '22007', 'noon'),
	('tq_schedule', '{"options": "''{\"end\": \"2030-02-30\"}''"}', '22008', '2030-02-30');
INSERT INTO cases (verb, arguments, code, says)
	SELECT 'tq_schedule', jsonb_build_object('options', format('%L', jsonb_build_object(key, value::jsonb))), '22023', key FROM (VALUES
		('delay', '"-1 s"'), ('delay', '"1 month"'), ('delay', '5'), ('end', '"infinity"'), ('end', '17'), ('expires_in', '"0"'), ('expires_in', '"soon"'),
		('group_key', '""'), ('group_key', '7'), ('headers', '[]'), ('headers', '"x"'), ('jitter', '"-1 s"'), ('jitter', 'true'),
		('late', '"-1 s"'), ('late', '60'), ('lease', '"0"'), ('max_attempts', '0'), ('max_attempts', '1.5'), ('max_attempts', '65536'),
		('max_catch_up', '0'), ('max_catch_up', '1001'), ('max_catch_up', '"all"'), ('priority', '32768'), ('priority', '"high"'),
		('retry', '[]'), ('retry', '"fast"'), ('retry', '{"policy": "never"}'), ('start', '"-infinity"'), ('start', '{}'), ('tags', '"t"'),
		('timeout', '"0"'), ('timeout', '3'), ('unique_for', '"-1 s"'), ('unique_key', '""'), ('unique_key', 'false'), ('unique_mode', '"sometimes"'),
		('unique_mode', '1'), ('weight', '0')
	) s (key, value);
INSERT INTO cases (verb, arguments, code, says) VALUES
	('tq_schedule_next', '{"cron": "''* * * *''"}', '22023', 'cron expression'),
	('tq_schedule_next', '{"timezone": "''''"}', '22023', 'time zone'),
	('tq_schedule_next', '{"timezone": "repeat(''x'', 10000)"}', '22023', 'timezone'),
	('tq_schedule_next', '{"timezone": "E''a\\nb''"}', '22023', 'time zone'),
	('tq_schedule_next', '{"n": "1001"}', '22023', 'n is out of range');

-- ---- the tests

CREATE FUNCTION picture() RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_object(
		'jobs', (SELECT jsonb_agg(to_jsonb(g) - 'lease_expires_at' ORDER BY g.id) FROM public.good, tq_get(good.id) g),
		'all', (SELECT count(*) FROM tq_jobs),
		'schedules', (SELECT jsonb_agg(to_jsonb(s)) FROM tq_schedules s),
		'handlers', (SELECT jsonb_agg(to_jsonb(h)) FROM tq_handlers h),
		'queues', (SELECT jsonb_agg(to_jsonb(q) ORDER BY q.queue) FROM tq_queues q),
		'events', (SELECT count(*) FROM tq.event WHERE type <> 'c'))
$$;
CREATE TABLE before AS SELECT picture();

SELECT ok(o ~ ('^' || code) AND o ~ says, format('%s: %s says %s: %s', verb, call, code, o))
	FROM (SELECT c.*, call_of(verb, v.arguments || c.arguments) AS call, outcome(call_of(verb, v.arguments || c.arguments)) AS o
		FROM cases c JOIN verbs v USING (verb) ORDER BY n OFFSET 0) c
	ORDER BY n;

SELECT ok(outcome(call_of(verb, arguments), true) ~ '^25006', verb || ' is refused in a read-only transaction') FROM verbs WHERE writes;
SELECT is(outcome(call_of(verb, arguments), true), 'no error', verb || ' is not') FROM verbs WHERE NOT writes;
SELECT ok(outcome(call_of(verb, arguments || '{"checkpoint": "''1''"}'), true) ~ '^25006', 'but with a checkpoint it is')
	FROM verbs WHERE verb = 'tq_heartbeat';

-- a lost lease is an answer to a heartbeat
SELECT results_eq($$SELECT action FROM unnest('{0,-1,9223372036854775807}'::bigint[]) i, tq_heartbeat(i, 1)$$, $$VALUES ('lost'), ('lost'), ('lost')$$,
	'a heartbeat for no job');
-- duplicate and unknown ids
SELECT results_eq($$SELECT status FROM tq_complete_many('{0,0,-1}', '{1,1,1}')$$, $$VALUES ('not_found'), ('not_found'), ('not_found')$$,
	'jobs that do not exist');
-- an empty array is no error
SELECT is(tq_enqueue_many('good', '{}'), '{}', 'no payloads, no ids');
SELECT is((SELECT count(*) FROM tq_complete_many('{}', '{}')), 0::bigint, 'nothing to complete');
SELECT is((SELECT count(*) FROM tq_fail_many('{}', '{}', '{}')), 0::bigint, 'nothing to fail');
SELECT is((SELECT count(*) FROM tq_heartbeat_many('{}', '{}')), 0::bigint, 'nothing to send a heartbeat for');

SELECT ok(outcome('SELECT * FROM tq_activate()', true) ~ '^25006', 'tq_activate() is refused in a read-only transaction');
SELECT ok(outcome('SELECT tq_deactivate()', true) ~ '^25006', '... and so is tq_deactivate()');

SELECT is(picture(), (SELECT * FROM before), 'nothing is left behind, nothing has changed');
SELECT is(sum(found), 0::numeric, 'memory and journal agree') FROM tq_check() WHERE expected >= 0;

SELECT * FROM finish();
