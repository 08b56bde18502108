-- Policies of a job, its queue and the server: the most specific one applies.
\pset null -
SET timezone = 'UTC';
SET intervalstyle = 'postgres';

CREATE VIEW applied AS
	SELECT id, key, p ->> 'value' AS value, p ->> 'from' AS "from" FROM tq_jobs j, LATERAL (SELECT policies FROM tq_get(j.id)) g, jsonb_each(policies) e (key, p)
	WHERE queue = 'p_reports' AND key <> 'retry';

-- policies of the server and the queue
SELECT tq_create_queue('p_reports', '{"timeout": "10 min", "max_attempts": 5, "retry": {"policy": "list", "delays": ["1 min", "1 day"]}}');
SELECT tq_enqueue('p_reports') AS job \gset
SELECT key, value, "from" FROM applied WHERE id = :job ORDER BY 1;
SELECT jsonb_pretty(policies -> 'retry') AS retry FROM tq_get(:job);

-- policies of the job
SELECT tq_enqueue('p_reports', priority => 1, max_attempts => 2, timeout => '2 h', expires_at => '2100-01-01', retry => '{"jitter": 0}', group_key => 'g',
	options => '{"lease": "30 s", "weight": 2, "tags": ["year", "large"]}') AS own \gset
SELECT key, value, "from" FROM applied WHERE id = :own ORDER BY 1;
SELECT group_key, unique_key, expires_at, tags, origin FROM tq_get(:own);

-- a queue's settings apply to waiting jobs too, except where a job has its own value
SELECT tq_alter_queue('p_reports', '{"timeout": "20 min", "lease": "1 min", "max_attempts": null, "on_lost": "bury", "strict_timeout": true}');
SELECT a.key, a.value, a."from", o.value, o."from" FROM applied a JOIN applied o USING (key)
	WHERE a.id = :job AND o.id = :own AND key IN ('timeout', 'lease', 'max_attempts', 'on_lost', 'strict_timeout') ORDER BY 1;
BEGIN;
SET LOCAL tq.max_attempts = 3;
SELECT value, "from" FROM applied WHERE id = :job AND key = 'max_attempts';
ROLLBACK;

-- errors show the accepted values
\set VERBOSITY default
SELECT tq_alter_queue('p_reports', '{"rate": "5 per minute"}');
SELECT tq_alter_queue('p_reports', '{"on_lost": "drop"}');
SELECT tq_alter_queue('p_reports', '{"lease": "1 month"}');
SELECT tq_alter_queue('p_reports', '{"fair": 1}');
SELECT tq_alter_queue('p_reports', '{"weight": 0}');
SELECT tq_alter_queue('p_reports', '{"max_running": 1.5}');
SELECT tq_alter_queue('p_reports', '{"rate": "1/d", "burst": 5000}');
SELECT tq_alter_queue('p_reports', '{"timout": "20 min"}');
SELECT tq_enqueue('p_none', options => '{"tag": "x"}');
SELECT tq_enqueue('p_none', options => '{"tags": "x"}');
SELECT tq_enqueue('p_none', retry => '{"policy": "list"}');
SELECT tq_enqueue('p_none', run_at => '2040-01-01 00:00+00', expires_at => '2039-01-01 00:00+00');
SELECT tq_enqueue('p_none', group_key => repeat('x', 128));
SELECT settings FROM tq_queues WHERE queue = 'p_reports';
SELECT count(*) FROM tq_queues WHERE queue = 'p_none';

-- infinity is a time of its own
SELECT tq_alter_queue('p_reports', '{"expires_in": "1 h"}');
SELECT tq_enqueue('p_reports') AS job \gset
SELECT expires_at - enqueued_at AS after, policies -> 'expires_at' -> 'from' AS "from" FROM tq_get(:job);
SELECT tq_enqueue('p_reports', expires_at => 'infinity') AS job \gset
SELECT expires_at, policies -> 'expires_at' AS "from" FROM tq_get(:job);

DROP VIEW applied;
SELECT count(*) FROM tq_jobs WHERE queue = 'p_reports' AND tq_cancel(id) = 'cancelled';
SELECT tq_drop_queue('p_reports');
