-- tq_metrics: its content, and that its values are right.
SET client_min_messages = warning;

SELECT * FROM no_plan();

CREATE FUNCTION clock(wall bigint, mono bigint) RETURNS void LANGUAGE c STRICT AS '$libdir/tq', 'tq_test_clock';

\ir lib/until.sql

-- The samples, parsed.
CREATE FUNCTION samples() RETURNS TABLE (n bigint, name text, labels text, value float8) LANGUAGE sql AS $$
	SELECT n, m[1], m[2], m[3]::float8
	FROM regexp_split_to_table(tq_metrics(), E'\n') WITH ORDINALITY l (line, n), regexp_match(line, '^([a-z_]+)(?:\{(.*)\})? (\S+)$') m
	WHERE line <> '' AND line !~ '^#'
$$;
CREATE FUNCTION metric(name text, labels text DEFAULT NULL) RETURNS float8 LANGUAGE sql AS $$
	SELECT s.value FROM samples() s WHERE s.name = $1 AND s.labels IS NOT DISTINCT FROM $2
$$;
-- The samples of one queue that are not 0, without the buckets.
CREATE FUNCTION of_queue(queue text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(concat_ws(' ', s.name, substring(s.labels FROM 'state="(.*?)"'), s.value), ', ' ORDER BY s.n)
	FROM samples() s WHERE s.labels ~ format('^queue="%s"', $1) AND s.value <> 0 AND s.name !~ '_(bucket|sum)$|age'
$$;

SELECT tq_activate() \g /dev/null
CALL until($$SELECT metric('tq_scheduler_up') = 1 AND metric('tq_loaded') = 1$$);

-- ---- the format

SELECT tq_create_queue('a'), tq_create_queue('b'), tq_create_queue(E'quo"te\\');
SELECT is((SELECT string_agg(line, ' / ') FROM regexp_split_to_table(tq_metrics(), E'\n') line
	WHERE line <> '' AND line !~ '^# (HELP [a-z_]+ .*\.|TYPE [a-z_]+ (gauge|counter|histogram))$'
		AND line !~ '^tq_[a-z_]+(\{[a-z]+="([^"\\]|\\.)*"(,[a-z]+="([^"\\]|\\.)*")*\})? [-0-9.]+$'), NULL, 'every line is a help, a type or a sample');
SELECT is((SELECT string_agg(DISTINCT s.name, ' ') FROM samples() s
	WHERE tq_metrics() !~ format(E'# HELP %1$s .*?\n# TYPE %1$s (gauge|counter)\n', s.name)
		AND tq_metrics() !~ format(E'# TYPE %s histogram\n', regexp_replace(s.name, '_(bucket|sum|count)$', ''))), NULL, 'every sample has both');
SELECT is((SELECT string_agg(DISTINCT s.name, ' ') FROM samples() s
	WHERE (s.name ~ '_total$') <> (tq_metrics() ~ format(E'# TYPE %s counter\n', s.name))), NULL, 'counters are called total');
SELECT is((SELECT count(*) - count(DISTINCT (s.name, s.labels)) FROM samples() s), 0::bigint, 'no sample comes twice');
SELECT is((SELECT string_agg(s.name || s.labels, ' ' ORDER BY s.n) FROM samples() s), (SELECT string_agg(s.name || s.labels, ' ' ORDER BY s.n) FROM samples() s),
	'the order is always the same');
SELECT is((SELECT string_agg(substring(s.labels FROM '^queue="(.*)"$'), ' ' ORDER BY s.n) FROM samples() s WHERE s.name = 'tq_waiting_sessions'),
	'a b quo\"te\\', 'queues by name, escaped');
SELECT is((SELECT s.labels FROM samples() s WHERE s.name = 'tq_info'), format('version="%s",database="%s"', extversion, current_database()), 'what these are of')
	FROM pg_extension WHERE extname = 'tq';

-- ---- jobs by state, and totals

SELECT is(of_queue('a'), NULL, 'a new queue');
SELECT count(tq_enqueue('a')) FROM generate_series(1, 9) \g /dev/null
SELECT tq_enqueue('a', delay => '10 min');
SELECT tq_enqueue('a', delay => '10 d');
SELECT is(of_queue('a'), 'tq_jobs ready 9, tq_jobs delayed 2, tq_jobs_on_disk 1, tq_jobs_enqueued_total 11', 'enqueued');
BEGIN;
SELECT count(*) FROM tq_claim('a', 5) \g /dev/null
SELECT is(of_queue('a'), 'tq_jobs ready 4, tq_jobs delayed 2, tq_jobs running 5, tq_jobs_on_disk 1, tq_jobs_enqueued_total 11', 'a claim that is open is not counted');
ROLLBACK;
SELECT is(of_queue('a'), 'tq_jobs ready 9, tq_jobs delayed 2, tq_jobs_on_disk 1, tq_jobs_enqueued_total 11', '... nor one that was rolled back');
SELECT cmp_ok(metric('tq_claims_rolled_back_total'), '=', 5::float8, '... but there');
CREATE TABLE held AS SELECT id, lease, row_number() OVER (ORDER BY id) AS n FROM tq_claim('a', 7, worker => 'w');
SELECT is(of_queue('a'), 'tq_jobs ready 2, tq_jobs delayed 2, tq_jobs running 7, tq_jobs_on_disk 1, tq_jobs_enqueued_total 11, tq_jobs_claimed_total 7, tq_job_wait_seconds_count 7',
	'claimed');
SELECT tq_complete(id, lease) FROM held WHERE n IN (1, 2);
SELECT tq_fail(id, lease, 'x', fatal => true) FROM held WHERE n = 3;
SELECT tq_fail(id, lease, 'x', retry_in => '1 h') FROM held WHERE n = 4;
SELECT tq_release(id, lease) FROM held WHERE n = 5;
SELECT tq_bury(id, lease, 'x') FROM held WHERE n = 6;
SELECT tq_cancel(max(id)) FROM tq_jobs WHERE state = 'delayed' AND queue = 'a';
SELECT is(of_queue('a'), concat_ws(', ', 'tq_jobs ready 3, tq_jobs delayed 2, tq_jobs running 1', 'tq_jobs_enqueued_total 11, tq_jobs_claimed_total 7',
	'tq_jobs_succeeded_total 2, tq_jobs_failed_total 2, tq_jobs_released_total 1, tq_jobs_dead_total 2, tq_jobs_cancelled_total 1',
	'tq_job_wait_seconds_count 7, tq_job_run_seconds_count 6'), 'ended in every way');
SELECT is(of_queue('b'), NULL, 'and nothing of it is another queue''s');
SELECT tq_pause('b');
SELECT is(of_queue('b'), 'tq_queue_paused 1', 'paused');
SELECT tq_resume('b');
SELECT cmp_ok(metric('tq_workers', 'state="seen"'), '=', 1::float8, 'one worker');
SELECT tq_drain('w');
SELECT cmp_ok(metric('tq_workers', 'state="draining"'), '=', 1::float8, '... that drains');
SELECT tq_undrain('w');
SELECT is((SELECT string_agg(m.name, ' ') FROM tq_stats() t, (VALUES ('enqueued'), ('claimed'), ('succeeded'), ('failed'), ('lost'), ('dead'), ('released'), ('cancelled'), ('expired')) m (name)
	WHERE t.queue = 'a' AND metric(format('tq_jobs_%s_total', m.name), 'queue="a"') IS DISTINCT FROM (to_jsonb(t) ->> m.name)::float8), NULL, 'the totals are those of tq_stats');

-- ---- times; the test moves the clocks

CREATE FUNCTION buckets(name text, queue text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(s.value::text, ' ' ORDER BY s.n) FROM samples() s WHERE s.name = $1 || '_bucket' AND s.labels ~ format('^queue="%s"', $2)
$$;
SELECT tq_create_queue('t', '{"lease": "30 d", "timeout": "0 s"}');
SELECT is(buckets('tq_job_wait_seconds', 't'), '0 0 0 0 0 0 0 0 0 0 0 0', 'empty');
SELECT count(tq_enqueue('t')) FROM generate_series(1, 3) \g /dev/null
SELECT tq_enqueue('t', priority => 5);
SELECT tq_enqueue('t', delay => '2 min', priority => -5);
SELECT cmp_ok(metric('tq_oldest_ready_age_seconds', 'queue="t"'), '<', 60::float8, 'the oldest is young');
SELECT clock(200000000, 200000000);
CALL until($$SELECT metric('tq_jobs', 'queue="t",state="ready"') = 5$$);
SELECT ok(metric('tq_oldest_ready_age_seconds', 'queue="t"') BETWEEN 200 AND 260, 'and grows older');
CREATE TABLE timed AS SELECT id, lease, priority FROM tq_claim('t');
SELECT is((SELECT priority FROM timed), -5, 'one that was delayed');
SELECT ok(metric('tq_job_wait_seconds_sum', 'queue="t"') BETWEEN 80 AND 140, '... has waited from its time on');
SELECT is(buckets('tq_job_wait_seconds', 't'), '0 0 0 0 0 0 0 0 1 1 1 1', '... one to five minutes');
INSERT INTO timed SELECT id, lease, priority FROM tq_claim('t', 3);
SELECT ok(metric('tq_oldest_ready_age_seconds', 'queue="t"') BETWEEN 200 AND 260, 'those of lesser priority count');
SELECT tq_reschedule(id, priority => 6) FROM tq_jobs WHERE queue = 't' AND state = 'ready';
INSERT INTO timed SELECT id, lease, priority FROM tq_claim('t');
SELECT cmp_ok(metric('tq_job_wait_seconds_count', 'queue="t"'), '=', 4::float8, 'a job that was rescheduled is not counted');
SELECT cmp_ok(metric('tq_oldest_ready_age_seconds', 'queue="t"'), '=', 0::float8, 'nothing is ready');
SELECT clock(1000000000, 1000000000);
SELECT tq_fail(id, lease, 'x', retry_in => '10 s') FROM timed WHERE priority = -5;
SELECT is(buckets('tq_job_run_seconds', 't'), '0 0 0 0 0 0 0 0 0 1 1 1', 'it ran five minutes to half an hour');
SELECT clock(1100000000, 1100000000);
CALL until($$SELECT metric('tq_jobs', 'queue="t",state="ready"') = 1$$);
SELECT ok(metric('tq_oldest_ready_age_seconds', 'queue="t"') BETWEEN 85 AND 145, 'one that is tried again is as old as its new time');
SELECT count(*) FROM tq_claim('t') \g /dev/null
SELECT cmp_ok(metric('tq_job_wait_seconds_count', 'queue="t"'), '=', 4::float8, '... and not counted');
SELECT tq_complete(id, lease) FROM timed WHERE priority NOT IN (-5, 6) LIMIT 1;
SELECT ok(metric('tq_job_run_seconds_sum', 'queue="t"') BETWEEN 1600 AND 1800, 'the sum of both');
SELECT clock(100000000000, 100000000000);
SELECT tq_complete(id, lease) FROM timed WHERE priority = 6;
SELECT is(buckets('tq_job_run_seconds', 't'), '0 0 0 0 0 0 0 0 0 2 2 3', 'longer than the last bound');
BEGIN;
SELECT tq_enqueue('t', kind => 'both');
COMMIT;
SELECT tq_complete(id, lease) FROM tq_claim('t', kinds => '{both}');
SELECT cmp_ok(metric('tq_job_run_seconds_count', 'queue="t"'), '=', 4::float8, 'claimed and completed by one transaction');
SELECT clock(0, 0);
SELECT tq_enqueue('t', kind => 'back');
SELECT value AS shortest FROM samples() WHERE name = 'tq_job_wait_seconds_bucket' AND labels = 'queue="t",le="0.001"' \gset
SELECT clock(-50000000, 0);
SELECT count(*) FROM tq_claim('t', kinds => '{back}') \g /dev/null
SELECT cmp_ok(metric('tq_job_wait_seconds_bucket', 'queue="t",le="0.001"'), '=', :shortest::float8 + 1, 'a clock that was set back makes no time negative');
SELECT clock(0, 0);

-- ---- tq_series

CREATE FUNCTION series(queue text, step interval = '1 min') RETURNS TABLE (text text) LANGUAGE sql AS $$
	SELECT concat_ws(' ', enqueued, claimed, succeeded, failed, lost, dead) FROM tq_series(queue, step => step)
	WHERE (enqueued, claimed, succeeded, failed, lost, dead) <> (0, 0, 0, 0, 0, 0) ORDER BY at
$$;
-- an hour apart, and later than all times before: the scheduler's monotonic clock never goes back. Rows of a day begin
-- at midnight UTC, which is half an hour after the first of these times, whenever the test runs.
SELECT (extract(epoch FROM date_trunc('day', t + interval '103600 s', 'UTC') + interval '23 h 30 min' - t) * 1000000)::bigint AS first, 3600000000 AS hour
	FROM clock_timestamp() t \gset
SELECT clock(:first, :first);
SELECT tq_create_queue('s', '{"lease": "1 d"}');
SELECT is_empty($$SELECT series('s')$$, 'a new queue did nothing');
SELECT is(count(*), 1440::bigint, 'a row for each minute of a day') FROM tq_series('s');
SELECT count(tq_enqueue('s')) FROM generate_series(1, 5) \g /dev/null
SELECT results_eq($$SELECT series('s', '1 day')$$, $$VALUES ('5 0 0 0 0 0')$$, 'what was not recorded yet is shown');
SELECT clock(:first + :hour, :first + :hour);
CALL until($$SELECT count(*) > 0 FROM tq_series('s') WHERE enqueued = 5 AND at < tq_now() - interval '58 min'$$);
SELECT ok(true, 'the scheduler records it at its minute');
BEGIN; -- all of this is counted in one minute
CREATE TABLE counted AS SELECT id, lease, row_number() OVER (ORDER BY id) AS n FROM tq_claim('s', 4);
SELECT tq_complete(id, lease) FROM counted WHERE n <= 2;
SELECT tq_fail(id, lease, 'x', fatal => true) FROM counted WHERE n = 3;
COMMIT;
SELECT clock(:first + 2 * :hour, :first + 2 * :hour);
CALL until($$SELECT count(*) > 0 FROM tq_series('s') WHERE claimed = 4 AND at < tq_now() - interval '58 min'$$);
SELECT tq_complete(id, lease) FROM counted WHERE n = 4;
SELECT results_eq($$SELECT series('s')$$, $$VALUES ('5 0 0 0 0 0'), ('0 4 2 1 0 1'), ('0 0 1 0 0 0')$$, 'each minute has its own events');
SELECT results_eq($$SELECT series('s', '1 day')$$, $$VALUES ('5 0 0 0 0 0'), ('0 4 3 1 0 1')$$, 'a longer step has their sum');
SELECT results_eq($$SELECT wait_p50 BETWEEN interval '30 min' AND interval '2 h', run_p50 IS NOT NULL FROM tq_series('s') WHERE claimed > 0$$,
	$$VALUES (true, true)$$, 'jobs waited an hour');
SELECT is(run_p99, NULL, 'no attempt ended in the first hour') FROM tq_series('s') WHERE enqueued = 5;
SELECT is((SELECT sum(enqueued) FROM tq_series()), (SELECT sum(t.enqueued) FROM tq_stats() q, tq_series(q.queue) t), 'null sums up all queues');
SELECT is(count(*), 60::bigint, 'an hour has 60 minutes') FROM tq_series('s', since => '1 hour');
SELECT throws_ok($$SELECT tq_series('nowhere')$$, 'TQ002', NULL, 'a queue that does not exist');
SELECT throws_ok($$SELECT tq_series(since => '2 days')$$, '22023', NULL, 'more than a day');
SELECT throws_ok($$SELECT tq_series(step => '10 s')$$, '22023', NULL, 'less than a minute');
SELECT clock(0, 0);

-- ---- the database

SELECT cmp_ok(metric('tq_memory_places_limit', 'place="job"'), '=', current_setting('tq.max_live_jobs')::float8, 'places');
SELECT cmp_ok(metric('tq_memory_places_used', 'place="queue"'), '>=', 4::float8, '... that are taken');
SELECT cmp_ok(metric('tq_shared_memory_bytes'), '=', (SELECT sum(allocated_size)::float8 FROM pg_shmem_allocations WHERE name ILIKE 'tq%'), 'memory');
SELECT cmp_ok(metric('tq_loads_total'), '>=', 1::float8, 'loaded');
SELECT ok(abs(metric('tq_load_timestamp_seconds') - extract(epoch FROM now())) < 3600, '... lately');
SELECT metric('tq_audits_total') AS audits \gset
SELECT count(*) FROM tq_check() \g /dev/null
SELECT cmp_ok(metric('tq_audits_total'), '>', :audits::float8, 'an audit');
SELECT is((SELECT sum(value) FROM samples() WHERE name = 'tq_audit_findings_total'), 0::float8, '... that found nothing');
SELECT cmp_ok(metric('tq_segments', 'state="open"'), '=', 1::float8, 'an open segment') FROM (SELECT) x WHERE metric('tq_segments', 'state="open"') > 0;
SELECT cmp_ok(metric('tq_xmin_age_transactions', 'holder="prepared_transaction"'), '=', 0::float8, 'nothing prepared');
SELECT cmp_ok(metric('tq_inactive'), '=', 0::float8, 'not inactive');
-- the function only reads, so it works in a read-only transaction
BEGIN TRANSACTION READ ONLY;
SELECT ok(tq_metrics() <> '', 'in a read-only transaction');
COMMIT;

SELECT * FROM finish();
