-- The journal: append-only tables, and the small registries beside them.
-- Segment pairs tq.job_N / tq.event_N are children of the two empty parents (docs/architecture.md).

DO $$
BEGIN
	IF '@extschema@' = 'tq' THEN
		RAISE EXCEPTION 'extension "tq" cannot be created in schema "tq"'
			USING ERRCODE = 'invalid_schema_name',
				HINT = 'The schema "tq" holds the extension''s own tables. Create the extension in another schema, such as "public".';
	END IF;
END
$$;

CREATE SCHEMA tq;
REVOKE ALL ON SCHEMA tq FROM PUBLIC;

-- A server that has not restarted since tq's files were replaced still runs the library that it loaded at its start.
DO $$
BEGIN
	CREATE FUNCTION tq.require_library() RETURNS void
		LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_require_library';
EXCEPTION
	WHEN undefined_function THEN
		RAISE EXCEPTION 'the library that the server has loaded is of an older version of tq than this'
			USING ERRCODE = 'TQ007', DETAIL = SQLERRM, HINT = 'Restart the server, and try again.';
END
$$;
SELECT tq.require_library();

-- The database's default must not decide what the tables are made of.
SET LOCAL default_table_access_method = heap;

-- A role, in tables that are dumped: its oid, printed as its name; or a name that no role had when it was read.
CREATE TYPE tq.role;
CREATE FUNCTION tq.role_in(cstring) RETURNS tq.role
	LANGUAGE C STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_role_in';
CREATE FUNCTION tq.role_out(tq.role) RETURNS cstring
	LANGUAGE C STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_role_out';
CREATE TYPE tq.role (INPUT = tq.role_in, OUTPUT = tq.role_out);
CREATE FUNCTION tq.role_oid(tq.role) RETURNS oid
	LANGUAGE C IMMUTABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'tq_role_oid';
CREATE CAST (tq.role AS oid) WITH FUNCTION tq.role_oid(tq.role) AS IMPLICIT;
CREATE CAST (regrole AS tq.role) WITH INOUT AS ASSIGNMENT;
CREATE CAST (tq.role AS bytea) WITHOUT FUNCTION AS IMPLICIT;	-- for its operator class

-- One row per enqueued job. A row is never updated or deleted, except in segment 0.
CREATE TABLE tq.job (
	id           bigint NOT NULL,          -- ordered; below 2^53
	enqueued_at  timestamptz NOT NULL,
	queue_id     int NOT NULL,             -- tq.queue.id
	priority     int NOT NULL,             -- lower first; events may override it
	run_at       timestamptz,              -- not before
	expires_at   timestamptz,              -- not started after
	timeout      bigint,                   -- hard limit of one attempt, microseconds
	lease        bigint,                   -- lease without heartbeat, microseconds; null: the queue's
	origin       bigint,                   -- the job this one is a copy of
	max_attempts int,                      -- null: the queue's
	weight       real,
	kind         text COLLATE "C",         -- "C": indexed, and no new version of a locale may reorder an index
	group_key    text COLLATE "C",
	unique_key   text COLLATE "C",
	payload      jsonb NOT NULL,
	headers      jsonb,
	retry        jsonb,
	options      jsonb,
	depends_on   bigint[],                 -- it waits for these until freed; empty: the callback of a batch
	tags         text[],
	-- for rows written by hand; tq's own path checks before it writes
	CONSTRAINT job_id_range CHECK (id > 0 AND id < 9007199254740992),
	CONSTRAINT job_kind_is_name CHECK (
		pg_catalog.octet_length(kind) BETWEEN 1 AND 63 AND kind OPERATOR(pg_catalog.!~) '[[:cntrl:]]'),
	CONSTRAINT job_group_key_is_name CHECK (
		pg_catalog.octet_length(group_key) BETWEEN 1 AND 127 AND group_key OPERATOR(pg_catalog.!~) '[[:cntrl:]]'),
	CONSTRAINT job_is_empty CHECK (false) NO INHERIT
) USING heap;

