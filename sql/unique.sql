-- Unique keys from the user's side. The first id varies, so ids are kept in variables and left out of messages.
\pset null -
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
		coalesce(E'\n' || nullif(regexp_replace(detail, '\m\d+\M', 'N', 'g'), ''), '') || coalesce(E'\n' || nullif(hint, ''), '');
END
$$;

-- while a job with the key has not ended, the same id comes back
SELECT tq_enqueue('unique_mail', '{"to": "ann"}', unique_key => 'welcome ann') AS job \gset
SELECT tq_enqueue('unique_mail', '{"to": "ann"}', unique_key => 'welcome ann') = :job AS same;
SELECT tq_enqueue('unique_mail', '{"to": "bob"}', unique_key => 'welcome bob', delay => '1 hour') = :job AS same;
SELECT tq_enqueue('unique_other', unique_key => 'welcome ann') = :job AS same;
SELECT tq_enqueue('unique_mail', unique_key => 'welcome ann', unique_mode => 'ignore');
SELECT try($$SELECT tq_enqueue('unique_mail', unique_key => 'welcome ann', unique_mode => 'error')$$) \g (tuples_only=on format=unaligned)
SELECT unique_key FROM tq_get(:job);

-- replace
SELECT tq_enqueue('unique_mail', '{"to": "ann", "again": true}', unique_key => 'welcome ann', unique_mode => 'replace', delay => '1 hour') AS job2 \gset
SELECT state FROM tq_get(:job);
SELECT replace(reason, :'job2', 'N') AS reason FROM tq_history(:job) WHERE event = 'cancelled';
SELECT state, payload, origin = :job AS origin FROM tq_get(:job2);
SELECT try(format('SELECT tq_retry(%s)', :job)) \g (tuples_only=on format=unaligned)

-- replace, with the time of the first job
SELECT tq_enqueue('unique_mail', '{"to": "ann", "again": 2}', unique_key => 'welcome ann', unique_mode => 'keep_run_at') AS job3 \gset
SELECT a.state, b.state, b.payload, a.run_at = b.run_at AS same_time FROM tq_get(:job2) a, tq_get(:job3) b;

-- a running job is not replaced, and its key is free when it has ended
SELECT tq_reschedule(:job3, now());
SELECT id = :job3 AS is_it, lease FROM tq_claim('unique_mail') \gset
SELECT tq_enqueue('unique_mail', unique_key => 'welcome ann', unique_mode => 'replace') = :job3 AS same;
SELECT tq_complete(:job3, :lease);
SELECT tq_enqueue('unique_mail', unique_key => 'welcome ann') > :job3 AS another;

-- a window after the enqueue
SELECT tq_create_queue('unique_reports', '{"unique_for": "1 hour"}');
SELECT tq_enqueue('unique_reports', unique_key => 'daily') AS job \gset
SELECT tq_complete(id, lease) FROM tq_claim('unique_reports');
SELECT tq_enqueue('unique_reports', unique_key => 'daily') = :job AS same;
SELECT try($$SELECT regexp_replace(tq_enqueue('unique_reports', unique_key => 'daily', unique_mode => 'error')::text, '\d', '')$$) ~
	'^TQ008: unique key "daily" is taken in queue "unique_reports"\nJob N has ended, but keeps its key until .*\.\ntq_free_key' AS says_until;
SELECT tq_enqueue('unique_reports', unique_key => 'hourly', options => '{"unique_for": "0"}') AS job \gset
SELECT count(*) FROM tq_claim('unique_reports');
SELECT tq_complete(id, lease) FROM tq_running WHERE queue = 'unique_reports';
SELECT tq_enqueue('unique_reports', unique_key => 'hourly') > :job AS another;

-- many at once
SELECT tq_enqueue_many('unique_many', ARRAY['1', '2', '3', '4']::jsonb[], unique_mode => 'ignore', unique_keys => ARRAY['b', 'a', NULL, 'b']) AS ids \gset
SELECT n, CASE WHEN id IS NOT NULL THEN (SELECT coalesce(unique_key, 'no key') FROM tq_get(id)) END AS key
	FROM unnest(:'ids'::bigint[]) WITH ORDINALITY i (id, n) ORDER BY n;

-- errors
SELECT try($$SELECT tq_enqueue('unique_mail', unique_key => '')$$) \g (tuples_only=on format=unaligned)
SELECT try($$SELECT tq_enqueue('unique_mail', unique_key => repeat('k', 256))$$) \g (tuples_only=on format=unaligned)
SELECT tq_enqueue('unique_mail', unique_key => repeat('k', 255)) > 0 AS fits;
SELECT try($$SELECT tq_enqueue('unique_mail', unique_key => E'a\nb')$$) \g (tuples_only=on format=unaligned)
SELECT try($$SELECT tq_enqueue('unique_mail', unique_key => 'k', unique_mode => 'sometimes')$$) \g (tuples_only=on format=unaligned)
SELECT try($$SELECT tq_enqueue_many('unique_mail', ARRAY['1']::jsonb[], unique_keys => ARRAY['a', 'b'])$$) \g (tuples_only=on format=unaligned)
DROP FUNCTION try;
