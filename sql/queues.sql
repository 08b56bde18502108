-- Queues are created, changed, paused and dropped, always in the caller's transaction.
\pset null -
SET timezone = 'UTC';

-- create
SELECT tq_create_queue('q_mail', '{"priority": 5, "lease": "90 s", "max_attempts": 2, "retry": {"policy": "fixed", "delay": "1 h", "jitter": 0}}');
SELECT queue, state, ready, delayed, running, live, in_memory, on_disk, waiting, paused_until, kinds, settings FROM tq_queues WHERE queue = 'q_mail';
SELECT tq_create_queue('q_mail');
SELECT tq_create_queue(NULL);
SELECT tq_create_queue('');
SELECT tq_create_queue(repeat('x', 64));
SELECT tq_create_queue(E'new\nline');
SELECT tq_create_queue('q_none', NULL);
SELECT tq_create_queue('q_none', '[]');
SELECT tq_create_queue('q_none', '{"colour": "red"}');
SELECT tq_create_queue('q_none', '{"notify": 1}');
SELECT tq_create_queue('q_none', '{"priority": null}');
SELECT settings FROM tq_queues WHERE queue = 'q_none';
SELECT tq_drop_queue('q_none');

-- its settings apply
SELECT tq_enqueue('q_mail') AS job \gset
SELECT priority, max_attempts, lease, lease_expires_at BETWEEN now() + interval '89 s' AND clock_timestamp() + interval '91 s' AS leased
	FROM tq_claim('q_mail') \gset
SELECT :priority AS priority, :max_attempts AS max_attempts, :'leased' AS leased;
SELECT tq_fail(:job, :lease, 'once');
SELECT run_at - at = interval '1 h' AS in_an_hour FROM tq_get(:job), tq_history(:job) WHERE event = 'failed';
SELECT tq_retry(:job);
SELECT lease FROM tq_claim('q_mail') \gset
SELECT tq_fail(:job, :lease, 'twice');

-- change: keys are merged, and null resets a key to the default
SELECT tq_alter_queue('q_mail', '{"priority": null, "max_attempts": 7}');
SELECT settings FROM tq_queues WHERE queue = 'q_mail';
SELECT tq_enqueue('q_mail') AS job \gset
SELECT priority, max_attempts, lease FROM tq_claim('q_mail') \gset
SELECT :priority AS priority, :max_attempts AS max_attempts, tq_complete(:job, :lease);
SELECT tq_alter_queue('q_mail', '{"priority": "high"}');
SELECT tq_alter_queue('q_mail', NULL);
SELECT tq_alter_queue('q_unheard_of', '{}');
SELECT settings FROM tq_queues WHERE queue = 'q_mail';

-- in a transaction, with savepoints
BEGIN;
SELECT tq_create_queue('q_undone');
SELECT tq_enqueue('q_undone') IS NOT NULL AS enqueued;
ROLLBACK;
SELECT count(*) FROM tq_queues WHERE queue = 'q_undone';
BEGIN;
SELECT tq_create_queue('q_done', '{"priority": 1}');
SELECT tq_enqueue('q_done') AS job \gset
SAVEPOINT s;
SELECT tq_alter_queue('q_done', '{"priority": 2}');
SELECT tq_pause('q_done');
ROLLBACK TO s;
COMMIT;
SELECT state, ready, settings, paused_until FROM tq_queues WHERE queue = 'q_done';
SELECT priority, tq_complete(id, lease) FROM tq_claim('q_done');
BEGIN;
SAVEPOINT s;
SELECT tq_create_queue('q_twice', '{"priority": 3}');
ROLLBACK TO s;
SELECT tq_create_queue('q_twice', '{"priority": 4}');
COMMIT;
SELECT settings FROM tq_queues WHERE queue = 'q_twice';
BEGIN;
SAVEPOINT s;
SELECT tq_create_queue('q_made_by_use', '{"priority": 3}');
ROLLBACK TO s;
SELECT tq_enqueue('q_made_by_use') IS NOT NULL AS enqueued;
COMMIT;
SELECT priority, tq_complete(id, lease) FROM tq_claim('q_made_by_use');
BEGIN;
SELECT tq_alter_queue('q_done', '{"priority": 9}');
SELECT tq_alter_queue('q_done', '{"max_attempts": 9}');
SELECT tq_pause('q_done');
ROLLBACK;
SELECT settings, paused_until FROM tq_queues WHERE queue = 'q_done';
BEGIN;
SELECT tq_alter_queue('q_done', '{"priority": 9}');
SELECT tq_alter_queue('q_done', '{"max_attempts": 9}');
COMMIT;
SELECT settings FROM tq_queues WHERE queue = 'q_done';