-- One row per durable change of a job. type: c claimed, s succeeded, f failed (to be retried), l lease lost (to be
-- retried), r released, d dead, b buried, x cancelled, e expired, p purged, m moved, R retried, o override (priority,
-- retry_at), k checkpoint, a asked to cancel, u freed (its parents have ended), B blocked (it waits for them again),
-- S superseded (a newer job has its unique key).
CREATE TABLE tq.event (
	job_id       bigint NOT NULL,
	at           timestamptz NOT NULL,
	lease        bigint,                   -- lease number this event belongs to
	claimed_at   timestamptz,              -- start of the attempt that this event ends or journals
	retry_at     timestamptz,              -- not claimable before (f, l, r, R, B, o)
	lease_until  timestamptz,              -- c: end of the lease when it was granted; u: expires then
	step         int NOT NULL,             -- the job's steps order its history; unique per job
	attempt      int,
	priority     int,                      -- o: new priority
	type         "char" NOT NULL,
	bound        boolean,                  -- c: the lease ends with its session (true) or its worker (false)
	worker       text,
	reason       text,                     -- error, reason
	detail       jsonb,                    -- result, error detail, checkpoint, u: the outcomes of its parents
	CONSTRAINT event_step_range CHECK (step > 0),
	CONSTRAINT event_is_empty CHECK (false) NO INHERIT
) USING heap;

-- Segment 0 always exists, is a member of the extension, is dumped, and is an ordinary mutable pair.
CREATE TABLE tq.job_0 () INHERITS (tq.job) USING heap;
CREATE UNIQUE INDEX job_0_id ON tq.job_0 (id);
CREATE INDEX job_0_lane ON tq.job_0 (queue_id, kind, priority, id) WHERE group_key IS NULL;
CREATE INDEX job_0_group ON tq.job_0 (queue_id, group_key, priority, id) WHERE group_key IS NOT NULL;
CREATE INDEX job_0_due ON tq.job_0 (run_at, id) WHERE run_at IS NOT NULL;
CREATE TABLE tq.event_0 () INHERITS (tq.event) USING heap;
CREATE UNIQUE INDEX event_0_step ON tq.event_0 (job_id, step);
CREATE INDEX event_0_due ON tq.event_0 (retry_at, job_id) WHERE retry_at IS NOT NULL;
CREATE INDEX event_0_override ON tq.event_0 (job_id) WHERE type = 'o';
-- FOR ALL TABLES publishes these tables like every other one, and rows of segment 0 are deleted.
ALTER TABLE tq.job REPLICA IDENTITY FULL;
ALTER TABLE tq.event REPLICA IDENTITY FULL;
ALTER TABLE tq.job_0 REPLICA IDENTITY USING INDEX job_0_id;
ALTER TABLE tq.event_0 REPLICA IDENTITY USING INDEX event_0_step;

-- A write that bypasses tq is refused while the database is active. The statement triggers also cover a statement that
-- names only the parent. The row triggers are for rows that come without statements, from logical replication. They
-- ignore tq's own writes.
CREATE FUNCTION tq.reload_trigger() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_reload_trigger';
REVOKE ALL ON FUNCTION tq.reload_trigger() FROM PUBLIC;
CREATE TRIGGER tq_reload AFTER UPDATE OR DELETE ON tq.job
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload AFTER UPDATE OR DELETE ON tq.event
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.job_0
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.event_0
	FOR EACH STATEMENT EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload_row AFTER INSERT OR UPDATE OR DELETE ON tq.job_0
	FOR EACH ROW EXECUTE FUNCTION tq.reload_trigger();
CREATE TRIGGER tq_reload_row AFTER INSERT OR UPDATE OR DELETE ON tq.event_0
	FOR EACH ROW EXECUTE FUNCTION tq.reload_trigger();
ALTER TABLE tq.job ENABLE ALWAYS TRIGGER tq_reload;
ALTER TABLE tq.event ENABLE ALWAYS TRIGGER tq_reload;
ALTER TABLE tq.job_0 ENABLE ALWAYS TRIGGER tq_reload, ENABLE REPLICA TRIGGER tq_reload_row;
ALTER TABLE tq.event_0 ENABLE ALWAYS TRIGGER tq_reload, ENABLE REPLICA TRIGGER tq_reload_row;

