-- Heartbeats: progress, checkpoints, when they answer quiet, draining; the effects of each, and what undoes them.
SET client_min_messages = warning;
SET tq.max_pinned_wait = '1 h';

SELECT * FROM no_plan();

CREATE TABLE held (name text PRIMARY KEY, id bigint, lease bigint);

-- A running job of a named worker.
CREATE FUNCTION claim_job(name text, queue text DEFAULT 'beats', worker text DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
	INSERT INTO held SELECT name, c.id, c.lease FROM tq_claim(queue, worker => worker, lease_for => '1 hour', wait => '3 min') c
	ON CONFLICT ON CONSTRAINT held_pkey DO UPDATE SET id = excluded.id, lease = excluded.lease
$$;
CREATE PROCEDURE begin_job(name text, queue text DEFAULT 'beats', worker text DEFAULT NULL, kind text DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM tq_enqueue(queue, kind => kind);
	COMMIT;
	PERFORM claim_job(name, queue, worker);
END
$$;
CREATE FUNCTION beat(name text, progress jsonb DEFAULT NULL, checkpoint jsonb DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	SELECT b.action FROM held h, tq_heartbeat(h.id, h.lease, progress => beat.progress, checkpoint => beat.checkpoint) b
	WHERE h.name = beat.name
$$;
CREATE FUNCTION beat_many(name text) RETURNS text LANGUAGE sql AS $$
	SELECT b.action FROM held h, tq_heartbeat_many(ARRAY[h.id], ARRAY[h.lease]) b WHERE h.name = beat_many.name
$$;
CREATE FUNCTION progress_of(name text) RETURNS jsonb LANGUAGE sql AS
	'SELECT r.progress FROM held h JOIN tq_running r ON r.id = h.id WHERE h.name = progress_of.name';
CREATE FUNCTION checkpoint_of(name text) RETURNS jsonb LANGUAGE sql AS
	'SELECT g.checkpoint FROM held h, tq_get(h.id) g WHERE h.name = checkpoint_of.name';
CREATE FUNCTION state_of(name text) RETURNS text LANGUAGE sql AS
	'SELECT g.state FROM held h, tq_get(h.id) g WHERE h.name = state_of.name';
CREATE FUNCTION story(name text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(s.event, ' ' ORDER BY s.step) FROM held h, tq_history(h.id) s WHERE h.name = story.name AND s.event <> 'claimed'
$$;
CREATE FUNCTION end_job(name text, verb text DEFAULT 'complete') RETURNS text LANGUAGE sql AS $$
	SELECT CASE verb
		WHEN 'complete' THEN tq_complete(id, lease)
		WHEN 'fail' THEN tq_fail(id, lease, 'error', retry_in => '0')
		WHEN 'fatal' THEN tq_fail(id, lease, 'error', fatal => true)
		WHEN 'release' THEN tq_release(id, lease)
		WHEN 'bury' THEN tq_bury(id, lease, 'reason')
	END FROM held h WHERE h.name = end_job.name
$$;

-- ---- progress

CALL begin_job('p');
SELECT is(progress_of('p'), NULL, 'a job begins without progress');
SELECT is(beat('p', '{"percent": 10}'), 'run', 'a heartbeat reports some');
SELECT is(progress_of('p'), '{"percent": 10}', 'which tq_running shows');
SELECT is(beat('p'), 'run', 'one without');
SELECT is(progress_of('p'), '{"percent": 10}', 'leaves it');
SELECT beat('p', '{"percent": 20, "message": "täglich"}');
SELECT is(progress_of('p'), '{"percent": 20, "message": "täglich"}', 'another replaces it');
SELECT beat('p', 'null');
SELECT is(progress_of('p'), NULL, 'JSON null forgets it');
SELECT is(beat('p', jsonb_build_object('m', repeat('x', 990))), 'run', 'a long one');
SELECT is(octet_length(progress_of('p')::text), 999, 'is kept whole');
SELECT throws_ok($$SELECT beat('p', jsonb_build_object('m', repeat('x', 992)))$$, '22023', 'progress is too long');
SELECT is(octet_length(progress_of('p')::text), 999, 'one that is too long changes nothing');
SELECT is((SELECT action FROM held h, tq_heartbeat(h.id, h.lease - 1, progress => '{"stale": true}') WHERE name = 'p'), 'lost',
	'a stale lease');
SELECT is(octet_length(progress_of('p')::text), 999, 'reports nothing');
BEGIN;
SELECT beat('p', '"kept"');
ROLLBACK;
SELECT is(progress_of('p'), '"kept"', 'a rollback does not take it back');
BEGIN TRANSACTION READ ONLY;
SELECT is(beat('p', '"read only"'), 'run', 'it can be reported in a read-only transaction');
COMMIT;
SELECT is(progress_of('p'), '"read only"', 'which writes nothing');
SELECT is(story('p'), 'enqueued', 'nor does any of them');
SELECT end_job('p');

-- progress ends with the lease, however the lease ends
CALL begin_job('p fail', 'p_fail');
CALL begin_job('p release', 'p_release');
CALL begin_job('p fatal', 'p_fatal');
CALL begin_job('p bury', 'p_bury');
SELECT beat('p ' || verb, to_jsonb(verb)) FROM unnest('{fail,release,fatal,bury}'::text[]) verb;
SELECT is((SELECT array_agg(progress ORDER BY progress) FROM tq_running WHERE queue LIKE 'p\_%'),
	ARRAY['"bury"', '"fail"', '"fatal"', '"release"']::jsonb[], 'each has its own');
BEGIN;
SELECT end_job('p ' || verb, verb) FROM unnest('{fail,release,fatal,bury}'::text[]) verb;
ROLLBACK;
SELECT is((SELECT count(progress)::int FROM tq_running WHERE queue LIKE 'p\_%'), 4, 'an end that is rolled back leaves them');
SELECT end_job('p ' || verb, verb) FROM unnest('{fail,release,fatal,bury}'::text[]) verb;
SELECT tq_retry(id) FROM held WHERE name IN ('p fatal', 'p bury');
SELECT claim_job('p ' || verb, 'p_' || verb) FROM unnest('{fail,release,fatal,bury}'::text[]) verb;
SELECT is((SELECT count(*)::int FROM tq_running WHERE queue LIKE 'p\_%' AND progress IS NULL), 4, 'the next attempt begins without');
SELECT end_job('p ' || verb) FROM unnest('{fail,release,fatal,bury}'::text[]) verb;
SELECT tq_enqueue('p_undo');
BEGIN;
SELECT claim_job('p undo', 'p_undo');
SELECT beat('p undo', '"gone"');
SELECT is(progress_of('p undo'), '"gone"', 'while the claim is open there is some');
ROLLBACK;
SELECT claim_job('p undo', 'p_undo');
SELECT is(progress_of('p undo'), NULL, 'its rollback takes the progress along');
SELECT end_job('p undo');

-- ---- checkpoints

CALL begin_job('c');
SELECT is((SELECT c.checkpoint FROM held h, tq_get(h.id) c WHERE name = 'c'), NULL, 'a job begins without checkpoint');
SELECT is(beat('c', checkpoint => '{"at": 1}'), 'run', 'a heartbeat keeps one');
SELECT is(checkpoint_of('c'), '{"at": 1}', 'tq_get shows it');
SELECT beat('c', checkpoint => '{"at": 2}');
SELECT is(checkpoint_of('c'), '{"at": 2}', 'the last one counts');
SELECT is(story('c'), 'enqueued checkpoint checkpoint', 'the history has both');
SELECT is((SELECT array_agg(s.detail ORDER BY s.step) FROM held h, tq_history(h.id) s WHERE name = 'c' AND s.event = 'checkpoint'),
	ARRAY['{"at": 1}', '{"at": 2}']::jsonb[], 'with what they were');
SELECT is((SELECT tq_release(id, lease) FROM held WHERE name = 'c'), 'ready', 'the job comes again');
SELECT is((SELECT checkpoint FROM tq_claim('beats')), '{"at": 2}', 'and begins with the last checkpoint');
SELECT is((SELECT action FROM held h, tq_heartbeat(h.id, h.lease, checkpoint => '{"stale": true}') WHERE name = 'c'), 'lost',
	'the attempt before cannot keep any more');
SELECT is(checkpoint_of('c'), '{"at": 2}', 'nothing of it is kept');
UPDATE held SET lease = r.lease FROM tq_running r WHERE r.id = held.id AND name = 'c';
SELECT is((SELECT b.lease_expires_at > clock_timestamp() + interval '90 minutes' FROM held h,
	tq_heartbeat(h.id, h.lease, '2 hours', checkpoint => '3') b WHERE name = 'c'), true, 'it renews the lease by what is asked');
SELECT is((SELECT r.lease_expires_at > clock_timestamp() + interval '90 minutes' FROM held h JOIN tq_running r ON r.id = h.id
	WHERE name = 'c'), true, 'at once');
SELECT end_job('c', 'fatal');
SELECT is((SELECT action FROM held h, tq_heartbeat(h.id, h.lease, checkpoint => '4') WHERE name = 'c'), 'lost', 'an ended job takes none');
SELECT is((SELECT tq_retry(id) FROM held WHERE name = 'c'), 'ready', 'a retry');
SELECT is((SELECT checkpoint FROM tq_claim('beats')), '3', 'goes on from where the last life stopped');
UPDATE held SET lease = r.lease FROM tq_running r WHERE r.id = held.id AND name = 'c';
SELECT beat('c', checkpoint => 'null');
SELECT end_job('c', 'release');
SELECT is((SELECT checkpoint FROM tq_claim('beats')), 'null', 'unless a worker has kept JSON null');
UPDATE held SET lease = r.lease FROM tq_running r WHERE r.id = held.id AND name = 'c';
SELECT is(end_job('c'), 'succeeded', 'and ends well');
SELECT is((SELECT action FROM tq_heartbeat(9000000001, 1, checkpoint => '{}')), 'lost', 'a job that never was takes none');

-- transactions
CALL begin_job('t');
SELECT beat('t', checkpoint => '"before"');
BEGIN;
SELECT beat('t', checkpoint => '"inside"');
SELECT is(checkpoint_of('t'), '"inside"', 'a transaction sees its own checkpoint');
SELECT is(state_of('t'), 'running', 'and that the job runs');
ROLLBACK;
SELECT is(checkpoint_of('t'), '"before"', 'a rollback takes it back');
BEGIN;
SAVEPOINT s;
SELECT beat('t', checkpoint => '"in savepoint"');
ROLLBACK TO s;
SELECT beat('t', checkpoint => '"after savepoint"');
SAVEPOINT s;
SELECT beat('t', checkpoint => '"in another"');
RELEASE s;
SAVEPOINT s;
SELECT beat('t', checkpoint => '"in a third"');
ROLLBACK TO s;
COMMIT;
SELECT is(checkpoint_of('t'), '"in another"', 'a savepoint takes back its own');
SELECT is(story('t'), 'enqueued checkpoint checkpoint checkpoint', 'and what was taken back is nowhere');
BEGIN;
SELECT beat('t', checkpoint => '"and complete"');
SELECT is(end_job('t'), 'succeeded', 'one transaction keeps a checkpoint and ends the job');
SELECT is((SELECT action FROM held h, tq_heartbeat(h.id, h.lease, checkpoint => '1') WHERE name = 't'), 'lost', 'after which it keeps no more');
ROLLBACK;
SELECT is(state_of('t'), 'running', 'all of it rolled back');
BEGIN;
SELECT beat('t', checkpoint => '"and fail"');
SAVEPOINT s;
SELECT end_job('t', 'bury');
ROLLBACK TO s;
SELECT is(beat('t', checkpoint => '"and fail again"'), 'run', 'an end that was taken back lets it go on');
SELECT is(end_job('t', 'fail'), 'ready', 'and end');
COMMIT;
SELECT is((SELECT checkpoint FROM tq_claim('beats')), '"and fail again"', 'the next attempt has the last');
UPDATE held SET lease = r.lease FROM tq_running r WHERE r.id = held.id AND name = 't';
SELECT end_job('t');

-- everything in one transaction
SELECT tq_enqueue('once');
BEGIN;
SELECT claim_job('o', 'once');
SELECT is(beat('o', checkpoint => '1'), 'run', 'the transaction that claims can keep a checkpoint');
SELECT is(beat('o', checkpoint => '2'), 'run', 'two');
SELECT is(end_job('o'), 'succeeded', 'and complete');
COMMIT;
SELECT is(story('o'), 'enqueued checkpoint checkpoint succeeded', 'all in its place');
SELECT tq_enqueue('once');
BEGIN;
SELECT claim_job('o', 'once');
SELECT beat('o', checkpoint => '1');
ROLLBACK;
SELECT claim_job('o', 'once');
SELECT is((SELECT g.attempt FROM held h, tq_get(h.id) g WHERE name = 'o'), 1, 'rolled back with its claim, no attempt is counted');
SELECT is(checkpoint_of('o'), NULL, 'nor a checkpoint kept');
SELECT end_job('o');

-- cancelling a job with checkpoints
CALL begin_job('x');
BEGIN;
SELECT beat('x', checkpoint => '1');
SELECT is((SELECT tq_cancel(id) FROM held WHERE name = 'x'), 'asked', 'a job with an open checkpoint can be asked to stop');
COMMIT;
SELECT is(beat('x', checkpoint => '2'), 'cancel', 'the next checkpoint is kept, and the worker told to stop');
SELECT is(end_job('x', 'fail'), 'cancelled', 'it stops');
SELECT is(checkpoint_of('x'), '2', 'the checkpoint is known');

-- arguments
SET tq.max_payload = '1kB';
CALL begin_job('a');
SELECT throws_ok($$SELECT beat('a', checkpoint => jsonb_build_object('m', repeat('x', 1100)))$$, '54000', 'checkpoint is too large');
RESET tq.max_payload;
SELECT is(checkpoint_of('a'), NULL, 'one that is too large is not kept');
SELECT is(beat('a', checkpoint => jsonb_build_object('m', repeat('x', 100000))), 'run', 'a large one');
SELECT is(length(checkpoint_of('a') ->> 'm'), 100000, 'is kept whole');
SELECT end_job('a', 'release');
SELECT is((SELECT length(checkpoint ->> 'm') FROM tq_claim('beats')), 100000, 'and handed over');
UPDATE held SET lease = r.lease FROM tq_running r WHERE r.id = held.id AND name = 'a';
BEGIN TRANSACTION READ ONLY;
SELECT throws_ok($$SELECT beat('a', checkpoint => '1')$$, '25006', NULL, 'a checkpoint is refused in a read-only transaction');
COMMIT;
BEGIN;
SELECT beat('a', checkpoint => '1');
SELECT throws_ok($$PREPARE TRANSACTION 'beat'$$, NULL, NULL, 'a transaction with a checkpoint cannot be prepared');
ROLLBACK;
SELECT end_job('a');

-- ---- strict_timeout

SELECT tq_create_queue('strict', '{"strict_timeout": true, "lease": "1 hour"}');
CALL begin_job('s', 'strict');
SELECT is((SELECT b.lease_expires_at < clock_timestamp() + interval '2 hours' FROM held h, tq_heartbeat(h.id, h.lease, '5 hours') b
	WHERE name = 's'), true, 'with strict_timeout a heartbeat does not extend');
SELECT is(beat('s', '1', '{"at": 1}'), 'run', 'but answers, reports and keeps');
SELECT is((SELECT lease_expires_at < clock_timestamp() + interval '2 hours' FROM tq_running WHERE queue = 'strict'), true,
	'nor does a checkpoint extend');
SELECT is(checkpoint_of('s'), '{"at": 1}', 'which is kept');
SELECT tq_alter_queue('strict', '{"strict_timeout": false}');
SELECT is((SELECT b.lease_expires_at > clock_timestamp() + interval '4 hours' FROM held h, tq_heartbeat(h.id, h.lease, '5 hours') b
	WHERE name = 's'), true, 'the setting counts at the heartbeat');
SELECT end_job('s');

-- ---- quiet

CALL begin_job('q', 'quiet', kind => 'k');
SELECT is(beat('q'), 'run', 'a job runs');
SELECT tq_pause('quiet');
SELECT is(beat('q'), 'quiet', 'its queue pauses');
SELECT is(beat_many('q'), 'quiet', 'so hears a heartbeat for many');
SELECT is(beat('q', '50', '{"at": 50}'), 'quiet', 'it still reports and keeps');
SELECT tq_resume('quiet');
SELECT is(beat('q'), 'run', 'its queue goes on');
SELECT tq_pause('quiet', 'k');
SELECT is(beat('q'), 'quiet', 'its kind pauses');
SELECT tq_resume('quiet', 'k');
SELECT tq_enqueue('quiet', kind => 'other', delay => '1 h') \g /dev/null
SELECT tq_pause('quiet', 'other');
SELECT is(beat('q'), 'run', 'another kind does not matter');
SELECT tq_pause('quiet');
SELECT tq_cancel(id) FROM held WHERE name = 'q';
SELECT is(beat('q'), 'cancel', 'that it is to stop matters more');
SELECT end_job('q', 'fail');

-- ---- draining

CALL begin_job('d1', 'drain', 'w');
CALL begin_job('d2', 'drain', 'w');
CALL begin_job('d3', 'drain', 'v');
SELECT tq_enqueue('drain');
SELECT is(tq_drain('w'), 2::bigint, 'a worker drains: it holds two');
SELECT is(beat('d1'), 'quiet', 'its heartbeats say so');
SELECT is(beat_many('d2'), 'quiet', 'all of them');
SELECT is(beat('d3'), 'run', 'those of others do not');
SELECT is((SELECT count(*)::int FROM tq_claim('drain', worker => 'w')), 0, 'its claims return nothing');
SELECT is((SELECT count(*)::int FROM tq_claim_any('{drain,once}', worker => 'w')), 0, 'of several queues neither');
SELECT is((SELECT count(*)::int FROM tq_claim('drain', worker => 'w', wait => '50 ms')), 0, 'nor when they wait'); -- limit: nothing comes
SELECT is((SELECT array_agg(worker ORDER BY worker) FROM tq_workers WHERE draining), '{w}', 'tq_workers shows it');
SELECT end_job('d1');
SELECT is(tq_drain('w'), 1::bigint, 'it holds one');
SELECT end_job('d2', 'release');
SELECT is(tq_drain('w'), 0::bigint, 'it holds none');
SELECT is((SELECT count(*)::int FROM tq_claim('drain', worker => 'w')), 0, 'and gets none');
SELECT is(tq_undrain('w'), true, 'it may go on');
SELECT is(tq_undrain('w'), false, 'which can be said twice');
SELECT is(tq_undrain('nobody'), false, 'and of nobody');
SELECT is((SELECT count(*)::int FROM tq_workers WHERE worker = 'nobody'), 0, 'without naming him');
SELECT is((SELECT count(*)::int FROM tq_claim('drain', worker => 'w')), 1, 'it claims again');
SELECT is(tq_drain('to come'), 0::bigint, 'a worker may drain before it is seen');
SELECT is((SELECT count(*)::int FROM tq_claim('drain', worker => 'to come')), 0, 'and gets nothing when it comes');
SELECT is((SELECT count(*)::int FROM tq_claim('drain')), 1, 'what others do');
BEGIN;
SELECT tq_drain('v');
ROLLBACK;
SELECT is(beat('d3'), 'quiet', 'draining is not taken back by a rollback');
SELECT throws_ok('SELECT tq_drain(NULL)', '22004', 'worker must not be null');
SELECT throws_ok($$SELECT tq_drain('')$$, '22023', 'worker must not be empty');
SELECT throws_ok($$SELECT tq_drain(repeat('w', 64))$$, '22023', 'worker is too long');
SELECT throws_ok($$SELECT tq_drain(E'a\nb')$$, '22023', 'worker must not contain control characters');
SELECT throws_ok('SELECT tq_undrain(NULL)', '22004', 'worker must not be null');
SELECT throws_ok($$SELECT tq_undrain('')$$, '22023', 'worker must not be empty');
BEGIN TRANSACTION READ ONLY;
SELECT throws_ok($$SELECT tq_drain('w')$$, '25006', NULL, 'tq_drain is refused in a read-only transaction');
SELECT throws_ok($$SELECT tq_undrain('w')$$, '25006', NULL, 'tq_undrain is refused in a read-only transaction');
COMMIT;

SELECT is((SELECT count(*)::int FROM tq_check() WHERE expected >= 0 AND expected <> found), 0, 'memory and journal agree');
SELECT * FROM finish();
