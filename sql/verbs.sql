-- The verbs on single jobs from the user's side. The first id varies, so ids are kept in variables and left out of
-- messages.
\pset null -
SET timezone = 'UTC';
CREATE FUNCTION try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
	detail text;
	hint text;
BEGIN
	EXECUTE statement INTO answer;
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN sqlstate || ': ' || regexp_replace(sqlerrm, '\m\d+\M', 'N', 'g') ||
		coalesce(E'\n' || nullif(detail, ''), '') || coalesce(E'\n' || nullif(hint, ''), '');
END
$$;
-- Claims are journalled only if they stay open for a while.
CREATE FUNCTION story(job bigint) RETURNS text LANGUAGE sql AS
	$$SELECT string_agg(event || coalesce(' #' || attempt, '') || coalesce(' by ' || worker, '') || coalesce(' (' || reason || ')', '') ||
		coalesce(' ' || detail::text, ''), ', ' ORDER BY step) FROM tq_history(job) WHERE event <> 'claimed'$$;

-- the life of a job in tq_get and tq_history
SELECT tq_enqueue('verbs', '{"n": 1}', kind => 'mail', priority => 10, headers => '{"h": true}', max_attempts => 5) AS job \gset
SELECT queue, kind, state, priority, attempt, max_attempts, payload, headers, run_at, claimed_at, lease, worker, finished_at, result,
	error, checkpoint FROM tq_get(:job);
SELECT lease FROM tq_claim('verbs', worker => 'ann', lease_for => '1 minute') \gset
SELECT state, attempt, lease = :lease AS lease, lease_expires_at > now() AS lease_expires, worker, claimed_at <= clock_timestamp() AS claimed
	FROM tq_get(:job);
SELECT tq_fail(:job, :lease, 'no connection', '{"code": 7}', retry_in => '1 hour');
SELECT state, attempt, run_at > now() + interval '30 minutes' AS later, lease, worker, error FROM tq_get(:job);
SELECT tq_retry(:job);
SELECT state, attempt, run_at, error FROM tq_get(:job);
SELECT lease FROM tq_claim('verbs', worker => 'bob') \gset
SELECT tq_complete(:job, :lease, '{"sent": 1}');
SELECT state, attempt, lease, worker, finished_at <= clock_timestamp() AS finished, result, error FROM tq_get(:job);
SELECT story(:job);
SELECT try(format('SELECT tq_cancel(%s)', :job)) \g (tuples_only=on format=unaligned)
SELECT try(format('SELECT tq_retry(%s)', :job)) \g (tuples_only=on format=unaligned)
SELECT try(format('SELECT tq_reschedule(%s, now())', :job)) \g (tuples_only=on format=unaligned)
SELECT try('SELECT tq_cancel(9000000000)') \g (tuples_only=on format=unaligned)
SELECT try('SELECT state FROM tq_get(9000000000)') \g (tuples_only=on format=unaligned)

-- heartbeats
SELECT tq_enqueue('beats') AS job \gset
SELECT lease FROM tq_claim('beats', lease_for => '1 minute') \gset
SELECT action, lease_expires_at > clock_timestamp() + interval '30 minutes' AS extended FROM tq_heartbeat(:job, :lease, '1 hour');
SELECT action, lease_expires_at > clock_timestamp() + interval '30 minutes' AS not_shortened FROM tq_heartbeat(:job, :lease);
SELECT * FROM tq_heartbeat(:job, :lease - 1);
SELECT action FROM tq_heartbeat_many(ARRAY[:job, :job, 9000000000], ARRAY[:lease, 1, 1]);
SELECT * FROM tq_heartbeat_many('{}', '{}');
SELECT try(format('SELECT tq_heartbeat(%s, %s, ''1 month'')', :job, :lease)) \g (tuples_only=on format=unaligned)
SELECT action FROM tq_heartbeat(:job, :lease, progress => '{"percent": 40}', checkpoint => '{"done": 400}');
SELECT r.progress, g.checkpoint FROM tq_running r, tq_get(r.id) g WHERE r.id = :job;
SELECT try(format('SELECT tq_heartbeat(%s, %s, progress => to_jsonb(repeat(''x'', 999)))', :job, :lease)) \g (tuples_only=on format=unaligned)
BEGIN;
SELECT action FROM tq_heartbeat(:job, :lease);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_transaction_id;
SELECT tq_complete(:job, :lease);
SELECT action FROM tq_heartbeat(:job, :lease);
ROLLBACK;
SELECT action FROM tq_heartbeat(:job, :lease);