-- Registries.
CREATE TABLE tq.queue (
	id         int PRIMARY KEY,
	name       text NOT NULL UNIQUE,
	settings   jsonb NOT NULL DEFAULT '{}',
	paused     boolean NOT NULL DEFAULT false,
	paused_until timestamptz,              -- null with paused: until resumed
	paused_kinds jsonb NOT NULL DEFAULT '{}',  -- kind -> until (null: until resumed)
	closing    boolean NOT NULL DEFAULT false, -- tq_drop_queue was called; refused for new jobs
	created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE SEQUENCE tq.queue_id_seq AS int;

-- The privileges of roles on queues (tq_grant). A queue's rows are deleted with the queue. Rows of a dropped role have
-- no effect and are deleted later.
CREATE TABLE tq.acl (
	queue_id  int NOT NULL,                -- 0: all queues
	role      tq.role NOT NULL,
	privilege text COLLATE "C" NOT NULL
		CONSTRAINT acl_privilege_known CHECK (privilege IN ('produce', 'consume', 'operate', 'manage', 'metrics', 'inspect', 'monitor')
			OR (privilege = 'create' AND queue_id = 0)),
	PRIMARY KEY (queue_id, role, privilege)
);
-- Every session learns of changes, also of those by hand, by a restore and by logical replication.
CREATE FUNCTION tq.acl_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_acl_changed';
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE ON tq.acl
	FOR EACH ROW EXECUTE FUNCTION tq.acl_changed();
CREATE TRIGGER tq_truncated AFTER TRUNCATE ON tq.acl
	FOR EACH STATEMENT EXECUTE FUNCTION tq.acl_changed();
ALTER TABLE tq.acl ENABLE ALWAYS TRIGGER tq_changed, ENABLE ALWAYS TRIGGER tq_truncated;

-- What tq records about numbered segments beyond their tables.
CREATE TABLE tq.segment (
	number      int PRIMARY KEY,
	opened_at   timestamptz NOT NULL,
	sealed_at   timestamptz,               -- takes no more jobs
	finished_at timestamptz,               -- every job in it was terminal; a load does not read it again
	ended       text                       -- tq.event.type of the events that ended its jobs; null: unknown
);

-- The owner of each unique key: the job that was last enqueued or retried with it. Only jobs with a key change this
-- table. The end of a job writes nothing: a row whose job has ended has no effect, and the janitor deletes it.
CREATE TABLE tq.unique_key (
	queue_id int NOT NULL,                 -- tq.queue.id
	key      text COLLATE "C" NOT NULL,
	job_id   bigint NOT NULL,
	until    timestamptz,                  -- until then the key is taken even if the job has ended
	PRIMARY KEY (queue_id, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- One row for each parent of a waiting job, and for each job of a batch. A row is deleted when the child is free or has
-- ended; the rows of a batch with failures go with the record of its callback. Until then the parent's own record is
-- kept, or its outcome is here. After the insert, only the scheduler writes the row, except that tq_batch_close closes a
-- batch.
CREATE TABLE tq.dependency (
	parent_id  bigint NOT NULL,            -- 0: jobs can still join the batch whose callback is child_id
	child_id   bigint NOT NULL,
	on_failure "char" NOT NULL             -- c: if the parent fails, the child is cancelled; r: it runs nevertheless
		CONSTRAINT dependency_on_failure_known CHECK (on_failure IN ('c', 'r')),
	shown      boolean NOT NULL,           -- the child is given the parent's result: its enqueuer may read that
	state      text,                       -- how the parent has ended; null: not yet
	outcome    jsonb,                      -- what the child is given; before the end, {"replaceable": false}: it is not
	                                       -- given the outcome of a job that replaces the parent
	PRIMARY KEY (parent_id, child_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX dependency_child ON tq.dependency (child_id, parent_id);

-- Which job has waited for which. The rows of a child come from tq.dependency when the child is freed or ends; those of
-- a parent go with the parent.
CREATE TABLE tq.edge (
	parent_id bigint NOT NULL,
	child_id  bigint NOT NULL,
	failed    boolean NOT NULL DEFAULT false, -- the child was freed although the parent had failed
	shown     boolean NOT NULL DEFAULT false, -- as in tq.dependency
	own       boolean NOT NULL DEFAULT false, -- shown, but not the outcome of a job that replaces the parent
	PRIMARY KEY (parent_id, child_id)
);

-- Batches and their progress; the id is that of the callback job.
CREATE TABLE tq.batch (
	id         bigint PRIMARY KEY,
	on_failure "char" NOT NULL
		CONSTRAINT batch_on_failure_known CHECK (on_failure IN ('c', 'r')),
	opened_at  timestamptz NOT NULL,
	closed_at  timestamptz,                -- when no session was joining any more
	total      bigint,                     -- known from then on
	done       bigint NOT NULL DEFAULT 0,
	succeeded  bigint NOT NULL DEFAULT 0,
	failed     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- A write to these tables that bypasses tq makes the scheduler look through both.
CREATE FUNCTION tq.dependencies_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_dependencies_changed';
REVOKE ALL ON FUNCTION tq.dependencies_changed() FROM PUBLIC;
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.dependency
	FOR EACH STATEMENT EXECUTE FUNCTION tq.dependencies_changed();
CREATE TRIGGER tq_changed_row AFTER INSERT OR UPDATE OR DELETE ON tq.dependency
	FOR EACH ROW EXECUTE FUNCTION tq.dependencies_changed();
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.batch
	FOR EACH STATEMENT EXECUTE FUNCTION tq.dependencies_changed();
CREATE TRIGGER tq_changed_row AFTER INSERT OR UPDATE OR DELETE ON tq.batch
	FOR EACH ROW EXECUTE FUNCTION tq.dependencies_changed();
ALTER TABLE tq.dependency ENABLE ALWAYS TRIGGER tq_changed, ENABLE REPLICA TRIGGER tq_changed_row;
ALTER TABLE tq.batch ENABLE ALWAYS TRIGGER tq_changed, ENABLE REPLICA TRIGGER tq_changed_row;

-- Changes of jobs in queues with the setting change_retention, for tq_changes. They are not dumped: ids of transactions
-- mean nothing elsewhere. state: r ready, d delayed, b blocked, c running, e ended.
CREATE TABLE tq.change (
	xid      xid8 NOT NULL,                -- the transaction that made the change
	job_id   bigint NOT NULL,              -- 0: none
	at       timestamptz NOT NULL,
	queue_id int NOT NULL,                 -- tq.queue.id
	step     int NOT NULL,                 -- that of the event; 0: enqueued
	type     "char" NOT NULL,              -- as tq.event.type; n: enqueued, q: the queue began to record changes
	state    "char" NOT NULL               -- after the change
) USING heap;
CREATE INDEX change_xid ON tq.change (queue_id, xid, job_id, step);
ALTER TABLE tq.change REPLICA IDENTITY FULL;	-- FOR ALL TABLES publishes it, and rows are deleted

-- What was deleted from tq.change: of each queue, the changes up to transaction `last` that the snapshot sees. The row of
-- queue 0 names the log.
CREATE TABLE tq.change_log (
	queue_id int PRIMARY KEY,
	name     text COLLATE "C",
	deleted  pg_snapshot,
	last     xid8
);
INSERT INTO tq.change_log (queue_id, name) VALUES (0, pg_catalog.left(pg_catalog.gen_random_uuid()::text, 8));

-- Which transactions had ended at a time: it tells the age of a change's commit.
CREATE TABLE tq.change_mark (
	at       timestamptz PRIMARY KEY,
	snapshot pg_snapshot NOT NULL
);

-- Ids and leases are drawn in blocks: the increment is the block's size.
CREATE SEQUENCE tq.job_id_seq AS bigint INCREMENT BY 4096 MINVALUE 1 START WITH 4096;
CREATE SEQUENCE tq.lease_seq AS bigint MINVALUE 1 START WITH 1;

-- Where these queues are in use. The first use adds a row, and so does tq_activate(); tq_deactivate() deletes it. A
-- restored, copied or upgraded database finds only rows of others, so it is inactive.
CREATE TABLE tq.meta (
	system_identifier bigint NOT NULL,
	database          oid NOT NULL,
	activated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
	extension         oid NOT NULL DEFAULT 0, -- pg_extension.oid; dumps of 0.1.0 lack it
	PRIMARY KEY (system_identifier, database, extension)
);

-- Default privileges may have granted rights.
REVOKE ALL ON ALL TABLES IN SCHEMA tq FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA tq FROM PUBLIC;

SELECT pg_catalog.pg_extension_config_dump('tq.job_0', '');
SELECT pg_catalog.pg_extension_config_dump('tq.event_0', '');
SELECT pg_catalog.pg_extension_config_dump('tq.queue', '');
SELECT pg_catalog.pg_extension_config_dump('tq.queue_id_seq', '');
-- Dumps leave out the rows of dropped roles, which have no names.
SELECT pg_catalog.pg_extension_config_dump('tq.acl', 'WHERE acl.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = acl.role::oid)');
SELECT pg_catalog.pg_extension_config_dump('tq.segment', '');
SELECT pg_catalog.pg_extension_config_dump('tq.unique_key', '');
SELECT pg_catalog.pg_extension_config_dump('tq.dependency', '');
SELECT pg_catalog.pg_extension_config_dump('tq.edge', '');
SELECT pg_catalog.pg_extension_config_dump('tq.batch', '');
-- A restored database is never active. If dumps had the row of this database, restoring them into it would make it active
-- halfway.
SELECT pg_catalog.pg_extension_config_dump('tq.meta', 'WHERE false');
SELECT pg_catalog.pg_extension_config_dump('tq.job_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('tq.lease_seq', '');
