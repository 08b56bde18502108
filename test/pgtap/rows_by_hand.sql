-- Rows in tq's tables that tq would not write: they affect no other job.
\set QUIET 1
\pset format unaligned
\pset tuples_only true
SET client_min_messages = error;

SELECT * FROM no_plan();

SELECT tq_create_queue(name) FROM unnest('{q,other}'::text[]) name;
CREATE FUNCTION queue_id(wanted text) RETURNS int LANGUAGE sql AS 'SELECT id FROM tq.queue WHERE name = wanted';
SELECT tq_schedule('s', 'q', every => '1 day');
SELECT tq_schedule_pause('s');
SELECT throws_like($$INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) VALUES (1, now(), queue_id('q'), 0, '{}')$$, 'tq is active%',
	'they can be written only while the database is inactive');
SELECT tq_deactivate();

-- a time outside the calendar, a worker's name longer than allowed, a lease number out of range
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload, weight)
	VALUES (11, 'infinity', queue_id('q'), 0, '{}', 1), (12, now(), queue_id('q'), 0, '{}', 1), (13, now(), queue_id('q'), 0, '{}', 'NaN');
INSERT INTO tq.event_0 (job_id, at, step, type, worker, lease, lease_until) VALUES (11, 'infinity', 1, 'd', NULL, NULL, NULL),
	(12, now(), 1, 'd', 'a' || repeat('é', 40), NULL, NULL), (13, now(), 1, 'c', NULL, 9223372036854775807, 'infinity');
-- names and settings
INSERT INTO tq.queue (id, name) VALUES (901, repeat('x', 64)), (902, ''), (903, E'a\nb');
INSERT INTO tq.queue (id, name, paused_kinds) VALUES (904, 'times', '{"k": "never", "l": null}'), (905, 'kinds', '{"": null, "l": null, "m": {}}'),
	(906, 'array', '[1]');
INSERT INTO tq.queue (id, name, settings) VALUES (907, 'scalar', '7'), (908, 'list', '["follow_up"]'), (909, 'null', 'null'),
	(910, 'follow', '{"follow_up": "by"}'), (911, 'follow list', '{"follow_up": ["by"]}'), (912, 'follow by', '{"follow_up": {"by": 7, "queue": "q"}}');
-- numbers that overflow
INSERT INTO tq.schedule_fire (schedule, fire_at, at, missed, outcome)
	VALUES ('s', '2001-01-01', now(), 9223372036854775807, 'missed'), ('s', '2001-01-02', now(), 9223372036854775807, 'missed');

SELECT is_empty('SELECT * FROM tq_activate()', 'nonsense is no obstacle');
SELECT results_eq('SELECT id, enqueued_at, died_at, kept_until FROM tq_dead WHERE id = 11',
	'SELECT 11::bigint, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz', 'tq_dead shows no time that there is not');
SELECT is((SELECT finished_at FROM tq_get(11)), NULL, 'nor does tq_get');
SELECT matches(tq_explain(12), 'worker "aé{31}"', 'a name that is too long is cut between two characters');
SELECT bag_eq('SELECT queue FROM tq_stats() WHERE queue !~ ''^(q|other|scalar|list|null|follow.*)$''', $$VALUES ('times'), ('kinds'), ('array')$$,
	'what cannot be a name is none');
SELECT tq_enqueue(q, kind => 'l') FROM unnest('{times,kinds}'::text[]) q;
SELECT is((SELECT kind FROM tq_claim('kinds')), NULL, 'the rest of what pauses kinds counts');
SELECT is((SELECT kind FROM tq_claim('times')), 'l', 'where a time is none, nothing does');
SELECT results_eq($$SELECT queue::text, settings FROM tq_queues WHERE queue IN ('scalar', 'list', 'null', 'follow', 'follow list', 'follow by') ORDER BY 1$$,
	$$VALUES ('follow', '{"follow_up": "by"}'::jsonb), ('follow by', '{"follow_up": {"queue": "q"}}'), ('follow list', '{"follow_up": ["by"]}'),
		('list', '["follow_up"]'), ('null', 'null'), ('scalar', '7')$$, 'tq_queues shows settings of any shape');
SELECT cmp_ok((SELECT missed FROM tq_schedules), '>', 0::bigint, 'a sum of what was missed that is no bigint');
SELECT is((SELECT lease FROM tq_running WHERE id = 13), 9223372036854775807, 'a lease number out of range is the lease of its job');
SELECT tq_enqueue('other');
SELECT is((SELECT lease BETWEEN 1 AND 9007199254740991 FROM tq_claim('other')), true, 'and those of others go on as they were');

-- roles: each text is kept, and only the name of a role is one
CREATE ROLE "7"; CREATE ROLE "a "".b"; CREATE ROLE "ABC";
SELECT results_eq($$SELECT t, t::tq.role::text, coalesce(r.rolname, '') FROM unnest(ARRAY['7', '"7"', 'abc', '"ABC"', 'ABC', '"a "".b"', 'a.b', '"', '', '-', '10'])
		WITH ORDINALITY u (t, i) LEFT JOIN pg_roles r ON r.oid = t::tq.role::oid ORDER BY i$$,
	$$VALUES ('7', '7', ''::name), ('"7"', '"7"', '7'), ('abc', 'abc', ''), ('"ABC"', '"ABC"', 'ABC'), ('ABC', 'ABC', ''), ('"a "".b"', '"a "".b"', 'a ".b'),
		('a.b', 'a.b', ''), ('"', '"', ''), ('', '', ''), ('-', '-', ''), ('10', '10', '')$$, 'texts of roles');
DROP ROLE "7", "a "".b", "ABC";
SELECT throws_ok($$SELECT repeat('x', 129)::tq.role$$, '42622', NULL, 'a text that is too long for a role');
SELECT throws_ok($$SELECT count(*) FROM tq.acl WHERE role = 'nobody'$$, NULL, NULL, 'a role is not compared with a text');

-- the greatest id
SELECT tq_enqueue('other');
SELECT tq_deactivate();
INSERT INTO tq.job_0 (id, enqueued_at, queue_id, priority, payload) VALUES (9007199254740991, now(), queue_id('q'), 0, '{}');
SELECT FROM tq_activate();
SELECT throws_ok($$SELECT tq_enqueue('q')$$, '2200H', 'no job ids are left', 'there is none above the last id');
SELECT isnt((SELECT id FROM tq_claim('other')), NULL, 'jobs that are there are claimed');

SELECT * FROM finish();