-- cancel: a waiting job is cancelled, a running job is asked to stop
SELECT tq_cancel(:job, 'not needed'), tq_cancel(:job);
SELECT action FROM tq_heartbeat(:job, :lease);
SELECT tq_release(:job, :lease);
SELECT story(:job);
SELECT tq_enqueue('cancel', delay => '1 hour') AS job \gset
SELECT tq_cancel(:job, 'changed our mind');
SELECT state, error FROM tq_get(:job);
SELECT try(format('SELECT tq_cancel(%s)', :job)) \g (tuples_only=on format=unaligned)
SELECT tq_retry(:job);
SELECT count(*) FROM tq_claim('cancel');
-- a job that was asked to stop may still succeed
SELECT tq_enqueue('cancel') AS job \gset
SELECT lease FROM tq_claim('cancel') \gset
SELECT tq_cancel(:job);
SELECT tq_complete(:job, :lease);
SELECT story(:job);

-- the transaction that enqueued a job can cancel it
BEGIN;
SELECT tq_enqueue('new') AS job \gset
SELECT tq_cancel(:job);
SELECT state FROM tq_get(:job);
COMMIT;
SELECT state FROM tq_get(:job);
SELECT count(*) FROM tq_claim('new');
BEGIN;
SELECT tq_enqueue('new') AS job \gset
SAVEPOINT one;
SELECT tq_cancel(:job);
ROLLBACK TO one;
SELECT tq_reschedule(:job, priority => 1);
COMMIT;
SELECT id = :job AS got_it, priority FROM tq_claim('new');
SELECT tq_cancel(tq_enqueue('new'));
SELECT count(*) FROM tq_claim('new');
-- also if it enqueued very many jobs
SET tq.publish_limit = 10;
BEGIN;
SELECT min(id) AS low, max(id) AS high FROM unnest(tq_enqueue_many('bulk', array_fill('{}'::jsonb, ARRAY[40]))) id \gset
SELECT tq_cancel(:low), tq_reschedule(:high, priority => 1), tq_reschedule(:low + 1, now() + interval '1 hour');
SAVEPOINT one;
SELECT tq_cancel(:low + 2), tq_cancel(:high);
ROLLBACK TO one;
SELECT try(format('SELECT tq_cancel(%s)', :low)) \g (tuples_only=on format=unaligned)
COMMIT;
RESET tq.publish_limit;
SELECT id = :high AS rescheduled_comes_first, priority FROM tq_claim('bulk');
-- (the scheduler reads back the jobs beyond tq.publish_limit)
CREATE FUNCTION claim_all(queue text, jobs int) RETURNS SETOF bigint LANGUAGE plpgsql SET tq.max_pinned_wait = '1 h' AS $$
DECLARE
	job bigint;
BEGIN
	WHILE jobs > 0 LOOP
		FOR job IN SELECT id FROM tq_claim(queue, jobs, wait => '3 min') LOOP
			jobs := jobs - 1;
			RETURN NEXT job;
		END LOOP;
		EXIT WHEN NOT FOUND;
	END LOOP;
END
$$;
SELECT count(*), min(id) = :low + 2 AS from_third, max(id) = :high - 1 AS to_last_but_one FROM claim_all('bulk', 37) AS id;
SELECT count(*) AS left_over FROM tq_claim('bulk');

