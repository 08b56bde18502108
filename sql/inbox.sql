-- tq_inbox: COPY and INSERT enqueue jobs. Rows are never ignored silently (H26).
\pset null -
SET timezone = 'UTC';

COPY tq_inbox (queue, payload, kind, priority, run_at, max_attempts, headers) FROM stdin;
i_copy	{"n": 1}	a	5	\N	3	{"h": 1}
i_copy	{"n": 2}	\N	\N	2100-01-01	\N	\N
i_other	{}	\N	\N	\N	\N	\N
\.
SELECT queue, kind, state, priority, max_attempts, run_at FROM tq_jobs WHERE queue ~ '^i_' ORDER BY id;
SELECT payload, headers FROM tq_claim('i_copy');
COPY tq_inbox (queue) FROM stdin;
i_other
\.
COPY tq_inbox (queue, delay) FROM stdin WITH (FORMAT csv);
i_other,1 day
\.
INSERT INTO tq_inbox (queue, payload) SELECT 'i_many', jsonb_build_object('n', n) FROM generate_series(1, 1500) n;
SELECT queue, ready, delayed FROM tq_queues WHERE queue IN ('i_other', 'i_many') ORDER BY 1;
BEGIN;
INSERT INTO tq_inbox (queue) VALUES ('i_other');
ROLLBACK;
SELECT ready FROM tq_queues WHERE queue = 'i_other';

-- a row that tq_enqueue refuses fails the whole statement
COPY tq_inbox (queue, payload) FROM stdin;
i_other	{}
i_other	\N
\.
COPY tq_inbox (payload) FROM stdin;
{}
\.
COPY tq_inbox (queue, priority) FROM stdin;
i_other	100000
\.
COPY tq_inbox (queue, depends_on) FROM stdin;
i_other	{999999}
\.
INSERT INTO tq_inbox (queue, run_at, delay) VALUES ('i_other', now(), '1 s');
SELECT ready FROM tq_queues WHERE queue = 'i_other';
SELECT * FROM tq_inbox;

-- H26: triggers that do not fire
SET session_replication_role = replica;
COPY tq_inbox (queue) FROM stdin;
i_other
\.
COPY tq_inbox (payload) FROM stdin;
{}
\.
INSERT INTO tq_inbox (queue) VALUES ('i_other');
INSERT INTO tq_inbox (payload) VALUES ('{}');
INSERT INTO tq_inbox (queue) SELECT 'i_other' FROM generate_series(1, 2);
SELECT tq_enqueue('i_other') IS NOT NULL AS enqueued;
RESET session_replication_role;
SELECT ready FROM tq_queues WHERE queue = 'i_other';

SELECT count(tq_complete(id, lease)) FROM tq_running WHERE queue ~ '^i_';
SELECT count(tq_cancel(id)) FROM tq_jobs WHERE queue ~ '^i_' AND state IN ('ready', 'delayed');
SELECT tq_drop_queue(queue) FROM tq_queues WHERE queue ~ '^i_';
