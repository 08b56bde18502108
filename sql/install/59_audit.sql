-- Who did what (docs/guides/rights.md): a row for each call that administers queues or jobs.

CREATE TABLE tq.audit (
	id           bigint PRIMARY KEY,
	at           timestamptz NOT NULL,
	role         text NOT NULL,            -- the current user: the owner of a SECURITY DEFINER function
	session_role text NOT NULL,            -- who had logged in
	action       text NOT NULL,
	queue_id     int NOT NULL,             -- tq.queue.id; 0: all queues, or none
	queue        text,                     -- its name; outlives the queue
	job_id       bigint,
	detail       jsonb
);
CREATE INDEX audit_at ON tq.audit (at);
CREATE SEQUENCE tq.audit_id_seq AS bigint;
REVOKE ALL ON TABLE tq.audit FROM PUBLIC;
REVOKE ALL ON SEQUENCE tq.audit_id_seq FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.audit', '');
SELECT pg_catalog.pg_extension_config_dump('tq.audit_id_seq', '');

CREATE VIEW tq_audit WITH (security_barrier) AS
	SELECT a.id, a.at, a.role, a.session_role, a.action, a.queue, a.job_id, a.detail
	FROM tq.audit a WHERE tq.may_list(a.queue_id, 0);