-- reschedule
SELECT tq_enqueue('when', priority => 5) AS job \gset
SELECT tq_enqueue('when', priority => 6) AS other \gset
SELECT tq_reschedule(:job, now() + interval '1 hour');
SELECT state, run_at > now() + interval '30 minutes' AS later, priority FROM tq_get(:job);
SELECT tq_reschedule(:job, priority => 7);
SELECT state, run_at > now() + interval '30 minutes' AS later, priority FROM tq_get(:job);
SELECT tq_reschedule(:job, now() - interval '1 hour');
SELECT state, run_at < now() AS earlier, priority FROM tq_get(:job);
SELECT id = :other AS other, id = :job AS job, priority FROM tq_claim('when', 2);
SELECT try(format('SELECT tq_reschedule(%s, now())', :job)) \g (tuples_only=on format=unaligned)
SELECT try(format('SELECT tq_reschedule(%s)', :job)) \g (tuples_only=on format=unaligned)
SELECT step, event, retry_at IS NOT NULL AS retry_at, detail FROM tq_history(:job) WHERE event = 'rescheduled';

-- a new life
SELECT tq_enqueue('lives', max_attempts => 2) AS job \gset
SELECT lease FROM tq_claim('lives') \gset
SELECT tq_fail(:job, :lease, 'first', retry_in => '0 s');
SELECT lease FROM tq_claim('lives') \gset
SELECT tq_fail(:job, :lease, 'second');
SELECT tq_retry(:job);
SELECT state, attempt, error FROM tq_get(:job);
SELECT attempt, lease FROM tq_claim('lives') \gset
SELECT tq_bury(:job, :lease, 'by hand');
BEGIN;
SELECT tq_retry(:job);
SELECT tq_cancel(:job);
SELECT tq_retry(:job);
SELECT state FROM tq_get(:job);
ROLLBACK;
SELECT state, error FROM tq_get(:job);
SELECT story(:job);

-- claimed, ended and retried in one transaction
SELECT tq_enqueue('chain') AS job \gset
BEGIN;
SELECT lease FROM tq_claim('chain') \gset
SELECT tq_fail(:job, :lease, 'again', retry_in => '1 hour');
SELECT tq_reschedule(:job, priority => 3);
SELECT tq_retry(:job);
COMMIT;
SELECT state, attempt, priority FROM tq_get(:job);
SELECT story(:job);

-- the forms for many jobs
SELECT tq_enqueue('many', jsonb_build_object('n', n), kind => CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, priority => n)
	IS NOT NULL AS enqueued FROM generate_series(1, 12) n;
SELECT count(tq_fail(id, lease, 'boo', fatal => payload ->> 'n' <> '12', retry_in => '1 hour')) FROM tq_claim('many', 12);
SELECT tq_retry_many('many', kind => 'even', max_jobs => 2);
SELECT payload ->> 'n' AS n, attempt FROM tq_claim('many', 100);
SELECT tq_retry_many('many', kind => 'even');
SELECT payload ->> 'n' AS n, attempt FROM tq_claim('many', 100);
SELECT tq_retry_many('many', since => now() + interval '1 hour');
SELECT tq_retry_many('many', 'buried');
SELECT tq_retry_many('many', 'delayed');
SELECT payload ->> 'n' AS n, attempt FROM tq_claim('many', 100);
SELECT tq_retry_many('many', max_jobs => 4, to_queue => 'elsewhere');
SELECT kind, payload ->> 'n' AS n, priority, attempt FROM tq_claim('elsewhere', 100);
SELECT count(*) FROM tq.job j, tq_history(j.id) h WHERE event = 'enqueued' AND reason = 'copy of job ' || j.origin
	AND queue_id = (SELECT id FROM tq.queue WHERE name = 'elsewhere');
BEGIN;
SELECT tq_retry_many('many');
SELECT tq_retry_many('many');
ROLLBACK;
SELECT tq_retry_many('many');
SELECT count(*) FROM tq_claim('many', 100);
SELECT try('SELECT tq_retry_many(''nothing here'')') \g (tuples_only=on format=unaligned)
SELECT try('SELECT tq_retry_many(''many'', ''succeeded'')') \g (tuples_only=on format=unaligned)

DROP FUNCTION try, story;
