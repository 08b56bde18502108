-- How jobs end, and what can follow: dead letters, retries in bulk, purges, and why a job does not run. The first id varies,
-- so the output has no ids.
\pset null -
SET timezone = 'UTC';
CREATE FUNCTION masked(sentence text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(regexp_replace(regexp_replace(sentence, '\m(J|j)ob \d+', '\1ob N', 'g'), '\((\d+)\)', '(N)', 'g'),
		'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00', 'TIME', 'g')
$$;
CREATE FUNCTION story(job bigint) RETURNS text LANGUAGE sql AS
	$$SELECT string_agg(event || coalesce(' (' || masked(reason) || ')', ''), ', ' ORDER BY step) FROM tq_history(job)
		WHERE event <> 'claimed'$$;

CREATE FUNCTION refused(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN sqlstate || ': ' || masked(sqlerrm) || coalesce('; ' || nullif(hint, ''), '');
END
$$;

-- dead letters: the reason, the last error, the worker, and the time until which they are kept
SELECT tq_create_queue('e_dead', '{"max_attempts": 2, "dead_retention": "30 d"}');
SELECT tq_enqueue('e_dead', '{"n": 1}', kind => 'mail') AS one \gset
SELECT tq_enqueue('e_dead', '{"n": 2}') AS two \gset
SELECT tq_enqueue('e_dead', '{"n": 3}', kind => 'mail', priority => 5, max_attempts => 7) AS three \gset
SELECT count(tq_fail(id, lease, 'first', '{"code": 1}', retry_in => '0 s')) FROM tq_claim('e_dead', 3, worker => 'ann');
SELECT tq_bury(id, lease, 'look at it') FROM tq_claim('e_dead', worker => 'bob');
SELECT tq_fail(id, lease, 'second', '{"code": 2}') FROM tq_claim('e_dead', worker => 'bob');
SELECT tq_fail(id, lease, 'no such address', fatal => true) FROM tq_claim('e_dead');
SELECT kind, state, priority, attempts, max_attempts, reason, detail, last_error, worker FROM tq_dead WHERE queue = 'e_dead' ORDER BY id;
SELECT enqueued_at <= claimed_at AS claimed, claimed_at <= died_at AS died, kept_until - died_at AS kept FROM tq_dead
	WHERE queue = 'e_dead' ORDER BY id;

-- to another queue: each job once, and each job names the other
SELECT tq_retry_many('e_dead', kind => 'mail', to_queue => 'e_again');
SELECT tq_retry_many('e_dead', state => 'buried', kind => 'mail', to_queue => 'e_again');
SELECT tq_retry_many('e_dead', kind => 'mail', to_queue => 'e_again');
SELECT g.state, g.error = 'retried as job ' || c.id || ' in queue e_again' AS told FROM tq_jobs c, tq.job j, tq_get(j.origin) g
	WHERE c.queue = 'e_again' AND j.id = c.id AND j.origin IS NOT NULL ORDER BY c.id;
SELECT kind, payload, attempt, priority FROM tq_claim('e_again', 10) ORDER BY id;
SELECT story(:one);
SELECT story(id) FROM tq_jobs WHERE queue = 'e_again' ORDER BY id;
SELECT count(*) FROM tq_jobs WHERE id IN (:one, :three);
SELECT payload FROM tq_dead d, tq_get(d.id) WHERE d.queue = 'e_dead';
SELECT refused(format('SELECT tq_retry(%s)', :one));
BEGIN;
SELECT tq_retry_many('e_dead', to_queue => 'e_again');
SELECT tq_retry_many('e_dead', to_queue => 'e_again');
SELECT state FROM tq_get(:two);
ROLLBACK;
SELECT state FROM tq_get(:two);
SELECT tq_retry(:two);
SELECT tq_cancel(:two);
SELECT tq_retry_many('e_dead', state => 'cancelled', to_queue => 'e_again');

-- purge: by state, never a running job, and no state that is not named
SELECT tq_create_queue('e_purge');
SELECT count(tq_enqueue('e_purge', kind => CASE WHEN i % 2 = 0 THEN 'even' END, delay => CASE WHEN i > 4 THEN interval '1 h' END))
	FROM generate_series(1, 6) i;
SELECT tq_complete(id, lease) FROM tq_claim('e_purge');
SELECT tq_fail(id, lease, 'x', fatal => true) FROM tq_claim('e_purge');
SELECT id AS running FROM tq_claim('e_purge') \gset
SELECT state, count(*) FROM tq_jobs WHERE queue = 'e_purge' GROUP BY 1 ORDER BY 1;
SELECT tq_purge('e_purge', 'running');
SELECT tq_purge('e_purge', 'everything');
SELECT tq_purge('e_purge', NULL);
SELECT tq_purge(NULL, 'all');
SELECT tq_purge('e_nowhere', 'all');
SELECT tq_purge('e_purge', 'buried');
BEGIN;
SELECT tq_purge('e_purge', 'all');
SELECT tq_purge('e_purge', 'all');
SELECT state, count(*) FROM tq_jobs WHERE queue = 'e_purge' GROUP BY 1 ORDER BY 1;
ROLLBACK;
BEGIN;
SELECT tq_enqueue('e_purge') AS own \gset
SAVEPOINT one;
SELECT tq_purge('e_purge', 'ready');
SELECT state FROM tq_get(:own);
ROLLBACK TO one;
SELECT tq_purge('e_purge', 'ready');
SELECT refused(format('SELECT tq_retry(%s)', :own));
ROLLBACK;
SELECT state, count(*) FROM tq_jobs WHERE queue = 'e_purge' GROUP BY 1 ORDER BY 1;
SELECT tq_purge('e_purge', 'ready');
SELECT count(*) FROM tq_claim('e_purge', 10);
SELECT tq_purge('e_purge', 'delayed');
SELECT id AS dead FROM tq_dead WHERE queue = 'e_purge' \gset
SELECT tq_purge('e_purge', 'dead');
SELECT count(*) FROM tq_dead WHERE queue = 'e_purge';
SELECT state, finished_at <= clock_timestamp() AS finished FROM tq_get(:dead);
SELECT story(:dead);
SELECT tq_retry_many('e_purge');
SELECT tq_purge('e_purge', 'all');
SELECT state, count(*) FROM tq_jobs WHERE queue = 'e_purge' GROUP BY 1 ORDER BY 1;
SELECT live, running, enqueued, succeeded, dead, cancelled FROM tq_stats() WHERE queue = 'e_purge';
SELECT tq_drop_queue('e_purge');
SELECT tq_complete(:running, lease) FROM tq_running WHERE id = :running;
SELECT tq_drop_queue('e_purge');

-- why is it not running?
SELECT tq_enqueue('e_why', kind => 'mail') AS job \gset
SELECT masked(tq_explain(:job));
SELECT count(*) FROM tq_claim('e_why', kinds => '{sms}');
SELECT masked(tq_explain(:job)) ~ 'no worker has asked' AS unasked;
SELECT tq_pause('e_why', until => '2100-01-01');
SELECT regexp_replace(masked(tq_explain(:job)), 'in \d+ d', 'in N d');
SELECT tq_pause('e_why', kind => 'mail');
SELECT tq_resume('e_why');
SELECT masked(tq_explain(:job));
SELECT tq_resume('e_why', kind => 'mail');
BEGIN;
SELECT id = :job AS got_it FROM tq_claim('e_why', worker => 'ann', lease_for => '1 h');
SELECT masked(tq_explain(:job)) ~ 'in the open transaction of process \d+, and has a lease' AS open;
ROLLBACK;
SELECT regexp_replace(masked(tq_explain(:job)), '\d+ s ago', 'N s ago');
SELECT tq_enqueue('e_why', kind => 'mail', priority => 1) AS first \gset
SELECT count(*) FROM tq_claim('e_why', kinds => '{sms}');
SELECT count(*) FROM (SELECT tq_claim('e_why', kinds => '{mail}') OFFSET 0) c;
SELECT lease FROM tq_running WHERE id = :first \gset
SELECT masked(tq_explain(:first));
SELECT tq_cancel(:first);
SELECT masked(tq_explain(:first));
BEGIN;
SELECT tq_complete(:first, :lease);
SELECT masked(tq_explain(:first));
COMMIT;
SELECT masked(tq_explain(:first));
SELECT lease FROM tq_claim('e_why', worker => 'ann') \gset
SELECT tq_fail(:job, :lease, 'smtp: 451 "later"', retry_in => '3650 s');
SELECT masked(tq_explain(:job));
SELECT tq_reschedule(:job, clock_timestamp() + interval '7250 s');
SELECT masked(tq_explain(:job));
SELECT tq_retry(:job);
SELECT lease FROM tq_claim('e_why', worker => 'ann') \gset
SELECT tq_release(:job, :lease, '3650 s');
SELECT masked(tq_explain(:job));
SELECT tq_retry(:job);
SELECT lease FROM tq_claim('e_why', worker => 'ann') \gset
SELECT tq_fail(:job, :lease, 'no such address', fatal => true);
SELECT masked(tq_explain(:job));
SELECT tq_retry(:job);
SELECT lease FROM tq_claim('e_why') \gset
SELECT tq_bury(:job, :lease, 'look at it');
SELECT masked(tq_explain(:job));
SELECT tq_retry(:job);
SELECT tq_cancel(:job, 'not needed');
SELECT masked(tq_explain(:job));
SELECT tq_purge('e_why', 'cancelled');
SELECT masked(tq_explain(:job));
SELECT tq_enqueue('e_why', delay => '25 h 1 min') AS later \gset
SELECT masked(tq_explain(:later));
BEGIN;
SELECT tq_cancel(:later);
SELECT masked(tq_explain(:later));
SELECT tq_enqueue('e_why') AS own \gset
SELECT masked(tq_explain(:own));
ROLLBACK;

-- limits, rates and groups
SELECT tq_create_queue('e_limits', '{"max_running": 1}');
SELECT tq_enqueue('e_limits') AS one, tq_enqueue('e_limits') AS two \gset
SELECT lease FROM tq_claim('e_limits', 2) \gset
SELECT masked(tq_explain(:two));
SELECT tq_complete(:one, :lease);
SELECT tq_alter_queue('e_limits', '{"max_running": null, "rate": "1/h"}');
SELECT count(*) FROM tq_claim('e_limits', 2);
SELECT tq_enqueue('e_limits') AS three \gset
SELECT masked(tq_explain(:three)) ~ 'has started as many as its rate allows; the next can start in (59|60) min' AS rate;
SELECT tq_create_queue('e_groups');
SELECT tq_enqueue('e_groups', group_key => 'g') AS one, tq_enqueue('e_groups', group_key => 'g') AS two,
	tq_enqueue('e_groups', group_key => 'g') AS three \gset
SELECT lease FROM tq_claim('e_groups', 2) \gset
SELECT masked(tq_explain(:two));
SELECT tq_explain(:two) ~ format('job %s of its group', :one) AS names_it;
SELECT tq_fail(:one, :lease, 'x', retry_in => '1 h');
SELECT masked(tq_explain(:two));
SELECT tq_explain(:two) ~ format('job %s of its group', :one) AS names_it;
SELECT tq_cancel(:one);
SELECT masked(tq_explain(:three));
SELECT tq_alter_queue('e_groups', '{"group_max_running": 2}');
SELECT tq_enqueue('e_groups', group_key => 'g') AS four \gset
SELECT count(*) FROM tq_claim('e_groups', 4);
SELECT masked(tq_explain(:four));
SELECT count(tq_complete(id, lease)) FROM tq_running WHERE queue = 'e_groups';
SELECT tq_alter_queue('e_groups', '{"group_rate": "1/h"}');
SELECT count(*) FROM tq_claim('e_groups', 4);
SELECT tq_enqueue('e_groups', group_key => 'g') AS five \gset
SELECT masked(tq_explain(:five)) ~ 'its group "g" has started as many as its group_rate allows; the next can start in (59|60) min' AS rate;

SELECT tq_explain(9000000000);
SELECT tq_explain(NULL);

SELECT count(tq_cancel(id)) FROM tq_jobs WHERE queue ~ '^e_' AND state IN ('ready', 'delayed');
SELECT count(tq_complete(id, lease)) FROM tq_running WHERE queue ~ '^e_';
SELECT count(tq_drop_queue(queue)) FROM tq_queues WHERE queue ~ '^e_' AND state = 'active';
DROP FUNCTION story, refused, masked;