-- pause: no job of the queue is claimed, everything else continues
SELECT tq_enqueue('q_done', kind => 'letter') IS NOT NULL, tq_enqueue('q_done', kind => 'parcel') IS NOT NULL, tq_enqueue('q_done') IS NOT NULL;
SELECT tq_pause('q_done');
SELECT ready, paused_until, kinds FROM tq_queues WHERE queue = 'q_done';
SELECT count(*) FROM tq_claim('q_done', 10);
SELECT tq_pause('q_done', 'letter');
SELECT tq_resume('q_done');
SELECT kind, tq_complete(id, lease) FROM tq_claim('q_done', 10);
SELECT paused_until, kinds FROM tq_queues WHERE queue = 'q_done';
SELECT tq_resume('q_done', 'parcel');
SELECT tq_resume('q_done', 'letter');
SELECT kind, tq_complete(id, lease) FROM tq_claim('q_done', 10);
SELECT tq_pause('q_done', until => clock_timestamp() + interval '24 h');
SELECT paused_until BETWEEN clock_timestamp() + interval '23 h' AND clock_timestamp() + interval '24 h' AS tomorrow FROM tq_queues WHERE queue = 'q_done';
SELECT tq_resume('q_done');
SELECT tq_resume('q_done');
SELECT tq_pause('q_done', until => '2001-01-01');
SELECT tq_pause('q_done', until => 'infinity');
SELECT paused_until FROM tq_queues WHERE queue = 'q_done';
SELECT tq_resume('q_done');
SELECT tq_pause('q_done', until => '-infinity');
SELECT tq_pause('q_done', '');
SELECT tq_pause('q_unheard_of');
SELECT tq_resume('q_unheard_of', 'letter');
SELECT tq_pause(NULL);
-- a kind without any job
SELECT tq_pause('q_done', 'telegram');
SELECT tq_enqueue('q_done', kind => 'telegram') IS NOT NULL AS enqueued;
SELECT tq_pause('q_done', 'telegram');
SET client_min_messages = notice;
SELECT tq_resume('q_done', 'telegrm');
RESET client_min_messages;
SELECT count(*) FROM tq_claim('q_done', 10);
SELECT tq_resume('q_done', 'telegram');
SELECT kind, tq_complete(id, lease) FROM tq_claim('q_done', 10);

-- drop: refused while the queue has jobs
SELECT tq_enqueue('q_mail') AS job \gset
SELECT tq_drop_queue('q_mail');
SELECT tq_cancel(:job);
BEGIN;
SELECT tq_enqueue('q_mail') IS NOT NULL AS enqueued;
SELECT tq_drop_queue('q_mail');
ROLLBACK;
BEGIN;
SELECT tq_drop_queue('q_mail');
SELECT tq_enqueue('q_mail');
ROLLBACK;
BEGIN;
SELECT tq_drop_queue('q_mail');
SELECT tq_drop_queue('q_mail');
ROLLBACK;
BEGIN;
SELECT tq_drop_queue('q_mail');
SAVEPOINT s;
SELECT tq_create_queue('q_mail');
ROLLBACK TO s;
ROLLBACK;
SELECT state FROM tq_queues WHERE queue = 'q_mail';
SELECT tq_drop_queue('q_mail');
SELECT tq_drop_queue('q_unheard_of');
-- a new queue of the same name has its own settings
SELECT tq_create_queue('q_mail', '{"priority": 50}');
SELECT state, ready, settings FROM tq_queues WHERE queue = 'q_mail';
SELECT state, queue FROM tq_get(:job);

-- a first use creates a queue only if the setting is on
SET tq.auto_create_queues = off;
SELECT tq_enqueue('q_unheard_of');
SELECT count(*) FROM tq_claim('q_unheard_of');
CALL tq_wait(ARRAY['q_unheard_of'], '1 h');
RESET tq.auto_create_queues;
BEGIN READ ONLY;
SELECT tq_create_queue('q_unheard_of');
ROLLBACK;
BEGIN READ ONLY;
SELECT tq_pause('q_mail');
ROLLBACK;


-- the state of all queues
SELECT item, value, hint FROM tq_health() WHERE status = 'error';
SELECT item, expected, found FROM tq_check() WHERE expected IS NOT NULL;
SELECT tq_reload();
SELECT enqueued, claimed, succeeded, failed, lost, dead, released, cancelled FROM tq_stats() WHERE queue = 'q_done';

SELECT tq_drop_queue(queue) FROM tq_queues WHERE queue ~ '^q_';
