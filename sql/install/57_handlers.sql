-- Handlers: functions that run jobs in executors inside the server (docs/guides/handlers.md).

CREATE TABLE tq.handler (
	queue_id    int NOT NULL,              -- tq.queue.id
	kind        text COLLATE "C" NOT NULL, -- '': every kind without a handler of its own
	function    text NOT NULL,             -- with its schema, quoted; takes a tq_job
	role        tq.role NOT NULL,          -- the role that named it; it runs as
	search_path text NOT NULL,             -- when it was named
	options     jsonb NOT NULL DEFAULT '{}',
	defined_at  timestamptz NOT NULL,
	problem     text,                      -- why its jobs are not run; null: they are run
	problem_at  timestamptz,
	retry_at    timestamptz,               -- the next try; infinity: not before tq_handle is called again
	owner       tq.role,                   -- of the function, when tq_handle was called
	function_oid oid,                      -- of the function, in this database; tq_activate() sets it in a copy
	PRIMARY KEY (queue_id, kind)
);
REVOKE ALL ON TABLE tq.handler FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('tq.handler', 'WHERE handler.role::oid = 0 OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = handler.role::oid)');

-- Schedulers and executors learn of changes at commit, also of those by hand, by a restore and by logical replication.
CREATE FUNCTION tq.handler_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'tq_handler_changed';
REVOKE ALL ON FUNCTION tq.handler_changed() FROM PUBLIC;
CREATE TRIGGER tq_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tq.handler
	FOR EACH STATEMENT EXECUTE FUNCTION tq.handler_changed();
CREATE TRIGGER tq_changed_row AFTER INSERT OR UPDATE OR DELETE ON tq.handler
	FOR EACH ROW EXECUTE FUNCTION tq.handler_changed();
ALTER TABLE tq.handler ENABLE ALWAYS TRIGGER tq_changed, ENABLE REPLICA TRIGGER tq_changed_row;

CREATE FUNCTION tq_handle(queue text, kind text, handler regprocedure, options jsonb DEFAULT NULL)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

CREATE FUNCTION tq_unhandle(queue text, kind text)
RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME';

-- A row written by hand may hold any text.
CREATE VIEW tq_handlers WITH (security_barrier) AS
	SELECT q.name AS queue, nullif(h.kind, '') AS kind, pg_catalog.left(h.function, 8192) AS function, h.role::oid::regrole AS role, h.options,
		pg_catalog.left(h.search_path, 8192) AS search_path, h.defined_at, pg_catalog.left(h.problem, 8192) AS problem, h.problem_at, h.retry_at
	FROM tq.handler h JOIN tq.queue q ON q.id = h.queue_id
	WHERE tq.may_list(h.queue_id, h.role);
